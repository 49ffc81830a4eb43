"""Simulates failures at a published rate, to estimate how much of the time is useful.

    simulate(parts, policy, seconds, faults)     one campaign: how its time is spent
    expected(parts, policy, seconds, faults)     many campaigns: the median and the 80 % interval

Faults occur at random times. Each failure costs the time needed to notice it, start again, read the
checkpoint, and repeat the steps since the last complete save. Copies in node memory are used if
training continues in the same allocation; when a node is lost, its partner still has its copies.
Time in a queue occupies no device and is counted separately.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True)
class FaultKind:
    """A kind of failure: how often it happens, and what it affects."""

    name: str
    count: int
    """How often `FAULT_SOURCE` reports it."""
    loses_node: bool = False
    """Whether the node must be repaired before it can be used again."""
    hangs: bool = False
    """Whether all processes keep running, and only the watchdog can notice the failure."""
    spoils_copies: bool = False
    """Whether the newest state may be wrong. If so, copies in node memory must not be used."""


GPU = FaultKind("GPU or its memory", 262, loses_node=True)
"""Faulty GPU 148, HBM3 72, SRAM 19, system processor 17, thermal interface 6."""
NODE = FaultKind("another part of a node", 21, loses_node=True)
"""Network card 7, SSD 3, power supply 3, chassis 2, IO expansion board 2, CPU 2, system memory 2."""
NETWORK = FaultKind("switch or cable", 35, hangs=True)
SOFTWARE = FaultKind("software", 56)
"""Bugs 54, dependency 2."""
MAINTENANCE = FaultKind("unplanned maintenance of a host", 32, loses_node=True)
HANG = FaultKind("collective that hangs", 7, hangs=True)
CORRUPTION = FaultKind("wrong numbers without a message", 6, loses_node=True, spoils_copies=True)
FAULT_KINDS = (GPU, NODE, NETWORK, SOFTWARE, MAINTENANCE, HANG, CORRUPTION)
FAULT_SOURCE = "Llama 3 (arXiv 2407.21783), table 5: causes of 419 unexpected stops"


@dataclass(frozen=True)
class NearParts:
    """Costs of keeping copies in node memory, in seconds unless the name says otherwise."""

    steps_between: int
    stall: float
    """Time per copy during which no step runs."""
    lag: float
    """Time from starting a copy until both the rank's own node and the partner have it."""
    resume: float
    """Time to load the state from the copies."""
    has_partner: bool
    """Whether a partner node also has the copies from each node, so that they survive if the node
    is lost.
    """


@dataclass(frozen=True)
class MadeSteps:
    """How many steps and saves an attempt has completed at a certain time."""

    steps: int
    saves: int
    """Number of saves that no longer stall the training."""


