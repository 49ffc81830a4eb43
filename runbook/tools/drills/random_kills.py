"""Fifty kills at random times during a training run.

The training run must finish without losing or repeating samples.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median
from typing import Any

import psutil

from runbook.core.files import Tail
from runbook.core.processes import wait_until
from runbook.jobs.warm_trainer import still_runs
from runbook.planning.cost.fault_simulation import (
    SOFTWARE,
    Account,
    CampaignParts,
    FaultKind,
    Policy,
    simulate,
)
from runbook.results.history import Step, read_events, read_metrics
from runbook.results.wall_time import WallTime, account_wall_time
from runbook.tools.drills.bench import Bench, DrillEnding, DrillRun, MeasuredValue
from runbook.tools.drills.messages import DrillMessage

KILLS = 50
STEPS = 1000
SAVE_INTERVAL = 10
BATCH = 4
GOODPUT_BAND = (80.0, 105.0)
"""Usual goodput as a percentage of the ideal.

On a machine with two cores, the values were 94 and 95 without other work, and 90 and 91 with other
work.
"""
CALM_STEPS = 60
"""How many steps at the end have no kills, so that no kill comes too late."""
LONGEST_DELAY_SECONDS = 0.8
"""Longest delay between the step that a kill waits for and the kill itself.

Because of the delay, a kill can hit any point in a step, a save or a start-up.
"""
STUCK_SECONDS = 120
PLANNED_RESTARTS = "term:rank=0,step=12,job=04-training; " + "; ".join(
    f"term:rank=0,step={step},job=04-training-{number}"
    for number, step in enumerate((20, 28, 36, 44), 2)
)
"""Planned restarts in a training run without other faults, before the kills and again afterwards.

