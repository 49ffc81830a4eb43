"""Checks: one rule applied to one value, and all failing checks as one error."""

from collections.abc import Iterable
from dataclasses import dataclass

from runbook.core.errors import PlanError

VERDICTS = ("pass", "fail", "warn", "unknown")
"""`unknown`: the rule could not be applied, because a value it needs is not known."""


@dataclass(frozen=True)
class Check:
    """One rule applied to one value.

    `remedy` says what to change where the verdict is not `pass`.
    """

    name: str
    verdict: str
    value: str
    rule: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(
                f"check {self.name!r}: verdict {self.verdict!r} is none of {', '.join(VERDICTS)}"
            )

    def as_text(self) -> str:
        """The check as one line for people."""
        remedy = f" {self.remedy}" if self.remedy and self.verdict != "pass" else ""
        return f"{self.name}: {self.value}. Rule: {self.rule}.{remedy}"


def judge(
    name: str, holds: bool, value: str, rule: str, remedy: str = "", *, otherwise: str = "fail"
) -> Check:
    """Return a check that passes where `holds`, else has the verdict `otherwise` and the remedy."""
    if holds:
        return Check(name, "pass", value, rule)
    return Check(name, otherwise, value, rule, remedy)


def counted(number: int, one: str) -> str:
    """A number and its noun.

    >>> counted(1, "node"), counted(1024, "node")
    ('1 node', '1,024 nodes')
    """
    return f"{number:,} {one}" + ("" if number == 1 else "s")


def raise_if_failed(checks: Iterable[Check]) -> None:
    """Raise one `PlanError` that lists every failing check with its values, rule and remedy."""
    failed = [check for check in checks if check.verdict == "fail"]
    if failed:
        head = "One thing does" if len(failed) == 1 else f"{len(failed)} things do"
        lines = [f"  {number}. {check.as_text()}" for number, check in enumerate(failed, 1)]
        raise PlanError(
            "\n".join([f"{head} not fit together; nothing was written or started:", *lines])
        )