@dataclass(frozen=True)
class CampaignParts:
    """Times that make up a training run, in seconds unless the name says otherwise."""

    step: float
    steps_between_saves: int
    save_stall: float
    """Time per save during which no step runs."""
    save_lag: float
    """Time from starting a save until the checkpoint is complete.

    If a failure occurs during that time, training continues from the previous checkpoint.
    """
    start: float
    """Time from launching the processes to the first step, except for reading the checkpoint."""
    resume: float
    """Time to read the checkpoint."""
    nodes: int
    walltime: float = 0.0
    """Time limit for each job; 0 means no limit."""

    near: NearParts | None = None
    """Costs of copies in node memory; None if no copies are kept."""
    between_steps: float = 0.0
    """Time between two steps if nothing is saved."""

    @property
    def copying(self) -> float:
        """Return the time that copies in node memory add to a step, in seconds."""
        if self.near is None:
            return 0.0
        return self.near.stall / self.near.steps_between

    @property
    def pace(self) -> float:
        """Return the seconds from one step to the next, not counting saves to shared storage."""
        return self.step + self.between_steps + self.copying

    @property
    def cycle(self) -> float:
        """Return the seconds from one save to the next."""
        return self.pace * self.steps_between_saves + self.save_stall

    def seconds_to(self, steps: int) -> float:
        """Return the time for this many steps after a start, including the saves between them."""
        saves = max(0, steps - 1) // self.steps_between_saves
        return steps * self.pace + saves * self.save_stall

    def made_in(self, seconds: float, behind_save: int) -> MadeSteps:
        """Return how many steps and saves an attempt has completed after this many seconds.

        The attempt begins `behind_save` steps after a save.
        """
        # The attempt is treated as if it had begun at the save and had already completed these
        # steps.
        seconds += behind_save * self.pace
        cycles = _whole(seconds / self.cycle)
        remainder = seconds - cycles * self.cycle
        steps_behind_save = min(self.steps_between_saves, _whole(remainder / self.pace))
        steps = cycles * self.steps_between_saves + steps_behind_save
        return MadeSteps(max(0, steps - behind_save), cycles)

    def complete_saves(self, seconds: float, behind_save: int) -> int:
        """Return how many checkpoints an attempt has completed after this many seconds."""
        behind_stall = max(0.0, self.save_lag - self.save_stall)
        return self.made_in(max(0.0, seconds - behind_stall), behind_save).saves

    def copied_in(self, seconds: float, behind_save: int) -> int:
        """Return how many steps of an attempt are covered by complete copies in node memory."""
        if self.near is None:
            return 0
        copied = self.made_in(max(0.0, seconds - self.near.lag), behind_save)
        since_save = behind_save + copied.steps
        return max(0, since_save - since_save % self.near.steps_between - behind_save)


@dataclass(frozen=True)
class FollowUp:
    """The reaction to a failure."""

    goes_on: bool = True
    """Whether training continues automatically; False if the rules leave the decision to a person.
    """
    wait: float = 0.0
    """Delay before the next start, in seconds."""


@dataclass(frozen=True)
class CampaignFailure:
    """One failure in a campaign."""

    kind: FaultKind
    job: int
    began_at: int
    """The step the attempt started from."""
    reached: int
    """The last step the attempt completed."""
    started: bool = True
    """Whether training had started; False if the attempt failed before its first step could begin.
    """


def restart_always(_failures: Sequence[CampaignFailure]) -> FollowUp:
    """Restart immediately, regardless of earlier failures."""
    return FollowUp()


@dataclass(frozen=True)
class Policy:
    """How failures are noticed and handled."""

    spares: int = 0
    """Number of spare nodes in the allocation.

    If there are any, the job survives failures while enough nodes are left; then a new job is
    needed.
    """
    fewer_nodes: tuple[int, ...] = ()
    """Smaller numbers of nodes, in descending order, on which training may continue in the
    allocation.
    """
    detection: Mapping[str, float] = field(default_factory=dict)
    """Seconds until a failure is noticed, by kind; kinds that are not listed are noticed
    immediately.
    """
    queue: float = 0.0
    """Seconds a new job waits in the queue. No device is occupied during that time."""
    person: float = 0.0
    """Seconds until somebody responds, if the rules leave the decision to a person.

    No device is occupied during that time.
    """
    follow: Callable[[Sequence[CampaignFailure]], FollowUp] = restart_always

    @property
    def restarts_here(self) -> bool:
        """Return whether a job handles failures within its allocation."""
        return self.spares > 0 or bool(self.fewer_nodes)

    def nodes_to_train(self, planned: int, healthy: int) -> int:
        """Return how many of the healthy nodes are used for training, or 0 if there are too few.

        >>> Policy(fewer_nodes=(12, 8)).nodes_to_train(16, 15)
        12
        """
        for nodes in (planned, *self.fewer_nodes):
            if nodes <= healthy:
                return nodes
        return 0


