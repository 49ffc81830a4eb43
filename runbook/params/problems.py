"""What is wrong with parameters, gathered so that all of it is said at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runbook.errors import ParamsError
from runbook.params.secrets import find_token, mask
from runbook.params.writing import write_scalar


@dataclass(frozen=True)
class Problem:
    """One thing that cannot be used: which value, where it was written, the rule and the remedy."""

    key: str
    where: str
    rule: str
    """What must hold, and what to do instead."""

    value: Any = ...
    """`...` when there is none to show."""

    def text(self) -> str:
        """One sentence or two.

        >>> Problem("parallel.tensor", "params/x.yaml:4", "must be more than 0.", 0).text()
        'parallel.tensor = 0 (params/x.yaml:4): must be more than 0.'
        """
        shown = "" if self.value is ... else f" = {show(self.value)}"
        return mask(f"{self.key}{shown} ({self.where}): {self.rule}")


def show(value: Any) -> str:
    """A value as one would write it, shortened.

    >>> show(True), show("12"), show("bf16"), show({"a": 1})
    ('true', '"12"', 'bf16', '{a: 1}')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {show(item)}" for key, item in list(value.items())[:4]) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(show(item) for item in list(value)[:4]) + "]"
    elif isinstance(value, str):
        text = value if value and not value[0].isdigit() and value == value.strip() else f'"{value}"'
    else:
        text = write_scalar(value) if isinstance(value, float) else str(value)
    text = mask(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Refused(ParamsError):
    """Parameters with one or more problems, each told once."""

    def __init__(self, title: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        texts = list(dict.fromkeys(problem.text() for problem in problems))
        if len(texts) == 1:
            super().__init__(f"{title}: {texts[0]} Nothing was written.")
            return
        lines = [f"{title}: {len(texts)} things cannot be used. Nothing was written."]
        lines += [f"  {number}. {text}" for number, text in enumerate(texts, 1)]
        super().__init__("\n".join(lines))


def token_problem(key: str, where: str) -> Problem:
    """A secret where only its name may stand."""
    rule = (
        "looks like a real secret; it would end up in records. Take it out (and revoke it if this was shared), "
        "and write env:NAME or file:PATH."
    )
    return Problem(key, where, rule)


def tokens_in(text: str, where: str) -> list[Problem]:
    """Every line of a file that holds what looks like a real secret, comments included."""
    return [
        token_problem(line.partition(":")[0].strip(" #-") if ":" in line else "this line", f"{where}:{number}")
        for number, line in enumerate(text.splitlines(), 1)
        if find_token(line)
    ]
