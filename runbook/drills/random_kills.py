"""Fifty kills at random moments of one training: it ends, nothing is lost, nothing is trained twice."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Killer:
    """Kills a random process of the training whenever its next random step is reached."""

    case: Case
    kills: int
    steps: int
    seed: int
    told: list[tuple[str, str]] = field(default_factory=list)
    """Job and victim of each kill."""

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
                try:
                    victim.kill()
                except psutil.NoSuchProcess:
                    continue
                self.told.append((job, name))
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
        return self.case.job().path.name

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
    told = calm.train("term:rank=0,step=20,job=04-training")  # one planned restart, to know what a restart costs
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
    account, ideal = account_of(case), ideal_of(account_of(calm), account_of(case), kills, steps)
    goodput = account.goodput or 0.0
    ending.rule(
        goodput >= of_ideal * ideal,
        f"goodput {goodput:.1%}, {goodput / ideal:.0%} of the ideal {ideal:.1%} (at least {of_ideal:.0%})",
    )
    ending.extra |= {
        "goodput": round(goodput, 4),
        "ideal_goodput": round(ideal, 4),
        "goodput_of_ideal": round(goodput / ideal, 4),
        "wall_seconds": round(account.wall_seconds, 1),
        "parts_seconds": {name: round(seconds, 2) for name, seconds in account.parts()},
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


def ideal_of(calm: Ledger, account: Ledger, kills: int, steps: int) -> float:
    """The goodput of as many interruptions when each costs a planned restart and half a save interval, nothing else.

    A planned restart was measured in the undisturbed training: from the end of a job that was asked to save and stop to
    the first step of the next one. Saves cost what they cost there.
    """
    return ideal_goodput(
        account.productive_seconds,
        interruptions=kills,
        restart=calm.restart_seconds,
        step=account.productive_seconds / steps,
        save_interval=SAVE_INTERVAL,
        save=calm.save_seconds / (steps / SAVE_INTERVAL),
        steps=steps,
    )
