"""Test bench for drills: a temporary project, a warm trainer, small runs and verdicts."""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import shlex
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from runbook import params
from runbook.core.errors import JobError
from runbook.core.files import read_lines
from runbook.core.locks import HOLDER_VARIABLE
from runbook.core.processes import wait_until
from runbook.jobs import get_scheduler
from runbook.jobs.job_folder import JobFolder, JobStatus, latest_job_folder, read_started
from runbook.jobs.warm_trainer import WarmTrainer, still_runs
from runbook.phases.job_control import job_step, live_view
from runbook.phases.job_control import training_jobs as jobs
from runbook.phases.job_control.job_step import JobStep
from runbook.phases.open_phase import OpenPhase, open_run_phase
from runbook.phases.phase_steps import TOKENIZE, train_step
from runbook.plan_file.checkpoint_folder import saved_iterations
from runbook.plan_file.heartbeat_files import RANKS_FOLDER, heartbeat_stem, read_slots
from runbook.plan_file.job_ends import EndCause
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.token_index import INDEX_HEADER, INDEX_MAGIC, INDEX_VERSION, UINT16
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.step import write_mark
from runbook.tools.drills.faults import VARIABLE as FAULTS
from runbook.tools.drills.messages import DrillMessage

MARK = "RUNBOOK_DRILL"
"""Environment variable set in every process started by a drill."""
POLL_SECONDS = 0.1

RUN_FILE = """\
run: drill
site: local
model: mini
data: {dataset: numbers, split: "990,10,0"}
parallel: {tensor: 1}
training:
  precision: fp32
  iterations: 16
  global_batch: 4  # 1 micro x 2 replicas x 2 steps
  micro_batch: 1
  warmup_iterations: 2
  save_interval: 4
  keep_checkpoints: 3
  eval_interval: 0
  process_group_timeout: 120
  smoke: {model: mini, iterations: 2, global_batch: 4, warmup_iterations: 1, waived_by: the drills}
jobs:
  training: {nodes: 1}
"""
MODELS = """\
mini: {label: mini, layers: 2, hidden: 16, heads: 2, sequence_length: 32, positions: 32, source: the drills}
wide: {label: wide, layers: 2, hidden: 32, heads: 2, sequence_length: 32, positions: 32, source: the drills}
"""
DATASETS = """\
numbers: {title: Made-up numbers, kind: local, folder: /nowhere, pattern: "*.jsonl", licence: none, source: the drills}
"""
SITE = """\
site: {site}
title: This machine, for drills
scheduler: local
python: {python}
hardware: {{device: cpu, nodes: 1, devices_per_node: {ranks}, cores_per_node: {ranks}}}
"""


