"""A check that names the nodes it is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.planning import Check


@dataclass(frozen=True)
class PlacedCheck(Check):
    """One rule applied to what the nodes answered."""

    where: str = ""
    """The nodes that break the rule, or all that were asked."""
    nodes: tuple[str, ...] = ()
    """The nodes that break the rule, by name. Empty if none does, or where no node is to
    blame."""


@dataclass(frozen=True)
class PlacedRule:
    """What a check asks, and what to do where the answer is wrong."""

    name: str
    text: str
    remedy: str = ""

    def passed(self, value: str, where: str = "") -> PlacedCheck:
        """Return the check that holds."""
        return PlacedCheck(
            self.name,
            "pass",
            value,
            self.text,
            where=where,
        )

    def broken(
        self,
        value: str,
        nodes: Sequence[str] = (),
        *,
        remedy: str = "",
        verdict: str = "fail",
    ) -> PlacedCheck:
        """Return the check that does not hold, with the nodes to blame."""
        where = ", ".join(nodes)
        text = remedy or self.remedy
        return PlacedCheck(
            self.name,
            verdict,
            value,
            self.text,
            text,
            where=where,
            nodes=tuple(nodes),
        )
