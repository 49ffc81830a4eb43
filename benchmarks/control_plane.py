"""Measures what the training control plane costs with thousands of stand-in ranks on this machine.

The stand-in ranks call the real trainer modules.

    python -m benchmarks.control_plane [RANKS ...] [--json FILE]

Each stand-in rank has a watchdog, a heartbeat and a report, but no model and no thread. The
benchmark calls their checks one after the other: the ranks see a simulated clock, and the cost is
measured on the real clock. The benchmark counts file system metadata operations (open, stat,
rename, unlink, mkdir, listing) with a Python audit hook, and with wrappers, because a stat raises
no audit event. It counts operations in the job folder separately from those in local memory
(/dev/shm, /proc). It also counts bytes in files, CPU seconds on rank 0, and memory. The real
rank.sh runs under strace. Python imports and the shards themselves are not counted, because every
rank needs them even without a control plane.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runbook.phases.run_plan import load_plan
from runbook.plan_file.schema import Checkpoint, PhasePlan, exchange_interval, read_plan
from runbook.plan_file.slow_ranks import ExchangedTimes, StragglerDetector
from runbook.results.history import read_metrics
from runbook.results.slow_ranks import slow_ranks_table
from runbook.runs.run_files import write_plan_file
from runbook.training.checkpoints import folders
from runbook.training.health import heartbeat
from runbook.training.health.heartbeat import HeartbeatFile
from runbook.training.health.watchdog import HEARTBEAT_SECONDS, HangReports, Watchdog, make_watchdog
from runbook.training.ranks import Ranks
from runbook.training.training_log import StepRecord, TrainingLog

RANKS = (8, 200, 1024, 10_000)
RANKS_PER_MACHINE = 8
STEP_SECONDS = 1.0  # shorter than a step of any large training run
SAVE_SECONDS = 1200.0  # between two saves
SCRIPT_OPERATIONS = 2 + 2 / 5 + 0.5
"""Metadata operations per second in the job scripts: job.sh looks for two files each second and
renames its heartbeat every five, and rank.sh on rank 0 looks for `stop` every two seconds;
`rank_script_operations` measures the latter.
"""
GROUPS = 25  # process groups for a rank, as megatron-core creates them
AUDITED = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.truncate",
}
WRAPPED = ("stat", "lstat", "access", "utime")


class Clock:
    """The simulated machine uptime, which the stand-in ranks read."""

    now = heartbeat.uptime()

    def __call__(self) -> float:
        """Return the simulated uptime in seconds."""
        return self.now


CLOCK = Clock()


class Operations:
    """Counts metadata operations in this process, in the run folder and elsewhere on this machine."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.root = ""
        self.on = False
        sys.addaudithook(self._audit)
        for name in WRAPPED:
            self._wrap(name)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in AUDITED:
            self._count(arguments[0])

    def _wrap(self, name: str) -> None:
        function = getattr(os, name)

        def counted(path: Any, *arguments: Any, **options: Any) -> Any:
            if self.on:
                self._count(path)
            return function(path, *arguments, **options)

        setattr(os, name, counted)

    def _count(self, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            self.counts["run" if os.fsdecode(path).startswith(self.root) else "machine"] += 1

    @contextlib.contextmanager
    def counting(self, root: Path) -> Iterator[Counter[str]]:
        """Count the operations in the `with` body, below `root` and elsewhere."""
        self.counts, self.root, self.on = Counter(run=0, machine=0), str(root), True
        try:
            yield self.counts
        finally:
            self.on = False


OPERATIONS = Operations()


class StandInStore:
    """The store that ranks share. It is in the memory of rank 0, not in a file."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.calls = 0

    def set(self, key: str, value: str) -> None:
        """Store a value."""
        self.calls += 1
        self.values[key] = value

    def get(self, key: str) -> str:
        """Return a value."""
        self.calls += 1
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[str]:
        """Return several values."""
        self.calls += 1
        return [self.values[key] for key in keys]

    def check(self, keys: list[str]) -> bool:
        """Return whether the store has all the keys."""
        self.calls += 1
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> None:
        """Delete a value."""
        self.calls += 1
        self.values.pop(key, None)


class ControlPlane:
    """The control plane for one training run with this many ranks, in a separate folder."""

    def __init__(self, folder: Path, spec: PhasePlan, num_ranks: int) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        self.spec = replace(spec, log=replace(spec.log, interval=10**9))
        self.job = folder / "jobs" / "04-training"
        self.job.mkdir(parents=True)
        self.local = min(RANKS_PER_MACHINE, num_ranks)
        self.watchdogs: list[Watchdog] = []

    def ranks(self, rank: int) -> Ranks:
        """Return a stand-in rank of the training run."""
        return Ranks(rank, self.num_ranks, rank % self.local, "srun", "node0", 29500)

    def start(self) -> dict[str, Any]:
        """Let every rank read the plan and open the heartbeats for its machine."""
        environment = {"RUNBOOK_JOB_FOLDER": str(self.job), "LOCAL_WORLD_SIZE": str(self.local)}
        with OPERATIONS.counting(self.folder) as counts:
            for rank in range(self.num_ranks):
                read_plan(self.folder / "plan.json", "04-training")
                watchdog = make_watchdog(self.spec, self.ranks(rank), environment)
                assert watchdog is not None
                watchdog._looked = CLOCK.now
                watchdog._file.open()
                watchdog.heartbeat.write()
                watchdog.heartbeat.entered = lambda: dict.fromkeys(map(str, range(GROUPS)), 1)
                self.watchdogs.append(watchdog)
        return {
            "operations": dict(counts),
            "bytes_read": (self.folder / "plan.json").stat().st_size * self.num_ranks,
        }

    def heartbeats(self, seconds: float) -> dict[str, Any]:
        """Run the checks in all watchdogs for this many simulated seconds.

        The processor time for rank 0 is measured at the real interval.
        """
        with OPERATIONS.counting(self.folder) as counts:
            for _ in range(round(seconds / HEARTBEAT_SECONDS)):
                CLOCK.now += HEARTBEAT_SECONDS
                for watchdog in self.watchdogs:
                    watchdog.look(CLOCK.now)
        first = self.watchdogs[0]
        begun = time.process_time()
        looks = round(20 / HEARTBEAT_SECONDS)
        for _ in range(looks):
            CLOCK.now += HEARTBEAT_SECONDS
            first.look(CLOCK.now)
        per_second = {place: count / seconds for place, count in counts.items()}
        return {
            "operations_per_second": per_second,
            "rank_0_core_share": (time.process_time() - begun) / 20,
        }

    def steps(self, num_steps: int) -> dict[str, Any]:
        """Let rank 0 and the last rank report steps.

        Every rank compares the times after each exchange.
        """
        logs = [TrainingLog(self.spec, self.ranks(rank)) for rank in (0, self.num_ranks - 1)]
        detector = StragglerDetector(1)
        every = exchange_interval(self.num_ranks)
        times = 0
        seconds = [random.gauss(1, 0.01) for _ in range(self.num_ranks)]
        rank_0 = 0.0
        with OPERATIONS.counting(self.folder) as counts:
            for number in range(1, num_steps + 1):
                for log in logs:
                    log.step(step_record(number), 0, 0)
                if number % every == 0:
                    times += 1
                    exchanged = ExchangedTimes(number, every, seconds)
                    for log in logs:
                        log.rank_times(exchanged)
                    begun = time.process_time()
                    detector.look(exchanged, number * STEP_SECONDS)
                    rank_0 += time.process_time() - begun
        sizes = {
            name: (self.folder / name).stat().st_size / num_steps
            for name in ("metrics.jsonl", "rank_times.jsonl")
        }
        message = 8 * (5 + self.num_ranks / every)
        return {
            "operations_per_second": {
                place: count / num_steps / STEP_SECONDS for place, count in counts.items()
            },
            "bytes_per_step": sizes,
            "reduction_bytes_per_step": message,
            "rank_0_core_share": rank_0 / num_steps / STEP_SECONDS,
        }

    def save(self) -> dict[str, Any]:
        """Do what rank 0 does in a save.

        Rank 0 creates the folder, writes metadata with a checksum for each rank file, renames the
        folder, and writes the tracker.
        """
        root = self.folder / "checkpoints"
        part = folders.begin_checkpoint(root, 100)
        names = [f"{folders.SHARDS}/__{rank}_0.distcp" for rank in range(self.num_ranks)]
        for name in names:
            (part / name).write_bytes(b"")
        begun = time.process_time()
        with OPERATIONS.counting(self.folder) as counts:
            final = folders.seal_checkpoint(
                part,
                {"iteration": 100},
                dict.fromkeys(names, "0" * 64),
                Checkpoint(folder="checkpoints", interval=100, keep=2),
            )
            found, problems = folders.candidates(root)
        assert found and not problems
        seconds = time.process_time() - begun
        size = (final / folders.METADATA).stat().st_size
        return {"operations": dict(counts), "metadata_bytes": size, "rank_0_seconds": seconds}

    def requeue(self) -> dict[str, Any]:
        """Read what a restarted job reads: run events for the trainer, all metrics for the results."""
        begun = time.process_time()
        tracemalloc.start()
        with OPERATIONS.counting(self.folder) as counts:
            TrainingLog(self.spec, self.ranks(0)).earlier_starts()
            history = read_metrics(self.folder / "metrics.jsonl")
            slow_ranks_table(history)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        seconds = time.process_time() - begun
        return {
            "operations": dict(counts),
            "seconds": seconds,
            "steps": len(history.steps),
            "peak_bytes": peak,
        }

    def hang(self) -> dict[str, Any]:
        """Measure what it costs the watchdogs to find the rank that causes a hang.

        All ranks hang because of a rank on the last machine.
        """
        store = StandInStore()
        culprit = self.num_ranks - 2
        template = asdict(self.watchdogs[0].heartbeat.current())
        beats = [
            replace(self.watchdogs[0].heartbeat.current(), rank=rank)
            for rank in range(self.num_ranks)
        ]
        for beat in beats:
            beat.still, beat.limit, beat.entered = (
                500.0,
                360.0,
                {**template["entered"], "0": 7 - (beat.rank == culprit)},
            )
        named = []
        rank_0 = 0.0
        with OPERATIONS.counting(self.folder) as counts:
            machines = []
            for start in range(0, self.num_ranks, self.local):
                reports = HangReports(
                    self.num_ranks, range(start, start + self.local), lambda: store
                )
                machines.append((reports, beats[start : start + self.local]))
            for now in (0.0, 600.0, 1200.0):
                for reports, own in machines:
                    begun = time.process_time()
                    named += (
                        [hang.beat.rank for hang in reports.find(own, now)] if now < 1200 else []
                    )
                    rank_0 += (time.process_time() - begun) if own[0].rank == 0 else 0
        assert set(named) == {culprit}, named
        size = sum(map(len, store.values.values()))
        return {"operations": dict(counts), "store_bytes": size, "rank_0_seconds": rank_0}

    def close(self) -> None:
        """Remove the heartbeat files for this machine."""
        for rank, watchdog in enumerate(self.watchdogs):
            file: HeartbeatFile = watchdog._file
            file.close(remove=rank % self.local == 0)


def step_record(iteration: int) -> StepRecord:
    """Return the record for a step as the training loop reports it."""
    parts = {"forward_backward_seconds": 0.81, "optimizer_seconds": 0.12}
    return StepRecord(
        iteration,
        iteration * 512,
        2.0 + 1 / iteration,
        1e-4,
        1.5,
        1.0,
        STEP_SECONDS,
        0,
        0,
        0.001,
        2**36,
        512,
        0.05,
        parts,
        {},
    )


def rank_script_operations() -> dict[str, float] | None:
    """Return how often per second rank.sh looks for `stop`, on rank 0 and on another rank.

    strace counts the look-ups. The result is None if it does not work here.
    """
    if not shutil.which("strace"):
        return None
    script = Path(__file__).parents[1] / "tests" / "golden" / "slurm" / "04-training" / "rank.sh"
    text = script.read_text()
    seconds = 6
    start = text.index("python3 -u"), text.index("\nprogram=$!")
    text = "set -euo pipefail\n" + f"sleep {seconds} &" + text[start[1] :]
    looks = {}
    for rank in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            log = f"{folder}/log"
            environment = {**os.environ, "RANK": str(rank), "RUNBOOK_JOB_FOLDER": f"{folder}/job"}
            Path(folder, "job").mkdir()
            words = ["strace", "-f", "-e", "trace=%file", "-o", log, "bash", "-c", text]
            if subprocess.run(words, env=environment, capture_output=True).returncode:
                return None
            looks[f"rank {rank}"] = Path(log).read_text().count(f"{folder}/job/stop") / seconds
    return looks


def measure(num_ranks: int) -> dict[str, Any]:
    """Measure each part of the control plane with this many ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan_file(*load_plan("local", ()), folder)
        plane = ControlPlane(folder, read_plan(folder / "plan.json", "04-training"), num_ranks)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            result = {
                "ranks": num_ranks,
                "start": plane.start(),
                "heartbeats": plane.heartbeats(5.0),
            }
            result |= {
                "steps": plane.steps(max(200, 4 * exchange_interval(num_ranks))),
                "save": plane.save(),
            }
            result |= {"requeue": plane.requeue(), "hang": plane.hang()}
        finally:
            plane.close()
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / num_ranks
    saves = sum(result["save"]["operations"].values()) / SAVE_SECONDS
    steady = sum(
        sum(result[part]["operations_per_second"].values()) for part in ("heartbeats", "steps")
    )
    share = sum(result[part]["rank_0_core_share"] for part in ("heartbeats", "steps"))
    return {
        **result,
        "operations_per_second": steady + saves + SCRIPT_OPERATIONS,
        "rank_0_core_share": share,
        "bytes_per_rank": memory,
    }


def main() -> None:
    """Measure, print a line for each number of ranks, and write all results to the file that --json names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    heartbeat.uptime = CLOCK
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = []
    looks = rank_script_operations()
    for num_ranks in arguments.ranks:
        results.append(result := measure(num_ranks))
        print(
            f"{num_ranks:6} ranks: {result['operations_per_second']:.1f} metadata operations a second, rank 0 "
            f"{result['rank_0_core_share']:.2%} of a core, {sum(result['steps']['bytes_per_step'].values()):.0f} bytes "
            f"a step, save {result['save']['metadata_bytes']:,} bytes in {result['save']['rank_0_seconds']:.2f} s, "
            f"hang named in {result['hang']['rank_0_seconds']:.2f} s, {result['bytes_per_rank']:,.0f} bytes a rank"
        )
    report = {
        "rank_script_looks_per_second": looks,
        "step_seconds": STEP_SECONDS,
        "measured": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"rank.sh looks up {looks} times a second, job.sh twice")


if __name__ == "__main__":
    main()
