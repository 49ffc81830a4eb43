"""A job script as text, and a record of what its job did."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.jobs.script_directives import Directive

_FENCE = re.compile(r"^\s*(?:```|~~~)\s*([\w+-]*)")
_SHELL_FENCES = ("", "bash", "sh", "shell", "console", "slurm", "zsh", "text")
_NOT_SET = re.compile(r"__NOT_SET_([A-Za-z0-9_]+?)__", re.IGNORECASE)
"""Matches the marker for an unset variable, even if a script changed its case with ${NAME,,}."""
PARENT = "/__NOT_SET_PARENT__"
FOLDER = "/__NOT_SET_PARENT__/__NOT_SET_PWD__"
"""The job folder in the sandbox.

A value that contains this folder is known only on the user's machine.
"""
HOME = "/person"
"""The home folder in the sandbox, which replaces that of the user."""
ASSUMED_NODES = 1
ASSUMED_DEVICES = 8
"""How many devices the sandbox assumes if a script requests none."""


def lines_of(text: str) -> list[str]:
    r"""Return the lines in a text as bash counts them.

    Form feeds and Unicode separators do not end a line.

    >>> lines_of("a\x0cb\nc\n"), lines_of("")
    (['a\x0cb', 'c'], [''])
    """
    return text.removesuffix("\n").split("\n")


def is_count(text: str) -> bool:
    """Return whether text is a whole number with at most nine digits.

    >>> is_count("16"), is_count("\u00b2"), is_count("9" * 5000), is_count("")
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) < 10


_IN_HOME = re.compile(rf"(?<![\w/.]){HOME}(?![\w.-])")


def not_set(name: str) -> str:
    """Return the placeholder for a variable that was never set."""
    return f"__NOT_SET_{name}__"


@dataclass(frozen=True)
class Word:
    """A word in a command line as the program received it, and the line with its value."""

    text: str
    line: int

    @property
    def known(self) -> bool:
        """Return whether the word contains no unset variables and no home folders."""
        return not _NOT_SET.search(self.text) and not _IN_HOME.search(self.text)

    @property
    def shown(self) -> str:
        """Return the word to show, with markers replaced by variable names.

        >>> Word("/data/__NOT_SET_USER_DIR__/text", 1).shown
        '/data/$USER_DIR/text'
        """
        text = self.text.replace(FOLDER, "$PWD").replace(PARENT, "$PWD/..")
        text = _IN_HOME.sub("~", text)
        return _NOT_SET.sub(lambda marker: f"${marker[1]}", text)


@dataclass(frozen=True)
class Setting:
    """A value assigned to a variable while the job ran."""

    name: str
    value: str
    line: int
    raw: str
    """The value as written in the script."""
    default: bool = False
    """Whether the assignment only sets a default, like NAME=${NAME:-value}."""
    exported: bool = False


@dataclass(frozen=True)
class StartedProgram:
    """A program started by the job."""

    kind: str
    """Which kind of stub recorded the program: step, container, wrapper, starter, python,
    submit, quiet or unknown.
    """
    words: tuple[Word, ...]
    """The words in the command line; the first is the program name."""
    own: int
    """Number of words belonging to the program itself. The rest is the command that it starts."""
    line: int
    environment: Mapping[str, Word]
    identity: str = ""
    parent: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the JSON files that the words name."""

    @property
    def name(self) -> str:
        """Return the program name without its folder."""
        return self.words[0].text.rpartition("/")[2]


@dataclass(frozen=True)
class Script:
    """A script, and a record of everything that its job did."""

    text: str
    directives: tuple[Directive, ...]
    commands: tuple[StartedProgram, ...]
    settings: tuple[Setting, ...]
    places: Mapping[int, str] = field(default_factory=dict)
    """A name for each line of the text.

    The name is `line 12`, or `payload.sh:12` if there are multiple files.
    """
    notes: tuple[str, ...] = ()
    """Anything unusual about how the job ran, such as a time limit or an early stop."""
    absent_configurations: tuple[str, ...] = ()
    """Hydra files used to start training in the job, but not available here."""
    imported: Mapping[str, str] = field(default_factory=dict)
    """The framework that each available Python program imports, by file name."""

    @property
    def lines(self) -> list[str]:
        """Return the lines in the text, beginning with line 1."""
        return self.text.splitlines()

    def line(self, number: int) -> str:
        """Return a line in the text, or an empty string if there is no line with this number."""
        if 0 < number <= len(self.lines):
            return self.lines[number - 1]
        return ""

    def value(self, name: str) -> Word | None:
        """Return the last value given to a variable, or None if it was never set.

        Values for the whole script take precedence over those for one command.
        """
        for setting in reversed(self.settings):
            if setting.name == name:
                return Word(setting.value, setting.line)

        for command in reversed(self.commands):
            if name in command.environment:
                return command.environment[name]

        return None

    def assumed(self, word: Word, key: str) -> bool:
        """Return whether a number is only the default in the sandbox, because the script has none.

        `key` determines whether the number counts nodes or devices.
        """
        if key.endswith(".nodes"):
            names: tuple[str, ...] = ("nodes", "select", "nnodes")
            number = str(ASSUMED_NODES)
        else:
            names = ("gpus-per-node", "gres")
            number = str(ASSUMED_DEVICES)
        is_asked = any(directive.name in names for directive in self.directives)
        if is_asked or word.text != number:
            return False
        return not re.search(rf"(?<!\d){number}(?!\d)", self.line(word.line))

    def first_line(self, pattern: str) -> int:
        """Return the number of the first line that matches the pattern, or 0 if no line does."""
        for number, _ in self.matching(pattern):
            return number
        return 0

    def matching(self, pattern: str) -> list[tuple[int, re.Match[str]]]:
        """Return the line number and the match for every line that matches the pattern."""
        compiled = re.compile(pattern)
        matches = []
        for number, line in enumerate(self.lines, 1):
            match = compiled.search(line)
            if match:
                matches.append((number, match))
        return matches


def is_prose(text: str) -> bool:
    """Return whether a text is a page with fenced code blocks."""
    return not text.startswith("#!") and any(_FENCE.match(line) for line in lines_of(text))


def code_blocks(text: str) -> list[str]:
    """Return the shell blocks on a page.

    Each block is preceded by empty lines, so that line numbers stay the same.
    """
    blocks: list[str] = []
    # State of the code block that contains the line, or None outside blocks
    language: str | None = None
    for number, line in enumerate(lines_of(text)):
        fence = _FENCE.match(line)
        if fence and language is None:
            language = fence[1].lower()
            if language in _SHELL_FENCES:
                blocks.append("\n" * (number + 1))
        elif fence:
            language = None
        elif language in _SHELL_FENCES:
            # Whether the block shows a prompt before each command
            is_console = language == "console"
            code = re.sub(r"^\s*\$ ", "", line) if is_console else line
            blocks[-1] += f"{code}\n"

    return blocks