class FaultSource(Protocol):
    """A source of failures."""

    def after(
        self,
        held: float,
        first_step: int,
        training_from: float,
    ) -> tuple[float, FaultKind]:
        """Return when the next failure occurs and which kind it is, for an attempt that begins now.

        `first_step` is the step the attempt continues from, and `training_from` is when training
        begins.
        """
        ...

    def quiet_until(self, held: float) -> float:
        """Return a time before the next failure.

        Return `held` if the next failure depends on the completed steps.
        """
        ...


class PoissonFaults:
    """Failures at a constant rate, of the kinds in `FAULT_KINDS`."""

    def __init__(self, seconds_between: float, draw: random.Random) -> None:
        self._rate = 1.0 / seconds_between
        self._draw = draw
        self._weights = [kind.count for kind in FAULT_KINDS]
        self._next = 0.0
        self._kind = FAULT_KINDS[0]
        self._draw_next()

    def after(
        self,
        held: float,
        first_step: int,
        training_from: float,
    ) -> tuple[float, FaultKind]:
        """Return when the next failure occurs and which kind it is.

        Failures in the past are skipped.
        """
        while self._next <= held:
            self._draw_next()
        return self._next, self._kind

    def quiet_until(self, held: float) -> float:
        """Return the time of the next failure, or `held` if that is later."""
        return max(held, self._next)

    def _draw_next(self) -> None:
        """Draw when the next failure occurs and which kind it is.

        Neither depends on how many attempts have been made so far.
        """
        self._next += self._draw.expovariate(self._rate)
        (self._kind,) = self._draw.choices(FAULT_KINDS, self._weights)


@dataclass
class Account:
    """How the time in a campaign was spent, in seconds.

    Devices are occupied during these times unless the name says otherwise.
    """

    held: float = 0.0
    productive: float = 0.0
    starts: float = 0.0
    detection: float = 0.0
    lost_steps: float = 0.0
    saves: float = 0.0
    between_steps: float = 0.0
    fewer_nodes: float = 0.0
    """Additional step time because training used fewer nodes than planned."""
    waiting: float = 0.0
    """Time spent between two attempts, waiting for a node to recover."""
    queued: float = 0.0
    """Time in queues, where no device is occupied."""
    for_person: float = 0.0
    """Time until somebody responded, during which no device is occupied."""
    jobs: int = 1
    steps: int = 0
    stops: int = 0
    """Number of failures left for a person to handle."""
    near_restarts: int = 0
    """Number of starts from copies in node memory."""
    failures: list[CampaignFailure] = field(default_factory=list)

    def useful(self, nodes: int, spares: int) -> float:
        """Return the share of device time (including spare nodes) spent on useful steps."""
        if not self.held:
            return 0.0
        return self.productive / self.held * nodes / (nodes + spares)


_JOB_TOTALS = (
    "held",
    "productive",
    "starts",
    "lost_steps",
    "saves",
    "between_steps",
    "fewer_nodes",
    "queued",
    "jobs",
    "steps",
)
"""Fields of an `Account` that grow during a job without a failure."""


def simulate(
    parts: CampaignParts,
    policy: Policy,
    seconds: float,
    faults: FaultSource,
    steps: int = 0,
) -> Account:
    """Simulate one campaign.

    The campaign ends when devices have been occupied for `seconds`, or when `steps` steps are done
    (0 means no limit).
    """
    campaign = _Campaign(parts, policy, seconds, steps)
    while not campaign.is_over:
        begun = replace(campaign.account)
        campaign.attempt(faults)
        if campaign.is_between_jobs:
            campaign.repeat_job(begun, faults.quiet_until(campaign.account.held))

    return campaign.account


