"""How the configuration of another program is read: its keys, its defaults, and its last step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.rows import KeyRow, is_bounded
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

Values = Mapping[str, ConfigValue]
"""The last value of each dotted key."""


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
    """Rows by precedence: the first row that matches a key applies."""
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
    if name not in values:
        return default
    value = values[name].value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and is_bounded(value) else default


def whole_number(values: Values, name: str, default: int = 0) -> int:
    """Return a whole number of a configuration; the default where it is none."""
    return int(number(values, name, default))


def text(values: Values, *names: str) -> str:
    """Return the first text that a configuration has under these names; empty if it has none."""
    for name in names:
        value = value_of(values, name)
        if isinstance(value, str) and value:
            return value
    return ""


def value_of(values: Values, name: str) -> Any:
    """Return the value of a key; None if the configuration does not have it."""
    return values[name].value if name in values else None


def is_on(values: Values, name: str) -> bool:
    """Return whether a key is given and true."""
    return value_of(values, name) is True


def line_of(values: Values, *names: str) -> int:
    """Return the line of the first of these keys that the file has; 0 if it has none."""
    return next((values[name].line for name in names if name in values), 0)