class Bench:
    """A test bench that is opened once for all drills, because it is slow to prepare."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._stack = contextlib.ExitStack()
        self.references: dict[tuple[str, ...], dict[int, float]] = {}
        """Losses from uninterrupted training runs, by parameter values."""

    def __enter__(self) -> Bench:
        self.root = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="runbook-drill-"))
        )
        self.warm = WarmTrainer(self.root)
        self._stack.enter_context(
            environment({MARK: self.mark, RUNS_VARIABLE: str(self.root / "runs")})
        )
        self._stack.enter_context(
            environment({HOLDER_VARIABLE: None, FAULTS: None, "RUNBOOK_JOB": None})
        )
        before = live_view.POLL_SECONDS
        live_view.POLL_SECONDS = POLL_SECONDS
        self._stack.callback(setattr, live_view, "POLL_SECONDS", before)
        self._stack.callback(self.end_all)
        write_project(self.root, self.root / "python")
        self._warm_up()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def _warm_up(self) -> None:
        """Start the warm trainer. Replace `python` with a script that requests ranks from it."""
        self.warm.write_python(self.root / "python")
        self.warm.start()

    def left(self) -> list[psutil.Process]:
        """Return all processes in these drills except the warm trainer and this process."""
        processes = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    processes[process.pid] = process

        with contextlib.suppress(psutil.Error):
            processes |= {
                rank.pid: rank for rank in psutil.Process(self.warm.pid).children(recursive=True)
            }

        for pid in (os.getpid(), self.warm.pid):
            processes.pop(pid, None)
        return [process for process in processes.values() if still_runs(process)]

    def end_left(self) -> list[str]:
        """Kill the processes that still run after a few seconds, and return their descriptions."""
        wait_until(lambda: not self.left(), 5)
        killed = []
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                killed.append(f"{process.pid} {shlex.join(process.cmdline())[:120]}")
                process.kill()

        return killed

    def end_all(self) -> None:
        """End the remaining processes, then the warm trainer."""
        self.end_left()
        self.warm.close()


def write_project(root: Path, warm: Path) -> None:
    """Write parameter files for a run that is small enough to train in a second."""
    (root / "params" / "sites").mkdir(parents=True, exist_ok=True)
    (root / "notebooks").mkdir(exist_ok=True)
    for name, text in (("drill", RUN_FILE), ("models", MODELS), ("datasets", DATASETS)):
        (root / "params" / f"{name}.yaml").write_text(text)
    sites = (("local", warm, 2), ("four", warm, 4), ("cold", Path(sys.executable), 2))
    for site, python, ranks in sites:
        (root / "params" / "sites" / f"{site}.yaml").write_text(
            SITE.format(site=site, python=python, ranks=ranks)
        )


def write_tokens(
    prefix: Path,
    documents: int = 40,
    length: int = 120,
    highest: int = 5000,
    seed: int = 7,
) -> None:
    """Write a .bin/.idx pair that a model can learn from.

    Each token id is likely to be followed by the next higher id.
    """
    draw = random.Random(seed)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tokens = array.array("H")
    for _ in range(documents):
        token = draw.randrange(1, highest)
        for _ in range(length):
            tokens.append(token)
            token = (token + draw.choice((1, 1, 1, 2, 5))) % (highest - 1) + 1

    head = INDEX_HEADER.pack(
        INDEX_MAGIC,
        INDEX_VERSION,
        UINT16,
        documents,
        documents + 1,
    )
    lengths = struct.pack(f"<{documents}i", *[length] * documents)
    starts = struct.pack(f"<{documents}q", *range(0, documents * length * 2, length * 2))
    order = struct.pack(f"<{documents + 1}q", *range(documents + 1))
    prefix.with_name(prefix.name + ".idx").write_bytes(head + lengths + starts + order)
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens.tobytes())


@contextlib.contextmanager
def environment(changes: dict[str, str | None]) -> Iterator[None]:
    """Change environment variables in this process within the block.

    None removes a variable.
    """
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class TrainingFailure:
    """An error that ended a training run, as recorded in events.jsonl."""

    code: str
    """The code for the error message."""
    message: str


class DrillRun:
    """A separate run folder inside the bench."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        *set_words: str,
    ) -> None:
        self.bench = bench
        self.name = name
        self.words = set_words
        self.open_phase = self.open()
        self.folder = self.open_phase.folder
        prefix = self.folder / self.open_phase.phase_plan.data.train[0].prefix
        if not prefix.with_name(prefix.name + ".idx").exists():
            write_tokens(prefix)
            # The done marker lists no files. Therefore, the trainer itself must detect when a drill
            # damages the tokens, as a failing disk might.
            write_mark(
                self.folder,
                TOKENIZE,
                1,
                "the drills",
                [],
            )

    def open(self) -> OpenPhase:
        """Load the run as a new kernel would."""
        set_words = [*self.words, f"as={self.name}"]
        settings = params.load("drill", set_words=set_words, project=self.bench.root)
        return open_run_phase(settings, FULL)

    def training_job(self) -> JobStep:
        """Return the job step in the training phase."""
        return jobs.training_step(self.open_phase.training, self.open_phase.session)

    def launch(self, faults: str = "") -> JobFolder:
        """Submit the next job, with these faults in its environment."""
        with environment({FAULTS: faults or None}):
            job_step.launch(self.training_job())
        folder = latest_job_folder(self.folder, FULL)
        assert folder is not None
        return folder

    def one_job(self, faults: str = "") -> JobStatus:
        """Run one job to completion, without starting another job after it."""
        self.launch(faults)
        return jobs.follow(self.open_phase.training)

    def train(self, faults: str = "") -> str:
        """Run jobs until training is done or a person must act.

        Return the error that a person would see, or an empty string if there is none.
        """
        with environment({FAULTS: faults or None}):
            try:
                job_step.launch(self.training_job())
                jobs.watch(self.open_phase.training, self.training_job())
            except JobError as error:
                return str(error)

        return ""

    @contextlib.contextmanager
    def meanwhile(self, when: Callable[[], bool], act: Callable[[], None]) -> Iterator[list[float]]:
        """Call `act` as soon as a condition becomes true while the body runs.

        Yield a list to which the time is added when `act` is called.
        """
        acted: list[float] = []

        def wait_and_act() -> None:
            if wait_until(when, WAIT_SECONDS, interval=0.01):
                acted.append(time.time())
                act()

        thread = threading.Thread(target=wait_and_act, daemon=True)
        thread.start()
        try:
            yield acted
        finally:
            thread.join(1)

    def change_plan(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the plan as if a person had edited plan.json."""
        path = self.folder / "plan.json"
        content = json.loads(path.read_text())
        change(content["phases"][FULL])
        path.write_text(json.dumps(content))

    @property
    def metrics_path(self) -> Path:
        """Return the path to the metrics file, which has a row for each step."""
        return self.folder / self.open_phase.phase_plan.log.metrics

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics for every step in every job."""
        return read_lines(self.metrics_path)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the events with these names."""
        events = read_lines(self.folder / self.open_phase.phase_plan.log.events)
        return [event for event in events if not names or event.get("event") in names]

    def failure(self) -> TrainingFailure:
        """Return the newest error from the trainer. The fields are empty if there is no error."""
        events = self.events("failed")
        if not events:
            return TrainingFailure("", "")
        return TrainingFailure(events[-1]["code"], events[-1]["message"])

    def end_cause(self) -> EndCause | None:
        """Return the cause if the newest job ended badly, or None if it ended well."""
        events = self.events("ended")
        cause = events[-1].get("cause") if events else None
        return EndCause(cause) if cause else None

    def losses(self) -> dict[int, float]:
        """Return the loss by iteration. If an iteration was repeated, return its last loss."""
        return {int(row["iteration"]): row["loss"] for row in self.rows()}

    def samples(self) -> dict[int, int]:
        """Return how many samples were consumed after each iteration."""
        return {int(row["iteration"]): int(row["consumed_samples"]) for row in self.rows()}

    def is_at(self, step: int) -> Callable[[], bool]:
        """Return a condition that is true once the newest step is this step or a later step."""
        return lambda: bool(rows := self.rows()) and rows[-1]["iteration"] >= step

    def job(self) -> JobFolder:
        """Return the newest job."""
        folder = latest_job_folder(self.folder, FULL)
        assert folder is not None
        return folder

    def status(self) -> JobStatus:
        """Return the status of the newest job."""
        return get_scheduler(self.open_phase.settings.site).state(self.job())

    def job_names(self) -> list[str]:
        """Return the names of all submitted jobs."""
        return sorted(path.parent.name for path in self.folder.glob("jobs/*/job.json"))

    def said(self, job: JobFolder | None = None) -> str:
        """Return all output from a job."""
        folder = job or self.job()
        parts = []
        for path in (folder.out, folder.err):
            if path.exists():
                parts.append(path.read_text(errors="replace"))

        return "\n".join(parts)

    def rank(self, rank: int) -> psutil.Process:
        """Return the process for a rank in the newest job."""
        folder = self.job().path / RANKS_FOLDER
        assert wait_until(lambda: rank in read_heartbeats(folder), WAIT_SECONDS), (
            f"no heartbeat of rank {rank}"
        )
        return psutil.Process(read_heartbeats(folder)[rank]["pid"])

    def script(self) -> psutil.Process:
        """Return the process for the script in the newest job."""
        started = read_started(self.job())
        assert started is not None
        return psutil.Process(started.identity.pid)

    def checkpoints(self) -> list[int]:
        """Return the iterations for which there are checkpoints."""
        root = self.folder / self.open_phase.phase_plan.checkpoint.folder
        return sorted(saved_iterations(root))

    def tracker(self) -> Path:
        """Return the path to the file used to name the newest checkpoint."""
        folder = str(self.open_phase.phase_plan.checkpoint.folder)
        return self.folder / folder / "latest_checkpointed_iteration.txt"

    def parts(self) -> list[str]:
        """Return the files that killed saves left behind."""
        return sorted(path.name for path in self.tracker().parent.glob("*.part"))

    def steps_lost(self) -> int:
        """Return the most steps repeated after a restart."""
        lost = 0
        newest = 0
        for row in self.rows():
            lost = max(lost, newest - int(row["iteration"]) + 1)
            newest = int(row["iteration"])

        return lost

    def done(self) -> bool:
        """Return whether the training finished."""
        return not train_step(self.open_phase.run, FULL).why_not_done()


@dataclass(frozen=True)
class MeasuredValue:
    """A measured value, and its usual range.

    The value never fails a drill, because other work on the machine affects it.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str

    @property
    def usual(self) -> bool:
        """Return whether the value is in its usual range."""
        return self.low <= self.value <= self.high

    def __str__(self) -> str:
        """Return the value and its range.

        >>> str(MeasuredValue("goodput", 93.04, 80, 90, "% of the ideal"))
        'goodput 93 % of the ideal (usually 80 to 90, so this is unusual)'
        """
        message = DrillMessage.USUAL_BAND if self.usual else DrillMessage.UNUSUAL_BAND
        band = message.fill(low=self.low, high=self.high)
        return DrillMessage.FIGURE.fill(name=self.name, value=self.value, unit=self.unit, band=band)


@dataclass
class DrillEnding:
    """Evidence about a drill, gathered while it runs."""

    fault: str
    """The fault caused by the drill."""
    action: str = ""
    """How the runbook reacted."""
    detected_after_s: float | None = None
    """Seconds from the fault to its detection, or None if there is nothing to detect."""
    steps_lost: int | None = None
    """The most steps repeated after a fault."""
    final_loss_equal: bool | None = None
    """Whether every loss is bit-equal to that in the undisturbed run."""
    passed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    figures: list[MeasuredValue] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def rule(
        self,
        holds: object,
        text: str,
        evidence: str = "",
    ) -> None:
        """Record whether a rule in the drill holds.

        If the rule does not hold, also report the evidence.
        """
        (self.passed if holds else self.broken).append(text if holds else evidence or text)


@dataclass(frozen=True)
class DrillVerdict:
    """What came out of a drill, in machine-readable form."""

    name: str
    verdict: str
    detail: str
    fault: str
    detected_after_s: float | None
    action: str
    steps_lost: int | None
    final_loss_equal: bool | None
    seconds: float
    attempt: int = 1
    """Which attempt this was: 2 if a failed drill was retried."""
    figures: tuple[MeasuredValue, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the common keys, and facts specific to the drill."""
        common = {}
        for key, value in vars(self).items():
            if key not in ("extra", "figures"):
                common[key] = value

        return (
            common
            | {"figures": [vars(figure) | {"usual": figure.usual} for figure in self.figures]}
            | self.extra
        )

    @property
    def measured(self) -> str:
        """Return all measured values with their ranges."""
        return "; ".join(map(str, self.figures))


def judge_ending(
    name: str,
    ending: DrillEnding,
    orphans: list[str],
    seconds: float,
) -> DrillVerdict:
    """Return the verdict, which is a pass if every rule holds and no process is left running.

    >>> judge_ending("x", DrillEnding("nothing", passed=["all is well"]), [], 1.0).detail
    'all is well; no processes left'
    """
    if orphans:
        ending.rule(False, DrillMessage.PROCESSES_LEFT.fill(processes=", ".join(orphans)))
    else:
        ending.rule(True, DrillMessage.NO_PROCESSES_LEFT.fill())

    if not ending.broken:
        detail = "; ".join(ending.passed)
    else:
        detail = DrillMessage.BROKEN.fill(rules="; ".join(ending.broken))

    after = ending.detected_after_s
    shared = {}
    for key in ("fault", "action", "steps_lost", "final_loss_equal", "extra"):
        shared[key] = getattr(ending, key)

    return DrillVerdict(
        name=name,
        verdict="pass" if not ending.broken else "fail",
        detail=detail,
        detected_after_s=None if after is None else round(after, 2),
        seconds=round(seconds, 1),
        figures=tuple(ending.figures),
        **shared,
    )


def read_heartbeats(ranks_folder: Path) -> dict[int, dict[str, Any]]:
    """Return the newest heartbeat from each rank in a job on this machine."""
    stem = heartbeat_stem(ranks_folder)
    contents = [path.read_bytes() for path in stem.parent.glob(f"{stem.name}*")]
    newest = {}
    for content in contents:
        for beat in read_slots(content):
            newest[beat["rank"]] = beat

    return newest
