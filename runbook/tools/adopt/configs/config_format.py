"""Rules for reading configurations for other programs: keys, defaults, and a final computation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.rows import KeyRow, is_bounded
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

Values = Mapping[str, ConfigValue]
"""The last value set for each key, by dotted key."""


@dataclass(frozen=True)
class OtherProgram:
    """A difference that exists because our trainer is a different program."""

    topic: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class ConfigFormat:
    """Rules for reading configurations for one program."""

    program: str
    """What the program is usually called."""
    rows: tuple[KeyRow, ...]
    """Rows for all known keys. The first row that matches a key applies."""
    defaults: Mapping[str, Any]
    """Defaults in the program, by dotted key."""
    kind: ModelKind
    """The model type that this program trains by default."""
    differences: tuple[OtherProgram, ...]
    finish: Callable[[Values, Findings, ModelKind], None]
    """Computes values that depend on several keys, such as the global batch."""
    signs: frozenset[str] = field(default_factory=frozenset)
    """Keys that identify files for the program, as dotted keys or sections with a trailing dot.

    Two are enough.
    """

    def row(self, name: str) -> KeyRow | None:
        """Return the row that matches a key, or None."""
        return next((row for row in self.rows if row.matches(name)), None)

    def has_section(self, name: str) -> bool:
        """Return whether the program has keys below a name: `train` for `train.train_iters`."""
        return any(row.name.startswith(f"{name}.") for row in self.rows)


def number(values: Values, name: str, default: float = 0) -> float:
    """Return the value if it is a finite number, or else the default."""
    if name not in values:
        return default
    value = values[name].value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and is_bounded(value) else default


def whole_number(values: Values, name: str, default: int = 0) -> int:
    """Return the value if it is a whole number, or else the default."""
    return int(number(values, name, default))


def text(values: Values, *names: str) -> str:
    """Return the first string that a configuration has under one of these names, or ''."""
    for name in names:
        value = value_of(values, name)
        if isinstance(value, str) and value:
            return value
    return ""


def value_of(values: Values, name: str) -> Any:
    """Return the value for a key, or None if the configuration does not have it."""
    return values[name].value if name in values else None


def is_on(values: Values, name: str) -> bool:
    """Return whether a key is set and true."""
    return value_of(values, name) is True


def line_of(values: Values, *names: str) -> int:
    """Return the line with the first of these keys set by the file, or 0."""
    return next((values[name].line for name in names if name in values), 0)
