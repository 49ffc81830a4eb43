"""Parsers for the last output from a process: tracebacks, C++ terminate and argparse errors."""

import re
from dataclasses import dataclass
from enum import Enum, auto

TRACEBACK = "Traceback (most recent call last)"
FRAME = 'File "'
BEGINNINGS = (TRACEBACK, FRAME, "terminate called after throwing", ".py: error: ")
"""Every error recognized in this module begins with a line containing one of these strings."""
ARGUMENT_ERROR = "argument error"
"""Used in place of an exception name, since argparse does not raise an exception."""

_FRAME = re.compile(
    r'^(?P<indent>\s*)File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S.*))?\s*$'
)
_RICH_FRAME = re.compile(
    r"^│ (?P<indent>)(?P<file>\S+\.py):(?P<line>\d+) in (?P<function>\S+)\s*(?:│\s*)?$"
)
"""A traceback frame in a box, as drawn by the package rich."""
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.(?:<locals>\.)?)*[A-Za-z_]\w*)"
    r"(?:\(\w+\))?(?P<colon>: ?(?P<message>.*))?$"
)
"""The name and message of an exception.

If a class is defined inside a function, its name contains `<locals>`.
"""
_MEASURE = re.compile(r"Error: ?[\d.]+(?:e-?\d+)?\s*$")
"""A numeric error, such as `Error: 0.012`, which a trainer prints like an exception message."""
_ENDING_OF_NAME = re.compile(
    r"(?:[Ee]rror|Exception|Interrupt|Exit|Failure|Failed|ExceptionGroup)$"
)
_CLASS_NAME = re.compile(r"(?:^|\.)[A-Z]\w*[a-z]\w*$")
_TERMINATE = re.compile(r"terminate called after throwing an instance of '(?P<name>[^']+)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<message>.*)$")
_ARGUMENT_ERROR = re.compile(r"^[\w./-]+\.py: error: (?P<message>\S.*)$")
_NOT_FATAL = re.compile(
    r"Exception ignored in|Logging error|Exception in thread|Error in (?:atexit|sys\.excepthook)"
)
"""The line above a traceback showing that the program survives the error."""
_REPLACES = re.compile(r"During handling of the above exception|^Original Traceback")
"""The line between two tracebacks, if the second is more informative.

For example, the traceback from a data loader worker comes after that from the parent process.
"""
_FOLLOWS = "direct cause of the following exception"
_GROUP_MARGIN = re.compile(r"^ {2,}\| ?")
"""The margin at the start of each line in the traceback for an exception group."""
_GROUP_PART = re.compile(r"^ {2,}\+-(?:\+-)?-{10,} (?P<number>\d+) -{10,}$")
"""The line above each exception in an exception group."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")
MAX_STRANGERS = 20
"""Maximum number of lines from other processes, without a prefix, that may occur inside a
traceback.
"""


def without_margin(text: str) -> str:
    """Remove the margin used for lines in an exception group.

    >>> without_margin("  |   File 'train.py', line 1, in main")
    "  File 'train.py', line 1, in main"
    """
    return _GROUP_MARGIN.sub("", text)


class Join(Enum):
    """How an exception is related to the previous exception in the same process."""

    NOTHING = auto()
    REPLACES = auto()
    """The exception was raised while the previous exception was being handled."""
    FOLLOWS = auto()
    """The previous exception is the cause of this exception."""


@dataclass(frozen=True)
class RaisedError:
    """An error that ended a process, or that the process caught and printed."""

    exception: str
    message: str
    place: str
    """File and line of the innermost frame that is not in a library; empty if unknown."""
    is_fatal: bool = True
    """Whether the error ends the program; False if Python reports that the program continues."""
    join: Join = Join.NOTHING


class TracebackReader:
    """Reads lines from a process as they arrive. The lines have no prefixes."""

    def __init__(self) -> None:
        self.chain = 0
        """Number of tracebacks up to now. A chain counts as one traceback."""
        self.is_reading = False
        """Whether the last line was part of an unfinished traceback."""
        self._join = Join.NOTHING
        self._has_heading = False
        self._is_fatal = True
        self._place = ""
        self._library_place = ""
        self._source = ""
        self._frame_indent = 0
        """Indentation of the newest frame. The line with the exception is indented less, or not at
        all.
        """
        self._num_strangers = 0
        self._terminated_by = ""

    def read(self, text: str, before: str) -> RaisedError | None:
        """Read a line, and return the error the line completes, or None.

        `before` is the previous line of the same process, which matters at the beginning of a
        traceback.
        """
        text = without_margin(text)
        terminate = _TERMINATE.search(text)
        argument_error = _ARGUMENT_ERROR.match(text)
        if terminate:
            self._begin(before)
            self._terminated_by = terminate["name"]
        elif self._terminated_by:
            return self._read_what(text)
        elif argument_error:
            self._begin(before)
            self.is_reading = False
            return RaisedError(ARGUMENT_ERROR, argument_error["message"], "")
        elif TRACEBACK in text:
            if _REPLACES.search(text):
                self._join = Join.REPLACES
            self._begin(before)
            self._has_heading = True
        elif frame := _FRAME.match(text) or _RICH_FRAME.match(text):
            self._read_frame(frame, before)
        elif part := _GROUP_PART.match(text):
            # The first exception in a group is the most informative one.
            self._join = Join.REPLACES if part["number"] == "1" else Join.FOLLOWS
            self._begin(before)
            self._has_heading = True
        elif self.is_reading:
            return self._read_inside(text)
        elif _REPLACES.search(text):
            self._join = Join.REPLACES
        elif _FOLLOWS in text:
            self._join = Join.FOLLOWS

        return None

    def _begin(self, before: str) -> None:
        if self._join is Join.NOTHING:
            self.chain += 1
            self._is_fatal = not _NOT_FATAL.search(before)
        self.is_reading = True
        self._has_heading = False
        self._place = ""
        self._library_place = ""
        self._source = ""
        self._num_strangers = 0

    def _read_what(self, text: str) -> RaisedError | None:
        described = _WHAT.match(text)
        if described is None and self._num_strangers < MAX_STRANGERS:
            self._num_strangers += 1
            return None
        error = RaisedError(self._terminated_by, described["message"] if described else "", "")
        self._terminated_by = ""
        self.is_reading = False
        return error

    def _read_frame(self, frame: re.Match[str], before: str) -> None:
        if not self.is_reading:
            self._begin(before)
        self._frame_indent = len(frame["indent"])
        place = f"{frame['file']}:{frame['line']}"
        function = frame["function"] or "<module>"
        if not function.startswith("<"):
            place = f"{place} in {function}"

        self._library_place = place
        if not _LIBRARY.search(frame["file"]):
            self._place = place
        self._source = ""

    def _read_inside(self, text: str) -> RaisedError | None:
        """Read a line inside a traceback: between two frames, or after the last frame."""
        # Skip parts of a box, and marks below a statement, which srun puts on separate lines.
        if not text.strip(" \t│─╭╮╰╯^~"):
            return None
        if text.startswith("│"):
            return None
        statement = text.lstrip()
        indent = len(text) - len(statement)
        if indent and indent >= self._frame_indent:
            self._source = self._source or statement.rstrip()
            return None

        exception = _EXCEPTION.match(statement.rstrip())
        if exception is not None and _MEASURE.match(statement):
            exception = None
        if exception is None or not self._ends_traceback(exception["name"]):
            if self._is_statement_without_indent():
                self._source = statement.rstrip()
                return None
            self._num_strangers += 1
            # Frames without a heading may belong to a warning the program survives.
            self.is_reading = self._has_heading and self._num_strangers <= MAX_STRANGERS
            if not self.is_reading:
                self._join = Join.NOTHING
            return None

        message = exception["message"] or ""
        if exception["colon"] is None and self._source.startswith("assert"):
            message = self._source
        error = RaisedError(
            exception=exception["name"],
            message=message,
            place=self._place or self._library_place,
            is_fatal=self._is_fatal,
            join=self._join,
        )
        self.is_reading = False
        self._join = Join.NOTHING
        return error

    def _is_statement_without_indent(self) -> bool:
        """Return whether the line is a statement in a frame and has lost its indentation."""
        return bool(self._library_place) and not self._frame_indent and not self._source

    def _ends_traceback(self, name: str) -> bool:
        """Return whether a line that begins with a name is the exception that ends the traceback.

        If the name does not end like an exception name, it counts only directly after the last
        frame.
        """
        if _ENDING_OF_NAME.search(name):
            return True
        is_below_frame = bool(self._source) and self._num_strangers == 0
        return is_below_frame and bool(_CLASS_NAME.search(name))
