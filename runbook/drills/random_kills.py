"""Fifty kills at random moments of one training: it ends, nothing is lost, nothing is trained twice."""

from __future__ import annotations

import os
import random
import threading
import time
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import psutil

from runbook.analysis.history import read_events, read_metrics
from runbook.analysis.ledger import Ledger, ideal_goodput, ledger
from runbook.drills.bench import Bench
from runbook.drills.case import Case
from runbook.drills.verdict import Ending
from runbook.schedulers.processes import wait_until

KILLS, STEPS, SAVE_INTERVAL, BATCH = 50, 1000, 10, 4
GOODPUT_OF_IDEAL = 0.80
CALM_STEPS = 60
"""Steps after the last kill, so that none comes too late."""
LONGEST_DELAY_SECONDS = 0.8
"""After the step that a kill waits for: so that it falls anywhere in steps, saves and starts."""
STUCK_SECONDS = 120
PLANNED_RESTARTS = "term:rank=0,step=12,job=04-training; " + "; ".join(
    f"term:rank=0,step={step},job=04-training-{number}" for number, step in enumerate((20, 28, 36, 44), 2)
)
"""Five in a calm training, and as many afterwards: a single one takes anything from 0.5 to 1.2 s."""
DETECTED_WITHIN_SECONDS = 5.0


@dataclass(frozen=True)
class Kill:
    """One process of a job, killed at a moment."""

    job: str
    victim: str
    at: float


@dataclass
class Killer:
    """Kills a random process of the training whenever its next random step is reached."""

    case: Case
    kills: int
    steps: int
    seed: int
    told: list[Kill] = field(default_factory=list)

    def run(self) -> None:
        """Until all kills are done; each ends another job."""
        draw = random.Random(self.seed)
        for step in sorted(draw.randrange(2, self.steps - CALM_STEPS) for _ in range(self.kills)):
            if not self._wait(lambda step=step: self._furthest() >= step, 20 * STUCK_SECONDS):  # type: ignore[misc]
                return
            time.sleep(draw.uniform(0, LONGEST_DELAY_SECONDS))
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
                self.told.append(Kill(job, name, at))
                return job
            time.sleep(0.005)
        return self._newest()

    def _victims(self) -> list[tuple[str, psutil.Process]]:
        """The job's script and its ranks, as far as they run now."""
        found = []
        try:
            script = self.case.script()
            if not script.is_running() or script.status() == psutil.STATUS_ZOMBIE:
                return []
            found.append(("script", script))
            ranks = psutil.Process(self.case.bench.warm_pid).children()
            own = [one for one in ranks if one.create_time() > script.create_time()]
            found += [("rank", one) for one in own if one.status() != psutil.STATUS_ZOMBIE]
        except (psutil.Error, AssertionError):
            pass
        return found

    def _newest(self) -> str:
        try:
            return self.case.job().path.name
        except AssertionError:  # there is none yet
            return ""

    def _furthest(self) -> int:
        return max((int(row["iteration"]) for row in self.case.rows()[-200:]), default=0)


def random_kills(bench: Bench) -> Ending:
    """Fifty SIGKILLs at random moments to a rank or to the job's script."""
    return kill_often(bench, KILLS, STEPS)


