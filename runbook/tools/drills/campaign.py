"""`runbook drill --campaign 30d RUN`: a month of faults on a simulated clock.

The report also shows which changes would make the month cheaper.

The clock and the faults are simulated, but the decisions are real. The watchdog limits determine
when a hang is noticed, the rules for real jobs decide whether another job follows, and the save
interval in the plan determines how much work a failure costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.core.table import Table
from runbook.core.units import show_duration
from runbook.jobs.job_end import EndCause, JobEnd
from runbook.jobs.job_folder import JobState
from runbook.next_job.decisions import Attempt, decide_restart
from runbook.plan_file.job_ends import Action
from runbook.planning import Plan
from runbook.planning.cost.fault_simulation import (
    HANG,
    MAINTENANCE,
    NETWORK,
    NODE,
    CampaignFailure,
    CampaignParts,
    FaultKind,
    FollowUp,
    NearParts,
    Policy,
    campaigns,
    middle,
    with_interval,
)
from runbook.planning.cost.save_interval import daly
from runbook.planning.useful_time import FaultCosts, fault_costs, possible_copies
from runbook.tools.drills.messages import DrillMessage

SPARES = (0, 1, 2, 4)
CAUSES = {
    HANG.name: EndCause.HUNG,
    NETWORK.name: EndCause.HUNG,
    NODE.name: EndCause.NODE_UNREACHED,
    MAINTENANCE.name: EndCause.NODE_UNREACHED,
}
"""The cause that the restart rules see for each kind of failure; for others, `EndCause.OTHER`.
"""
REMEMBERED = 8
"""How many recent attempts the rules see: more than any limit on restarts.

Older attempts failed at different steps.
"""
FAILED = 1
"""Exit code for a failed job."""


class RealRules:
    """The rules for real jobs, applied to simulated failures."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._attempts: list[Attempt] = []

    def __call__(self, failures: Sequence[CampaignFailure]) -> FollowUp:
        """Return the reaction to the last failure. A manual restart resets the count."""
        self._attempts = self._attempts[-REMEMBERED:]
        self._attempts.append(_attempt(failures[-1], len(failures)))
        decision = decide_restart(self._attempts, self._budget)
        if decision.action is Action.STOP:
            self._attempts.clear()
            return FollowUp(goes_on=False)

        return FollowUp(wait=decision.wait_seconds)


def _attempt(failure: CampaignFailure, number: int) -> Attempt:
    """Return a failure as the rules would read it from job files."""
    return Attempt(
        job=f"04-training-{number}",
        end=JobEnd(JobState.FAILED, FAILED, cause=_cause(failure.kind)),
        began_at=failure.began_at if failure.started else None,
        reached=failure.reached,
        reason=failure.kind.name,
        failure=failure.kind.name,
    )


def _cause(kind: FaultKind) -> EndCause:
    return CAUSES.get(kind.name, EndCause.OTHER)


@dataclass(frozen=True)
class CampaignRow:
    """Median over many simulations of one campaign variant.

    Shares are relative to device time on all nodes, including spare nodes.
    """

    change: str
    useful: float
    low: float
    high: float
    lost_steps: float
    starts: float
    detection: float
    saves: float
    fewer_nodes: float
    """Share of the time lost because steps took longer on fewer nodes than planned."""
    failures: float
    jobs: float
    stops: float
    """How many failures the restart rules leave to a person."""
    near_restarts: float
    """How many restarts used copies in node memory."""
    waiting_days: float
    """Days spent waiting in queues and for a person, while no device is allocated."""


@dataclass(frozen=True)
class Campaign:
    """The table given by a campaign, and its assumptions."""

    days: float
    rows: tuple[CampaignRow, ...]
    assumptions: tuple[str, ...]

    def as_table(self) -> Table:
        """Return the campaign as a table for the terminal."""
        rows = []
        for row in self.rows:
            rows.append(
                {
                    "change": row.change,
                    "useful": f"{row.useful:.1%}",
                    "8 of 10 campaigns": f"{100 * row.low:.1f} to {row.high:.1%}",
                    "steps done again": f"{row.lost_steps:.1%}",
                    "starts": f"{row.starts:.1%}",
                    "noticing": f"{row.detection:.1%}",
                    "saves": f"{row.saves:.1%}",
                    "slower with fewer nodes": f"{row.fewer_nodes:.1%}",
                    "failures": f"{row.failures:,.0f}",
                    "jobs": f"{row.jobs:,.0f}",
                    "left to a person": f"{row.stops:,.0f}",
                    "from node memory": f"{row.near_restarts:,.0f}",
                    "waiting": show_duration(86400 * row.waiting_days),
                }
            )

        title = f"{show_duration(86400 * self.days)} of faults, simulated"
        return Table(rows, title, self.assumptions)