class _Campaign:
    """A campaign that is being simulated."""

    def __init__(
        self,
        parts: CampaignParts,
        policy: Policy,
        seconds: float,
        steps: int,
    ) -> None:
        self.account = Account()
        self._planned = parts
        self._parts = parts
        """The times that apply to the current attempt.

        With fewer nodes, steps take longer than planned.
        """
        self._policy = policy
        self._seconds = seconds
        self._steps = steps
        self._job_began = 0.0
        self._healthy_nodes = parts.nodes + policy.spares
        self._shared_step = 0
        """Step at which the newest complete checkpoint on the shared file system was saved."""

    @property
    def is_between_jobs(self) -> bool:
        """Return whether a new job starts next; always False for a campaign with a step limit."""
        return not self._steps and self.account.held == self._job_began

    @property
    def is_over(self) -> bool:
        """Return whether the time has run out or every step is done."""
        all_done = self._steps > 0 and self.account.steps >= self._steps
        return all_done or self.account.held >= self._seconds

    def attempt(self, faults: FaultSource) -> None:
        """Launch the training, and run it until it fails, or until its job or the campaign ends."""
        account = self.account
        parts = self._parts
        training_from = account.held + parts.start + self._resume_seconds()
        if self._last_save_at() < training_from + parts.step:
            # Another attempt in this job would not complete a step
            self._begin_job()
            parts = self._parts
            training_from = account.held + parts.start + self._resume_seconds()

        stop_at = min(self._seconds, self._last_save_at(), self._done_at(training_from))
        failure_at, kind = faults.after(account.held, account.steps, training_from)
        if failure_at < stop_at:
            self._fail(training_from, failure_at, kind)
            return

        trained = max(0.0, stop_at - training_from)
        made = parts.made_in(trained, self._steps_behind_save)
        self._account_for(training_from, stop_at, made)
        self._shared_step = account.steps
        # The job has run out of time: it saves, and the next job starts.
        if not self.is_over:
            account.held += parts.save_lag
            account.saves += parts.save_lag
            self._begin_job()

    @property
    def _steps_behind_save(self) -> int:
        """Return how many steps ahead of the shared checkpoint the next attempt starts."""
        return self.account.steps - self._shared_step

    def _resume_seconds(self) -> float:
        """Return the seconds the next attempt needs to load a checkpoint or copy."""
        if not self.account.steps:
            return 0.0
        near = self._parts.near
        if near is not None and self._steps_behind_save:
            return near.resume
        return self._parts.resume

    def _fail(
        self,
        training_from: float,
        failure_at: float,
        kind: FaultKind,
    ) -> None:
        """End the current attempt with this failure, and handle the failure."""
        account = self.account
        parts = self._parts
        first_step = account.steps
        behind_save = self._steps_behind_save
        trained = max(0.0, failure_at - training_from)
        made = parts.made_in(trained, behind_save)
        started = failure_at >= training_from
        account.failures.append(
            CampaignFailure(
                kind,
                account.jobs,
                first_step,
                first_step + made.steps,
                started,
            )
        )
        follow_up = self._policy.follow(account.failures)
        stays = self._stays_in_allocation(kind, follow_up)
        saves = parts.complete_saves(trained, behind_save)
        self._shared_step += saves * parts.steps_between_saves
        kept = MadeSteps(self._shared_step - first_step, saves)
        if stays and self._has_copies(kind) and not self._changes_nodes(kind):
            copied = parts.copied_in(trained, behind_save)
            if copied > kept.steps:
                kept = MadeSteps(copied, made.saves)
                account.near_restarts += 1

        self._account_for(training_from, failure_at, kept)
        self._answer(kind, follow_up, stays=stays)

    def _has_copies(self, kind: FaultKind) -> bool:
        """Return whether the nodes in the allocation still have all copies after this failure."""
        near = self._parts.near
        if near is None or kind.spoils_copies:
            return False
        return near.has_partner or not kind.loses_node

    def _stays_in_allocation(self, kind: FaultKind, follow_up: FollowUp) -> bool:
        can_train = self._nodes_after(kind) > 0
        return self._policy.restarts_here and can_train and follow_up.goes_on

    def _nodes_after(self, kind: FaultKind) -> int:
        """Return how many nodes could train in the allocation after this failure; 0 if too few."""
        healthy = self._healthy_nodes - int(kind.loses_node)
        return self._policy.nodes_to_train(self._planned.nodes, healthy)

    def _changes_nodes(self, kind: FaultKind) -> bool:
        """Return whether the number of training nodes changes after this failure.

        Copies in node memory belong to ranks, so they cannot be used with a different number of
        ranks.
        """
        return self._nodes_after(kind) != self._parts.nodes

    def _train_with(self, nodes: int) -> None:
        """Make the next attempt train on this many nodes."""
        planned = self._planned
        step = planned.step * planned.nodes / nodes
        self._parts = replace(planned, step=step, nodes=nodes)

    def repeat_job(self, begun: Account, quiet_until: float) -> None:
        """Account for all identical jobs until `quiet_until` at once.

        Each job repeats the attempt that was just simulated; `begun` is the account before that
        attempt.

        Between two failures there may be thousands of one-hour jobs that resume, train and save in
        the same way.
        """
        account = self.account
        if account.jobs - begun.jobs != 1:
            return  # Some attempts first end a job that has no time left for another step.
        job_seconds = account.held - begun.held
        # The first job reads no checkpoint, and a job with a failure has a different length.
        whole_job = self._last_save_at() + self._parts.save_lag - account.held
        if not begun.steps or not math.isclose(job_seconds, whole_job):
            return
        count = math.floor((min(quiet_until, self._seconds) - account.held) / job_seconds) - 1
        if count < 1:
            return
        for name in _JOB_TOTALS:
            of_a_job = getattr(account, name) - getattr(begun, name)
            setattr(account, name, getattr(account, name) + count * of_a_job)

        self._job_began = account.held
        self._shared_step = account.steps

    def _answer(
        self,
        kind: FaultKind,
        follow_up: FollowUp,
        *,
        stays: bool,
    ) -> None:
        """Add the time to notice the failure, and restart in the allocation or in a new job."""
        account = self.account
        noticed = self._policy.detection.get(kind.name, 0.0)
        account.detection += noticed
        account.held += noticed
        if stays:
            self._train_with(self._nodes_after(kind))
            self._healthy_nodes -= int(kind.loses_node)
            account.waiting += follow_up.wait
            account.held += follow_up.wait
            return

        if not follow_up.goes_on:
            account.stops += 1
            account.for_person += self._policy.person

        account.queued += follow_up.wait
        self._begin_job()

    def _begin_job(self) -> None:
        self._lose_copies()
        self.account.jobs += 1
        self.account.queued += self._policy.queue
        self._job_began = self.account.held
        self._parts = self._planned
        self._healthy_nodes = self._planned.nodes + self._policy.spares

    def _lose_copies(self) -> None:
        """Fall back to the shared checkpoint, since a new job may get different nodes."""
        account = self.account
        steps_lost = self._steps_behind_save
        planned_seconds = steps_lost * self._planned.step
        longer = steps_lost * (self._parts.step - self._planned.step)
        account.productive -= planned_seconds
        account.fewer_nodes -= longer
        account.lost_steps += planned_seconds + longer
        account.steps = self._shared_step

    def _last_save_at(self) -> float:
        """Return when the job stops for the last save, in seconds for which devices were held.

        The job always completes at least one step before this save.
        """
        parts = self._parts
        if not parts.walltime:
            return math.inf
        at_least = parts.start + parts.resume + parts.step
        return self._job_began + max(at_least, parts.walltime - 2 * parts.save_lag)

    def _done_at(self, training_from: float) -> float:
        """Return when the last step is done, in seconds for which devices were held."""
        if not self._steps:
            return math.inf
        # The attempt is treated as if it had begun at the newest save, as in `made_in`.
        behind_save = self._steps_behind_save
        steps_since_save = behind_save + self._steps - self.account.steps
        seconds = self._parts.seconds_to(steps_since_save) - behind_save * self._parts.pace
        return training_from + seconds

    def _account_for(
        self,
        training_from: float,
        until: float,
        kept: MadeSteps,
    ) -> None:
        """Account for one attempt, from launch to end, and for the steps it completed for good.

        The number of these steps is negative if the attempt began from copies that are now lost,
        because then steps from earlier attempts are lost too.
        """
        account = self.account
        parts = self._parts
        trained = max(0.0, until - training_from)
        account.starts += until - account.held - trained
        productive = kept.steps * self._planned.step
        longer = kept.steps * (parts.step - self._planned.step)
        copying = max(0, kept.steps) * parts.copying
        saves = kept.saves * parts.save_stall + copying
        between_steps = max(0, kept.steps) * parts.between_steps
        account.productive += productive
        account.saves += saves
        account.between_steps += between_steps
        account.fewer_nodes += longer
        account.lost_steps += trained - productive - longer - saves - between_steps
        account.steps += kept.steps
        account.held = until


