"""What was found in a script: values for the run file, what is left over, what the runbook does by itself, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runbook.adopt.marks import Word


@dataclass(frozen=True)
class Taken:
    """A value of the run file, and where it comes from."""

    key: str
    value: Any
    line: int
    """0: from no line of the script."""
    source: str
    """The option or variable, or why there is a value without one."""


@dataclass(frozen=True)
class Left:
    """Something that the run file has no place for."""

    line: int
    text: str
    why: str


@dataclass(frozen=True)
class Found:
    """One of the documents' errors, in this script."""

    number: int
    line: int
    what: str
    remedy: str


@dataclass
class Findings:
    """Everything that is told of a script, in the order in which it was found."""

    taken: dict[str, Taken] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    own: list[Left] = field(default_factory=list)
    """What needs no key: the runbook does it by itself."""
    notes: list[str] = field(default_factory=list)

    def take(self, key: str, value: Any, line: int, source: str, *, over: bool = True) -> None:
        """A value; with `over` off, one that is there already stays."""
        if over or key not in self.taken:
            self.taken[key] = Taken(key, value, line, source)

    def drop(self, *keys: str) -> None:
        """Take values out again."""
        for key in keys:
            self.taken.pop(key, None)

    def leave(self, line: int, text: str, why: str) -> None:
        """Something that is not carried over."""
        one = Left(line, text, why)
        if one not in self.left:
            self.left.append(one)

    def does(self, line: int, text: str, why: str) -> None:
        """Something that the runbook does by itself."""
        self.own.append(Left(line, text, why))

    def value(self, key: str, default: Any = None) -> Any:
        """A value that was taken."""
        return self.taken[key].value if key in self.taken else default

    def number(self, key: str, default: int = 0) -> int:
        """A whole number that was taken."""
        value = self.value(key, default)
        return value if isinstance(value, int) else default

    def read(self, key: str, word: Word, source: str, read: Callable[[str], Any], *, over: bool = True) -> None:
        """Take a word as a value; one that is unknown or of another kind is left, with the reason."""
        text = f"{source} {word.shown}"
        if not word.known:
            self.leave(word.line, text, f"its value is known only while the script runs: set {key}")
            return
        try:
            value = read(word.text.strip())
        except (ValueError, KeyError):
            self.leave(word.line, text, f"{word.shown!r} is no value for {key}")
            return
        self.take(key, value, word.line, source, over=over)


def whole(text: str) -> int:
    """A whole number, also as 1e3 or 1_000."""
    value = float(text.replace("_", ""))
    if value != int(value):
        raise ValueError(text)
    return int(value)


def truth(text: str) -> bool:
    """True and False as shells, Hydra and people write them."""
    return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}[
        text.lower()
    ]


def minutes(text: str) -> int:
    """Seconds of a number of minutes."""
    return round(float(text) * 60)


def one_of(names: Mapping[str, Any]) -> Callable[[str], Any]:
    """A reader of words that stand for other words."""
    return lambda text: names[text.strip("\"'").lower()]
