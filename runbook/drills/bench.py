"""Where drills are done: a project of its own in a temporary folder, a warm trainer, and no process left behind."""

from __future__ import annotations

import array
import contextlib
import os
import random
import shlex
import socket
import struct
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil

from runbook import shell
from runbook.data.indexed import HEADER, MAGIC, UINT16, VERSION
from runbook.errors import ProgramError
from runbook.phases import watching
from runbook.phases.campaign import HOLDER_VARIABLE, RUNS_VARIABLE
from runbook.schedulers.processes import wait_until

MARK = "RUNBOOK_DRILL"
"""In the environment of everything a drill starts, with a value that no other session has."""
FAULTS = "RUNBOOK_FAULTS"
WARM_SECONDS = 240.0
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
  global_batch: 4  # 1 micro x 2 copies x 2 steps
  micro_batch: 1
  warmup_iterations: 2
  save_interval: 4
  keep_checkpoints: 3
  eval_interval: 0
  process_group_timeout: 120
  smoke: {model: mini, iterations: 2, global_batch: 4, warmup_iterations: 1}
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
    """Opened once for all drills; what is slow to make is made once."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._stack = contextlib.ExitStack()
        self._owner: socket.socket | None = None
        self.warm_pid = 0
        self.references: dict[tuple[str, ...], dict[int, float]] = {}
        """Losses of undisturbed trainings, by the values they were trained with."""
        self.root = Path()

    def __enter__(self) -> Bench:
        self.root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="runbook-drill-")))
        self._stack.enter_context(environment({MARK: self.mark, RUNS_VARIABLE: str(self.root / "runs")}))
        self._stack.enter_context(environment({HOLDER_VARIABLE: None, FAULTS: None, "RUNBOOK_JOB": None}))
        before, watching.POLL_SECONDS = watching.POLL_SECONDS, POLL_SECONDS
        self._stack.callback(setattr, watching, "POLL_SECONDS", before)
        self._stack.callback(self.end_all)
        write_project(self.root, self.root / "python")
        self._warm_up()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def _warm_up(self) -> None:
        """Start the process that forks ranks, and put its client in the place of python."""
        path, folder = self.root / "warm", self.root
        client = Path(__file__).with_name("warm_client.py")
        words = [sys.executable, "-IS", str(client), str(path)]
        (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / "python").chmod(0o755)
        package = str(Path(__file__).parents[2])
        self.warm_pid = shell.start_detached(
            [sys.executable, "-m", "runbook.training.warm", str(path)],
            cwd=folder,
            out=folder / "warm.out",
            err=folder / "warm.err",
            env={"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])},
        )
        if not wait_until(lambda: path.exists() or not psutil.pid_exists(self.warm_pid), WARM_SECONDS):
            raise ProgramError(f"the trainer was not imported within {WARM_SECONDS:.0f} s")
        if not path.exists():
            words_ = shell.last_lines((folder / "warm.err").read_text(errors="replace"))
            raise ProgramError(f"the trainer cannot be imported: pip install 'gpt3-runbook[train]'.\n{words_}")
        self._owner = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._owner.connect(str(path))

    def left(self) -> list[psutil.Process]:
        """Every process of these drills that still runs, less the warm one and ourselves."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
        with contextlib.suppress(psutil.Error):
            found |= {one.pid: one for one in psutil.Process(self.warm_pid).children(recursive=True)}
        for pid in (os.getpid(), self.warm_pid):
            found.pop(pid, None)
        return [process for process in found.values() if process.is_running() and not _is_zombie(process)]

    def end_left(self) -> list[str]:
        """What did not end by itself within some seconds, in words; it is killed."""
        wait_until(lambda: not self.left(), 5)
        told = []
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                told.append(f"{process.pid} {shlex.join(process.cmdline())[:120]}")
                process.kill()
        return told

    def end_all(self) -> None:
        """The warm process ends when its owner's connection closes; whatever else is there is killed."""
        self.end_left()
        if self._owner is not None:
            self._owner.close()
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.warm_pid)
            if not wait_until(lambda: not process.is_running() or _is_zombie(process), 5):
                process.kill()


def write_project(root: Path, warm: Path) -> None:
    """The parameter files of a run small enough for a second."""
    (root / "params" / "sites").mkdir(parents=True, exist_ok=True)
    (root / "notebooks").mkdir(exist_ok=True)
    for name, text in (("drill", RUN_FILE), ("models", MODELS), ("datasets", DATASETS)):
        (root / "params" / f"{name}.yaml").write_text(text)
    sites = (("local", warm, 2), ("four", warm, 4), ("cold", Path(sys.executable), 2))
    for site, python, ranks in sites:
        (root / "params" / "sites" / f"{site}.yaml").write_text(SITE.format(site=site, python=python, ranks=ranks))


def write_tokens(prefix: Path, documents: int = 40, length: int = 120, highest: int = 5000, seed: int = 7) -> None:
    """A .bin/.idx pair with something to learn: each token is likely to be followed by the next number."""
    draw = random.Random(seed)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tokens = array.array("H")
    for _ in range(documents):
        token = draw.randrange(1, highest)
        for _ in range(length):
            tokens.append(token)
            token = (token + draw.choice((1, 1, 1, 2, 5))) % (highest - 1) + 1
    head = HEADER.pack(MAGIC, VERSION, UINT16, documents, documents + 1)
    lengths = struct.pack(f"<{documents}i", *[length] * documents)
    starts = struct.pack(f"<{documents}q", *range(0, documents * length * 2, length * 2))
    order = struct.pack(f"<{documents + 1}q", *range(documents + 1))
    prefix.with_name(prefix.name + ".idx").write_bytes(head + lengths + starts + order)
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens.tobytes())


@contextlib.contextmanager
def environment(changes: dict[str, str | None]) -> Iterator[None]:
    """Change our own environment for a while; None removes."""
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


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True