@dataclass(frozen=True)
class CampaignTerms:
    """How long a campaign is, and how its failures are handled."""

    seconds: float
    restarts: int
    """Limit on restarts without a new step."""
    spares: int
    """Spare nodes in the run."""
    queue: float
    """Seconds that a new job waits in the queue."""
    person: float
    """Seconds until a person responds to a failure that the rules do not handle."""
    writes_copies: bool = False
    """Whether the trainer can write copies to node memory."""


def run_campaign(plan: Plan, terms: CampaignTerms) -> Campaign:
    """Simulate the campaign as planned, and with different spare nodes, save intervals and copies."""
    costs = fault_costs(plan)
    if costs is None:
        raise ParamsError(DrillMessage.NO_RATE_OF_FAILURES)

    simulation = _Simulation(costs, terms)
    parts = costs.parts
    rows = [simulation.row(DrillMessage.AS_PLANNED.fill(), parts, terms.spares)]
    for count in SPARES:
        if count != terms.spares:
            rows.append(simulation.row(_spares_text(count), parts, count))

    if costs.fewer_nodes:
        all_or_none = replace(simulation, costs=replace(costs, fewer_nodes=()))
        never = DrillMessage.FEWER_NODES_NEVER.fill()
        rows.append(all_or_none.row(never, parts, terms.spares))

    for text, interval in _other_intervals(costs):
        rows.append(simulation.row(text, with_interval(parts, interval), terms.spares))

    if terms.writes_copies and (terms.spares or costs.fewer_nodes):
        text, near = _other_copies(plan, parts)
        rows.append(simulation.row(text, replace(parts, near=near), terms.spares))

    queue = show_duration(terms.queue)
    person = show_duration(terms.person)
    assumptions = (
        *costs.assumptions,
        f"{queue} in a queue for each new job; {person} until a person responds",
        "If a failure leaves enough healthy nodes, training continues in the allocation; "
        "otherwise it needs a new job.",
    )
    return Campaign(terms.seconds / 86400, tuple(rows), assumptions)


def _other_copies(plan: Plan, parts: CampaignParts) -> tuple[str, NearParts | None]:
    """Return the campaign without copies in node memory, or with them if it has none."""
    if parts.near is not None:
        return DrillMessage.NO_COPIES.fill(), None
    near = possible_copies(plan, parts)
    steps = near.steps_between if near is not None else 0
    return DrillMessage.COPIES_EVERY.fill(steps=counted(steps, "step")), near


def _spares_text(count: int) -> str:
    return counted(count, "spare node") if count else DrillMessage.NO_SPARE_NODE.fill()


def _other_intervals(costs: FaultCosts) -> list[tuple[str, float]]:
    """Return different save intervals to try: half, twice, and Daly's."""
    parts = costs.parts
    planned = parts.step * parts.steps_between_saves
    best = daly(parts.save_stall, costs.seconds_between)
    return [
        (DrillMessage.SAVES_TWICE_AS_OFTEN.fill(), planned / 2),
        (DrillMessage.SAVES_HALF_AS_OFTEN.fill(), planned * 2),
        (DrillMessage.SAVES_BY_DALY.fill(interval=show_duration(best)), best),
    ]


@dataclass(frozen=True)
class _Simulation:
    costs: FaultCosts
    terms: CampaignTerms

    def row(
        self,
        change: str,
        parts: CampaignParts,
        spares: int,
    ) -> CampaignRow:
        """Return a row with medians over many campaigns."""
        accounts = list(
            campaigns(
                parts, lambda: self._policy(spares), self.terms.seconds, self.costs.seconds_between
            )
        )
        share_of_nodes = parts.nodes / (parts.nodes + spares)
        useful = sorted(account.useful(parts.nodes, spares) for account in accounts)
        failures = middle(sorted(float(len(account.failures)) for account in accounts))

        def median(name: str) -> float:
            return middle(sorted(float(getattr(account, name)) for account in accounts))

        def share(name: str) -> float:
            return share_of_nodes * median(name) / self.terms.seconds

        return CampaignRow(
            change=change,
            useful=middle(useful),
            low=useful[len(useful) // 10],
            high=useful[-1 - len(useful) // 10],
            lost_steps=share("lost_steps"),
            starts=share("starts") + share("waiting"),
            detection=share("detection"),
            saves=share("saves"),
            fewer_nodes=share("fewer_nodes"),
            failures=failures,
            jobs=median("jobs"),
            stops=median("stops"),
            near_restarts=median("near_restarts"),
            waiting_days=(median("queued") + median("for_person")) / 86400,
        )

    def _policy(self, spares: int) -> Policy:
        return Policy(
            spares=spares,
            fewer_nodes=self.costs.fewer_nodes,
            detection=self.costs.detection,
            queue=self.terms.queue,
            person=self.terms.person,
            follow=RealRules(self.terms.restarts),
        )