A single restart takes between 0.5 and 1.2 s.
"""


@dataclass(frozen=True)
class Kill:
    """Records which process in a job was killed, and when."""

    job: str
    victim: str
    at: float


@dataclass(frozen=True)
class PlannedKill:
    """A kill that waits for a training step, and then for some seconds."""

    step: int
    delay_seconds: float


def plan_kills(seed: int, kills: int, steps: int) -> list[PlannedKill]:
    """Draw the times when processes are killed in a training run of this many steps, in order."""
    draw = random.Random(seed)
    after_steps = sorted(draw.randrange(2, steps - CALM_STEPS) for _ in range(kills))
    return [PlannedKill(step, draw.uniform(0, LONGEST_DELAY_SECONDS)) for step in after_steps]


@dataclass
class Killer:
    """Kills a random training process at each planned time."""

    case: DrillRun
    kills: int
    steps: int
    seed: int
    planned: list[PlannedKill] = field(init=False)
    done: list[Kill] = field(default_factory=list)
    _metrics: Tail = field(init=False)
    """Each row is read only once.

    Reading all rows every time would take processor time away from the measured training.
    """

    def __post_init__(self) -> None:
        """Plan the kills, and prepare to read the metrics file, which may not exist yet."""
        self.planned = plan_kills(self.seed, self.kills, self.steps)
        self._metrics = Tail(self.case.metrics_path)

    def run(self) -> None:
        """Run jobs until every planned kill has happened. Each kill ends one job."""
        draw = random.Random(self.seed)
        for kill in self.planned:
            step = kill.step
            if not self._wait(lambda step=step: self._furthest() >= step, 20 * STUCK_SECONDS):  # type: ignore[misc]
                return
            time.sleep(kill.delay_seconds)
            job = self._kill_one(draw)
            if not self._wait(lambda job=job: self._newest() != job, STUCK_SECONDS):  # type: ignore[misc]
                return

    @staticmethod
    def _wait(condition: Callable[[], bool], seconds: float) -> bool:
        return wait_until(condition, seconds, interval=0.02)

    def _kill_one(self, draw: random.Random) -> str:
        end = time.monotonic() + STUCK_SECONDS
        while time.monotonic() < end:
            job = self._newest()
            victims = self._victims()
            if victims:
                name, victim = draw.choice(victims)
                at = time.time()
                try:
                    victim.kill()
                except psutil.NoSuchProcess:
                    continue

                self.done.append(Kill(job, name, at))
                return job

            time.sleep(0.005)

        return self._newest()

    def _victims(self) -> list[tuple[str, psutil.Process]]:
        """Return the running processes in the job: its script and its ranks."""
        victims = []
        try:
            script = self.case.script()
            if not still_runs(script):
                return []
            victims.append(("script", script))
            ranks = psutil.Process(self.case.bench.warm.pid).children()
            job_ranks = [rank for rank in ranks if rank.create_time() > script.create_time()]
            victims += [("rank", rank) for rank in job_ranks if still_runs(rank)]
        except (psutil.Error, AssertionError):
            pass

        return victims

    def _newest(self) -> str:
        try:
            return self.case.job().path.name
        except AssertionError:  # No job exists yet.
            return ""

    def _furthest(self) -> int:
        return max((int(row["iteration"]) for row in self._metrics.read()[-200:]), default=0)


def random_kills(bench: Bench) -> DrillEnding:
    """Send fifty SIGKILLs at random moments to a rank or to the job script."""
    return kill_often(bench, KILLS, STEPS)


def kill_often(bench: Bench, kills: int, steps: int) -> DrillEnding:
    """Kill a training run `kills` times over `steps` steps, and check that nothing is lost.

    Goodput is measured, but not judged.
    """
    set_words = (
        f"training.iterations={steps}",
        f"training.save_interval={SAVE_INTERVAL}",
        "training.log_interval=50",
    )
    ending = DrillEnding(
        f"{kills} SIGKILLs at random moments of {steps} steps, to ranks and scripts"
    )
    calm = DrillRun(bench, f"calm-{steps}", *set_words)
    # A training run without faults shows what a restart costs.
    failure = calm.train(PLANNED_RESTARTS)
    ending.rule(not failure, "the undisturbed training finished", failure[:300])
    case = DrillRun(bench, f"killed-{kills}", *set_words, f"jobs.training.restarts={kills}")
    killer = Killer(case, kills, steps, int.from_bytes(os.urandom(4), "big"))
    thread = threading.Thread(target=killer.run, daemon=True)
    thread.start()
    wait_until(lambda: thread.is_alive(), 1)
    failure = case.train()
    thread.join(5)
    ending.rule(not failure and case.done(), "the training finished", failure[:300])
    ending.rule(
        len(killer.done) == kills,
        f"{len(killer.done)} kills (seed {killer.seed}) in {len(case.job_names())} jobs",
    )
    ending.final_loss_equal = case.losses() == calm.losses()
    ending.rule(ending.final_loss_equal, "every loss equals that of the undisturbed training run")
    fault = broken_order(case.rows(), steps)
    ending.rule(
        not fault, fault or "no sample repeated or skipped in the data the weights were trained on"
    )
    ending.steps_lost = case.steps_lost()
    ending.rule(
        ending.steps_lost <= SAVE_INTERVAL, f"at most {ending.steps_lost} steps lost at once"
    )
    ending.rule(not case.parts(), "no unfinished files left")
    ending.action = "resumed from the newest complete checkpoint each time"
    after = DrillRun(
        bench, f"calm-after-{steps}", *set_words, f"training.iterations={SAVE_INTERVAL * 5}"
    )
    ending.rule(
        not after.train(PLANNED_RESTARTS), "planned restarts were measured before and after"
    )
    measure(ending, killer, steps, [calm, after])
    return ending


def measure(
    ending: DrillEnding,
    killer: Killer,
    steps: int,
    calm_runs: Sequence[DrillRun],
) -> None:
    """Record detection times, and goodput relative to the ideal for the same number of kills."""
    calm = [account_of(run) for run in calm_runs]
    case = killer.case
    delays = sorted(detections(killer.done, case.events("ended")))
    if delays:
        ending.detected_after_s = delays[-1]
        ending.figures.append(
            MeasuredValue(
                "median detection of a dead process",
                delays[len(delays) // 2],
                0,
                0.5,
                "s",
            )
        )
        ending.figures.append(
            MeasuredValue(
                "slowest detection",
                delays[-1],
                0,
                5,
                "s",
            )
        )

    account = account_of(case)
    costs = costs_of(calm, killer.done, case)
    ideal = costs.goodput(account, steps)
    goodput = account.goodput or 0.0
    of_ideal = f"% of the ideal {ideal:.1%}"
    ending.figures.append(
        MeasuredValue(f"goodput {goodput:.1%}:", 100 * goodput / ideal, *GOODPUT_BAND, of_ideal)
    )
    ending.figures.append(
        MeasuredValue(
            "planned restart",
            costs.restart_seconds,
            0.5,
            1.2,
            "s",
        )
    )
    parts = campaign_parts(costs, calm[0], [steps_of(run) for run in calm_runs])
    noticed = mean(delays or [0.0])
    simulated_account = simulated_campaign(killer.planned, parts, noticed, steps)
    simulated = simulated_account.useful(nodes=1, spares=0)
    other_draws = []
    for number in range(1, OTHER_DRAWS + 1):
        kills = plan_kills(killer.seed + number, killer.kills, steps)
        campaign = simulated_campaign(kills, parts, noticed, steps)
        other_draws.append(campaign.useful(nodes=1, spares=0))

    points = 100 * (simulated - goodput)
    ending.figures.append(
        MeasuredValue(
            f"simulated goodput {simulated:.1%}:",
            points,
            -2,
            2,
            "points from it",
        )
    )
    ending.extra |= {
        "goodput": round(goodput, 4),
        "ideal_goodput": round(ideal, 4),
        "simulated_goodput": round(simulated, 4),
        "simulated_goodput_of_other_kills": [
            round(min(other_draws), 4),
            round(median(other_draws), 4),
            round(max(other_draws), 4),
        ],
        "goodput_of_ideal": round(goodput / ideal, 4),
        "wall_seconds": round(account.wall_seconds, 1),
        "parts_seconds": {name: round(seconds, 2) for name, seconds in account.parts.items()},
        "simulated_parts_seconds": {
            name: round(seconds, 2)
            for name, seconds in vars(simulated_account).items()
            if name in SIMULATED_PARTS
        },
        "ideal_parts": {name: round(value, 3) for name, value in vars(costs).items()},
        "detection_seconds": {
            "median": round(delays[len(delays) // 2], 2),
            "worst": round(delays[-1], 2),
        }
        if delays
        else {},
    }


class KillsAfterSteps:
    """The kills in the drill, as input to the `runbook drill --campaign` simulation.

    Each kill waits for a step, and then for a random delay.
    """

    def __init__(self, parts: CampaignParts, kills: Sequence[PlannedKill]) -> None:
        self._parts = parts
        self._waiting = list(kills)
        self._furthest = 0

    def after(
        self,
        held_seconds: float,
        first_step: int,
        training_from: float,
    ) -> tuple[float, FaultKind]:
        """Return when the next kill happens, for an attempt that starts at `held_seconds`."""
        if not self._waiting:
            return math.inf, SOFTWARE
        kill = self._waiting.pop(0)
        waits_from = held_seconds
        if kill.step > self._furthest:
            waits_from = training_from + self._parts.seconds_to(kill.step - first_step)
        killed_at = waits_from + kill.delay_seconds
        trained = max(0.0, killed_at - training_from)
        # Without copies in node memory, each attempt starts from a save.
        progress = self._parts.made_in(trained, behind_save=0)
        self._furthest = max(self._furthest, first_step + progress.steps)
        return killed_at, SOFTWARE

    def quiet_until(self, held_seconds: float) -> float:
        """Return `held_seconds`, because a kill waits for a step."""
        return held_seconds


OTHER_DRAWS = 21
"""Number of simulations to run with kills other than those in the drill.

