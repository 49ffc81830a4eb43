"""A check that names the nodes it concerns."""

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.planning import Check


@dataclass(frozen=True)
class PlacedCheck(Check):
    """One rule, applied to the answers of the nodes."""

    where: str = ""
    """The nodes that break the rule, or all that were asked."""
    nodes: tuple[str, ...] = ()
    """The nodes that break the rule, by name. Empty if none does, or if no node is to blame."""


@dataclass(frozen=True)
class PlacedRule:
    """The question of a check, and the remedy if the answer is wrong."""

    name: str
    text: str
    remedy: str = ""

    def passed(self, value: str, where: str = "") -> PlacedCheck:
        """Return the check as passed."""
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
        """Return the check as failed, with the nodes to blame."""
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