def kill_often(bench: Bench, kills: int, steps: int, of_ideal: float = GOODPUT_OF_IDEAL) -> Ending:
    """As many kills over as many steps; the goodput has to be this share of the ideal."""
    words = (f"training.iterations={steps}", f"training.save_interval={SAVE_INTERVAL}", "training.log_interval=50")
    ending = Ending(f"{kills} SIGKILLs at random moments of {steps} steps, to ranks and scripts")
    calm = Case(bench, f"calm-{steps}", *words)
    told = calm.train(PLANNED_RESTARTS)  # to know what a restart costs
    ending.rule(not told, "the undisturbed training ended" if not told else told[:300])
    case = Case(bench, f"killed-{kills}", *words, f"jobs.training.restarts={kills}")
    killer = Killer(case, kills, steps, int.from_bytes(os.urandom(4), "big"))
    thread = threading.Thread(target=killer.run, daemon=True)
    thread.start()
    wait_until(lambda: thread.is_alive(), 1)
    told = case.train()
    thread.join(5)
    ending.rule(not told and case.done(), "it came to its end" if not told else told[:300])
    ending.rule(
        len(killer.told) == kills, f"{len(killer.told)} kills (seed {killer.seed}) in {len(case.job_names())} jobs"
    )
    ending.final_loss_equal = case.losses() == calm.losses()
    ending.rule(ending.final_loss_equal, "every loss is that of the undisturbed training")
    fault = broken_order(case.rows(), steps)
    ending.rule(not fault, fault or "no sample trained twice or skipped in what the weights have seen")
    ending.steps_lost = case.steps_lost()
    ending.rule(ending.steps_lost <= SAVE_INTERVAL, f"at most {ending.steps_lost} steps lost at once")
    ending.rule(not case.parts(), "no unfinished file is left")
    ending.action = "resumed each time from the newest whole checkpoint"
    seen = sorted(detections(killer.told, case.events("ended")))
    if seen:
        ending.detected_after_s = seen[-1]
        told = f"each dead process noticed within {seen[-1]:.1f} s, in the middle {seen[len(seen) // 2]:.1f} s"
        ending.rule(seen[-1] < DETECTED_WITHIN_SECONDS or not of_ideal, told)
    account, calm_ones = account_of(case), [account_of(calm)]
    if of_ideal:  # once more afterwards: what else the machine does may have changed meanwhile
        after = Case(bench, f"calm-after-{steps}", *words, f"training.iterations={SAVE_INTERVAL * 5}")
        ending.rule(not after.train(PLANNED_RESTARTS), "planned restarts were measured before and after")
        calm_ones.append(account_of(after))
    costs = costs_of(calm_ones, killer.told, case)
    ideal = costs.goodput(account, steps)
    goodput = account.goodput or 0.0
    ending.rule(
        goodput >= of_ideal * ideal,
        f"goodput {goodput:.1%}, {goodput / ideal:.0%} of the ideal {ideal:.1%} (at least {of_ideal:.0%}): a planned "
        f"restart takes {costs.restart_seconds:.1f} s, a save {costs.save_seconds:.2f} s, {costs.kills_in_start} kills "
        f"came before a first step",
    )
    ending.extra |= {
        "goodput": round(goodput, 4),
        "ideal_goodput": round(ideal, 4),
        "goodput_of_ideal": round(goodput / ideal, 4),
        "wall_seconds": round(account.wall_seconds, 1),
        "parts_seconds": {name: round(seconds, 2) for name, seconds in account.parts()},
        "ideal_parts": {name: round(value, 3) for name, value in vars(costs).items()},
        "detection_seconds": {"median": round(seen[len(seen) // 2], 2), "worst": round(seen[-1], 2)} if seen else {},
    }
    return ending


def account_of(case: Case) -> Ledger:
    """Where the wall time of a run went."""
    log = case.campaign.spec["log"]
    events = read_events(case.folder / log["events"], case.campaign.phase)
    account = ledger(read_metrics(case.folder / log["metrics"]), (), events)
    assert account is not None
    return account


def broken_order(rows: Sequence[dict[str, Any]], steps: int) -> str:
    """What is wrong with the order of samples along the steps that count, or nothing.

    A job goes on where a checkpoint left off: what it replaces is taken back, what it adds follows without a gap.

    >>> broken_order([{"iteration": 1, "consumed_samples": 4}, {"iteration": 3, "consumed_samples": 12}], 3)
    'after step 1 came step 3'
    """
    chain: list[tuple[int, int]] = []
    for row in rows:
        step, samples = int(row["iteration"]), int(row["consumed_samples"])
        while chain and chain[-1][0] >= step:
            chain.pop()
        before = chain[-1][0] if chain else 0
        if step != before + 1:
            return f"after step {before} came step {step}"
        if samples != BATCH * step:
            return f"step {step} ended at sample {samples}"
        chain.append((step, samples))
    return "" if len(chain) == steps else f"{len(chain)} steps of {steps}"


@dataclass(frozen=True)
class Costs:
    """What as many kills cost where nothing is wasted that need not be; docs/drills.md says the same in words."""

    restart_seconds: float
    """From the end of a job to the first step of the next: the mean of planned stops of calm trainings."""
    save_seconds: float
    """Of one checkpoint, in the calm training."""
    kills_in_training: int
    kills_in_start: int
    """These hit a job before its first step: they lose the start as far as it had come, and no step."""
    start_seconds_lost: float

    def goodput(self, account: Ledger, steps: int) -> float:
        """Productive time / (productive time + restarts + half a save interval for each + lost starts + saves)."""
        return ideal_goodput(
            account.productive_seconds,
            interruptions=self.kills_in_training,
            restart=self.restart_seconds,
            step=account.productive_seconds / steps,
            save_interval=SAVE_INTERVAL,
            save=self.save_seconds,
            steps=steps,
            start_seconds_lost=self.start_seconds_lost,
        )


def costs_of(calm: Sequence[Ledger], kills: Sequence[Kill], case: Case) -> Costs:
    """Measured in calm trainings, and counted in the one that was killed."""
    submitted = {one["job"]: float(one["time"]) for one in case.events("submitted")}
    times = sorted(float(row["time"]) for row in case.rows())
    began = {one: submitted.get(one.job, one.at) for one in kills}
    in_start = [one for one in kills if bisect(times, one.at) == bisect(times, began[one])]
    restarts = [one.restart_seconds for training in calm for one in training.interruptions]
    saves = sum(training.steps / SAVE_INTERVAL + len(training.interruptions) for training in calm)
    return Costs(
        restart_seconds=mean(restarts),
        save_seconds=sum(training.save_seconds for training in calm) / saves,
        kills_in_training=len(kills) - len(in_start),
        kills_in_start=len(in_start),
        start_seconds_lost=sum(one.at - began[one] for one in in_start),
    )


def detections(kills: Sequence[Kill], ended: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds from each kill to the moment at which the job's end was known."""
    known = {one["job"]: float(one.get("at") or one["time"]) for one in ended}
    return [max(0.0, known[one.job] - one.at) for one in kills if one.job in known]
