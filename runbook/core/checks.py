"""Checks: what a rule says about a value, in readable form."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runbook.core.messages import CoreMessage
from runbook.plan_file.diagnostics import Code, RuleResult
from runbook.plan_file.json_records import NOT_IN_JSON, as_json

VERDICTS = ("pass", "fail", "warn", "unknown")
"""The verdict `unknown` means that the rule could not be applied, because a value is unknown."""


@dataclass(frozen=True)
class Check:
    """A rule applied to a value, in a readable form.

    `remedy` says what to change if the verdict is not `pass`. `code`, `values` and `keys` are for
    programs: plans and records keep only the text.
    """

    name: str
    verdict: str
    value: str
    rule: str
    remedy: str = ""
    code: Code | None = field(
        default=None,
        compare=False,
        metadata=NOT_IN_JSON,
    )
    """Rule code; None if the rule has none, or if the check was read from a file."""
    keys: tuple[str, ...] = field(
        default=(),
        compare=False,
        metadata=NOT_IN_JSON,
    )
    """Keys in the run file whose change can fix a failure, most likely first."""
    values: Mapping[str, object] = field(
        default_factory=dict,
        compare=False,
        metadata=NOT_IN_JSON,
    )
    """Values to show in the rule message, by name; empty without a code."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            message = CoreMessage.NO_VERDICT.fill(
                name=self.name,
                verdict=self.verdict,
                verdicts=", ".join(VERDICTS),
            )
            raise ValueError(message)

    def as_dict(self) -> dict[str, str]:
        """Return the check in the form that plans and records store."""
        content: dict[str, str] = as_json(self)
        return content

    def as_text(self) -> str:
        """Return the check as a readable line."""
        remedy = ""
        if self.remedy and self.verdict != "pass":
            remedy = f" {self.remedy}"
        return f"{self.name}: {self.value}. Rule: {self.rule}.{remedy}"


def judge(
    name: str,
    holds: bool,
    value: str,
    rule: str,
    remedy: str = "",
    *,
    otherwise: str = "fail",
    keys: tuple[str, ...] = (),
) -> Check:
    """Return a check with the verdict `pass` if `holds`, or else `otherwise` and the remedy."""
    if holds:
        return Check(
            name,
            "pass",
            value,
            rule,
            keys=keys,
        )

    return Check(
        name,
        otherwise,
        value,
        rule,
        remedy,
        keys=keys,
    )


def check_of(result: RuleResult, phase: str = "", *, otherwise: str = "fail") -> Check:
    """Return what a rule found, as a check with its text filled in.

    `phase` precedes the name if each phase has its own check. `otherwise` is the verdict if the
    rule does not hold.
    """
    text = result.render()
    return Check(
        name=f"{phase}: {text.title}" if phase else text.title,
        verdict="pass" if result.holds else otherwise,
        value=text.value,
        rule=text.rule,
        remedy="" if result.holds else text.remedy,
        code=result.code,
        values=result.values,
        keys=result.keys,
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "node"), counted(1024, "node")
    ('1 node', '1,024 nodes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"
