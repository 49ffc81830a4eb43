"""Rows that give a key of another program its key in the run file, or the reason why it has none."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind

Read = Callable[[Any], Any]
Values = Mapping[str, ConfigValue]


@dataclass(frozen=True)
class KeyRow:
    """One key of another program, or several by a pattern."""

    name: str
    """The dotted key; `*` stands for any text."""
    key: str = ""
    """Our key; `model.FIELD` for a property of the model's kind; empty: no key has it."""
    read: Read = lambda value: value
    """Our value for the program's. Raises ValueError or KeyError where we have none."""
    why: str = ""
    """Without a key: why the value is dropped. With one: why ours differs, where it does."""
    off: tuple[Any, ...] = ()
    """Values that ask for nothing, so that nothing is lost."""
    other_model: str = ""
    """What any other value adds to the model, so that it is no dense GPT: experts. Empty where nothing does."""

    def matches(self, name: str) -> bool:
        """Return whether a dotted key is this row's."""
        if "*" not in self.name:
            return self.name == name
        return self._pattern.fullmatch(name) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(".*".join(re.escape(part) for part in self.name.split("*")))


@dataclass(frozen=True)
class OtherProgram:
    """Something that differs because our trainer is another program."""

    topic: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class ConfigFormat:
    """How the configuration of a program is read."""

    program: str
    """As people call it."""
    rows: tuple[KeyRow, ...]
    """In this order: the first that matches a key is its row."""
    defaults: Mapping[str, Any]
    """What the program takes where a key is missing, by dotted key."""
    kind: ModelKind
    """The kind of model that the program trains unless a key says otherwise."""
    differences: tuple[OtherProgram, ...]
    finish: Callable[[Values, Findings, ModelKind], None]
    """Compute what no single key says, such as the global batch."""
    signs: frozenset[str] = field(default_factory=frozenset)
    """Dotted keys, or sections ending with a dot, of which two make a file this program's."""

    def row(self, name: str) -> KeyRow | None:
        """Return the row of a key; None if the table has none."""
        return next((row for row in self.rows if row.matches(name)), None)


def number(values: Values, name: str, default: float = 0) -> float:
    """Return a number of a configuration; the default where it is none, or has no end."""
    value = values[name].value if name in values else default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and _is_bounded(value) else default


def _is_bounded(value: float) -> bool:
    """Return whether a number has an end, and one that 64 bits hold: .nan and .inf have none."""
    return math.isfinite(value) and abs(value) <= _MOST_NUMBER


_MOST_NUMBER = 2**63


def whole_number(values: Values, name: str, default: int = 0) -> int:
    """Return a whole number of a configuration; the default where it is none."""
    return int(number(values, name, default))


def text(values: Values, name: str) -> str:
    """Return a text of a configuration; empty if the key is missing or has none."""
    value = values[name].value if name in values else ""
    return value if isinstance(value, str) else ""


def is_on(values: Values, name: str) -> bool:
    """Return whether a key is given and true."""
    return name in values and values[name].value is True


def line_of(values: Values, *names: str) -> int:
    """Return the line of the first of these keys that the file has; 0 if it has none."""
    return next((values[name].line for name in names if name in values), 0)


def integer(value: Any) -> int:
    """Read a whole number, also one written as 1e6."""
    if isinstance(value, bool) or not _is_bounded(float(value)):
        raise ValueError(value)
    if float(value) != int(float(value)):
        raise ValueError(value)
    return int(float(value))


def decimal(value: Any) -> float:
    """Read a number."""
    if isinstance(value, bool) or value is None or not _is_bounded(float(value)):
        raise ValueError(value)
    return float(value)


def switch(value: Any) -> bool:
    """Read true or false; null is off. Raise ValueError for anything else, such as "False" or "${x:y}"."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def word(value: Any) -> str:
    """Read a text. Raise ValueError for anything else: a list would become one text."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def chosen(words: Mapping[Any, Any]) -> Read:
    """Return a reader of a word that has another name here."""

    def read(value: Any) -> Any:
        return words[value.lower() if isinstance(value, str) else value]

    return read


def zero_if_off(value: Any) -> int:
    """Read a switch that is off as an interval of 0. Raise ValueError if it is on."""
    if value:
        raise ValueError(value)
    return 0


def take_path_of_tokenizer(findings: Findings, name: str, value: ConfigValue | None) -> None:
    """Take the tokenizer's file where a full path names one; else ask for it."""
    findings.ask_for_tokenizer(
        value.value if value and isinstance(value.value, str) else "",
        value.line if value else 0,
        name,
    )


PERFORMANCE = "how fast, not what: our trainer chooses its own kernels"
LOGGING = "our trainer logs by itself, into the run's folder"
FOLDERS = "every run has folders of its own"
PROFILE = "a profile changes no number of the training"
TOKENIZER_FILE = "the file tokenizer.json in that folder, or the file that you give"
"""Reasons that several programs share."""