The simulations show how strongly goodput depends on when the kills happen.
"""


SIMULATED_PARTS = (
    "held",
    "productive",
    "starts",
    "detection",
    "lost_steps",
    "saves",
    "between_steps",
)


def campaign_parts(
    costs: Costs, calm: WallTime, trainings: Sequence[Sequence[Step]]
) -> CampaignParts:
    """Return input for the simulation, taken only from records about training without faults."""
    pauses = pauses_between_steps(trainings)
    return CampaignParts(
        step=calm.parts["productive"] / calm.steps,
        steps_between_saves=SAVE_INTERVAL,
        save_stall=pauses.behind_save - pauses.between_steps,
        save_lag=pauses.behind_save - pauses.between_steps,
        start=costs.restart_seconds,
        resume=0.0,
        nodes=1,
        between_steps=pauses.between_steps,
    )


@dataclass(frozen=True)
class Pauses:
    """Mean seconds between the end of a step and the next step in the same job."""

    between_steps: float
    behind_save: float
    """Mean seconds between the end of a step with a save and the next step."""


def pauses_between_steps(trainings: Sequence[Sequence[Step]]) -> Pauses:
    """Return the pauses between steps in training runs.

    >>> steps = [Step(number, 1.0, time=moment) for number, moment in ((9, 1.0), (10, 2.5), (11, 4.0))]
    >>> pauses_between_steps([steps])
    Pauses(between_steps=0.5, behind_save=0.5)
    """
    usual: list[float] = []
    behind_save: list[float] = []
    for steps in trainings:
        for before, after in pairwise(steps):
            if before.segment != after.segment:
                continue
            pause = after.time - after.seconds - before.time
            if before.iteration % SAVE_INTERVAL == 0:
                pauses = behind_save
            else:
                pauses = usual

            pauses.append(max(0.0, pause))

    return Pauses(mean(usual), mean(behind_save))


def simulated_campaign(
    kills: Sequence[PlannedKill], parts: CampaignParts, noticed: float, steps: int
) -> Account:
    """Return a campaign over this many steps with these kills.

    `noticed` is how many seconds it took on average to notice a kill.
    """
    policy = Policy(detection={SOFTWARE.name: noticed})
    return simulate(parts, policy, math.inf, KillsAfterSteps(parts, kills), steps=steps)


def account_of(case: DrillRun) -> WallTime:
    """Return how wall time was spent in a run."""
    log = case.open_phase.phase_plan.log
    events = read_events(case.folder / log.events, case.open_phase.phase)
    account = account_wall_time(read_metrics(case.folder / log.metrics), (), events)
    assert account is not None
    return account


def steps_of(case: DrillRun) -> list[Step]:
    """Return every step in every job, in order."""
    history = read_metrics(case.folder / case.open_phase.phase_plan.log.metrics)
    steps = [*history.steps, *history.repeated]
    return sorted(steps, key=lambda step: (step.segment, step.iteration))


def broken_order(rows: Sequence[dict[str, Any]], steps: int) -> str:
    """Return the first error in the sample order over the steps that count, or ''.

    A job continues from a checkpoint. The steps that it repeats replace the earlier ones, and new
    steps follow without a gap.

    >>> broken_order([{"iteration": 1, "consumed_samples": 4}, {"iteration": 3, "consumed_samples": 12}], 3)
    'step 1 was followed by step 3'
    """
    chain: list[tuple[int, int]] = []
    for row in rows:
        step = int(row["iteration"])
        samples = int(row["consumed_samples"])
        while chain and chain[-1][0] >= step:
            chain.pop()
        before = chain[-1][0] if chain else 0
        if step != before + 1:
            return f"step {before} was followed by step {step}"
        if samples != BATCH * step:
            return DrillMessage.STEP_AT_SAMPLE.fill(step=step, samples=samples)
        chain.append((step, samples))

    if len(chain) == steps:
        return ""
    return f"{len(chain)} steps of {steps}"


@dataclass(frozen=True)
class Costs:
    """What the kills cost at least, as explained in docs/measurements/drills.md."""

    restart_seconds: float
    """Seconds between the end of a job and the first step in the next job.

    The value is the mean over planned stops in training runs without faults.
    """
    save_seconds: float
    """Seconds to save a checkpoint in the run without faults."""
    kills_in_training: int
    kills_in_start: int
    """Kills that hit a job before its first step.

    Each of these kills costs part of a start-up, but no step.
    """
    start_seconds_lost: float

    def goodput(self, account: WallTime, steps: int) -> float:
        """Return the goodput for a run that has as many kills but wastes no time.

        The goodput is productive time / (productive time + restarts + half a save interval for each
        + lost starts + saves). Detecting a failure is assumed to take no time. A failure before the
        first step in a job costs that part of the start-up which was completed.
        """
        productive = account.parts["productive"]
        half_interval = productive / steps * SAVE_INTERVAL / 2
        lost = (
            self.kills_in_training * (self.restart_seconds + half_interval)
            + self.start_seconds_lost
        )
        return productive / (productive + lost + steps / SAVE_INTERVAL * self.save_seconds)


def costs_of(calm: Sequence[WallTime], kills: Sequence[Kill], case: DrillRun) -> Costs:
    """Return durations from runs without faults, and counts from the run with kills."""
    submitted = {event["job"]: float(event["time"]) for event in case.events("submitted")}
    times = sorted(float(row["time"]) for row in case.rows())
    began = {kill: submitted.get(kill.job, kill.at) for kill in kills}
    in_start = [kill for kill in kills if bisect(times, kill.at) == bisect(times, began[kill])]
    restarts = []
    for training in calm:
        for interruption in training.interruptions:
            restarts.append(interruption.restart_seconds)

    saves = sum(training.steps / SAVE_INTERVAL + len(training.interruptions) for training in calm)
    return Costs(
        restart_seconds=mean(restarts),
        save_seconds=sum(training.parts["save stall"] for training in calm) / saves,
        kills_in_training=len(kills) - len(in_start),
        kills_in_start=len(in_start),
        start_seconds_lost=sum(kill.at - began[kill] for kill in in_start),
    )


def detections(kills: Sequence[Kill], ended: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how many seconds after each kill it was noticed that the job had ended."""
    known_at = {event["job"]: float(event.get("at") or event["time"]) for event in ended}
    return [max(0.0, known_at[kill.job] - kill.at) for kill in kills if kill.job in known_at]