def _whole(ratio: float) -> int:
    """Return the integer part of a ratio, which rounding may place just below a whole number."""
    return math.floor(ratio + 1e-9)


@dataclass(frozen=True)
class UsefulTime:
    """How much of the training time is expected to be useful."""

    median: float
    low: float
    high: float
    """Upper end of the interval: eight in ten campaigns are between `low` and `high`."""
    of_training_nodes: float
    """The median share if only the training nodes are counted, not the spare nodes."""
    failures: float
    """Median number of failures before all steps are done.

    `jobs` and `days` also cover all steps.
    """
    jobs: float
    days: float
    """Days that devices are allocated until all steps are done."""


CAMPAIGNS = 101
"""Usual number of campaigns.

With this many, the error in the median is about a tenth of the interval.
"""
MOST_FAILURES = 12_000
"""Most failures simulated for one estimate, over all campaigns.

If there would be more, fewer campaigns are run (but at least eleven), since many failures average
out.
"""


def num_campaigns(seconds: float, seconds_between: float) -> int:
    """Return how many campaigns to simulate.

    >>> num_campaigns(54 * 86400, 11_000), num_campaigns(3 * 365 * 86400, 3_000)
    (28, 11)
    """
    failures = seconds / seconds_between
    return int(min(CAMPAIGNS, max(11.0, MOST_FAILURES / max(1.0, failures))))


def campaigns(
    parts: CampaignParts,
    make_policy: Callable[[], Policy],
    seconds: float,
    seconds_between: float,
) -> Iterator[Account]:
    """Simulate several campaigns with fixed seeds.

    Each campaign has its own policy, because policies keep state.
    """
    for number in range(num_campaigns(seconds, seconds_between)):
        faults = PoissonFaults(seconds_between, random.Random(number))
        yield simulate(parts, make_policy(), seconds, faults)


def expected(
    parts: CampaignParts,
    policy: Policy,
    training_seconds: float,
    seconds_between: float,
) -> UsefulTime:
    """Return the useful share for a training run with `training_seconds` spent on steps."""
    accounts = list(campaigns(parts, lambda: policy, training_seconds, seconds_between))
    shares = sorted(account.useful(parts.nodes, policy.spares) for account in accounts)
    median = middle(shares)
    without_spares = middle(sorted(account.useful(1, 0) for account in accounts))
    longer = 1.0 / without_spares if without_spares else float("inf")
    return UsefulTime(
        median=median,
        low=shares[len(shares) // 10],
        high=shares[-1 - len(shares) // 10],
        of_training_nodes=without_spares,
        failures=longer * middle(sorted(float(len(account.failures)) for account in accounts)),
        jobs=longer * middle(sorted(float(account.jobs) for account in accounts)),
        days=longer * training_seconds / 86400,
    )


def middle(values: Sequence[float]) -> float:
    """Return the middle element in a sorted sequence."""
    return values[len(values) // 2]


def with_interval(parts: CampaignParts, seconds: float) -> CampaignParts:
    """Return the same training run, but with saves about this many seconds apart."""
    return replace(parts, steps_between_saves=max(1, round(seconds / parts.step)))
