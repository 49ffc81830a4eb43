"""A copy of the project with a toy run file, the programs that work with it, and the processes that
they leave running."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from suite.messages import says_only

from runbook.phases.messages import PhaseMessage

BIN = Path(sys.executable).parent
MASTERS = Path(__file__).parents[2]
PHASES = (
    "00-plan",
    "01-environment",
    "02-data",
    "03-smoke-test",
    "04-training",
    "05-analysis",
    "06-evaluation",
)
MARK = "RUNBOOK_TEST_MARK"
ITERATIONS = 48
RUN_FILE = """\
# The toy of the tests. It holds what YAML 1.1 reads otherwise: 12:00:00 is 43200 there, 1e-1 a word.
run: local
site: local
model: tiny  # 4 x 128
data:
  dataset: corpus
parallel:
  tensor: 1
training:
  precision: bf16
  iterations: 48  # long enough to be stopped at 6 by somebody who looks once a second
  micro_batch: 4
  global_batch: 8
  learning_rate: 6.0e-4
  min_learning_rate: 6.0e-5
  warmup_iterations: 2
  weight_decay: 1e-1
  save_interval: 20
  eval_interval: 20
  eval_iterations: 1
  rehearse_stop: 6
  sample_prompt: The first time
  sample_tokens: 8
  smoke:
    model: pair
    iterations: 8
    global_batch: 4
    warmup_iterations: 2
jobs:
  smoke:
    walltime: 12:00:00
  training:
    nodes: 1
    walltime: 00:30:00
"""
PAIR = """
pair:  # another shape than the training's
  label: pair
  layers: 2
  hidden: 128
  heads: 4
  sequence_length: 128
  positions: 128
  source: the tests
"""
SECRET = "pass-Ab3dAb3dAb3dAb3d"
"""The text source and a set-up step need it. Files in the project contain only the name of its
variable.
"""
LOG_IN = """
preparation:
  - title: log in
    creates: logged-in
    commands: ['sha256sum <<<"$secret" >logged-in']
    secret: env:TOY_SECRET
"""


class Toy:
    """A separate project folder.

    Every process started for it has a mark, so that it can be found again.
    """

    def __init__(self, root: Path, text: str = RUN_FILE) -> None:
        self.root = root
        self.mark = uuid.uuid4().hex
        for name in ("params", "notebooks"):
            shutil.copytree(
                MASTERS / name, root / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints")
            )
        with (root / "params" / "models.yaml").open("a") as stream:
            stream.write(PAIR)
        self.write_run_file(text)

    def ask_for_a_secret(self) -> None:
        """Make the site and the text require a secret."""
        with (self.root / "params" / "sites" / "local.yaml").open("a") as stream:
            stream.write(LOG_IN)
        catalogue = self.root / "params" / "datasets.yaml"
        catalogue.write_text(
            catalogue.read_text().replace("\ncorpus:\n", "\ncorpus:\n  token: env:TOY_SECRET\n")
        )

    def write_run_file(self, text: str, name: str = "local") -> Path:
        """Write params/<name>.yaml."""
        path = self.root / "params" / f"{name}.yaml"
        path.write_text(text)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """Return our environment without the variables from another run, and with the mark."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("RUNBOOK_")}
        return own | {MARK: self.mark, "TOY_SECRET": SECRET} | more

    def start(
        self, *words: object, cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a program from the virtual environment, or bash. Its output and errors are read as
        one stream.
        """
        program, *rest = map(str, words)
        path = BIN / program
        return subprocess.Popen(
            [str(path) if path.exists() else program, *rest],
            cwd=cwd or self.root,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(
        self, *words: object, cwd: Path | None = None, timeout: float = 900, **environment: str
    ) -> Ended:
        """Run a program to completion."""
        began = time.monotonic()
        process = self.start(*words, cwd=cwd, **environment)
        text, _ = process.communicate(timeout=timeout)
        return Ended(process.returncode, text, time.monotonic() - began)

    def run(self, runs: Path, *words: object, run: str = "local", **options: Any) -> Ended:
        """Call `runbook run local`."""
        return self.call("runbook", "run", run, *words, "--runs", runs, **options)

    def processes(self) -> list[psutil.Process]:
        """Return everything that was started for this project and is still running, wherever it has
        moved."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def end_all(self) -> None:
        """End everything that was started for this project and is still running."""
        for process in self.processes():
            process.kill()


class Ended:
    """How a program ended: exit code, all output, duration."""

    def __init__(self, code: int, text: str, seconds: float) -> None:
        self.code = code
        self.text = text
        self.seconds = seconds

    def executed(self) -> list[str]:
        """Return the phases that `runbook run` executed, according to its output."""
        return self._phases(PhaseMessage.PHASE_RUNS)

    def verified(self) -> list[str]:
        """Return the phases that `runbook run` reported as done."""
        return self._phases(PhaseMessage.PHASE_VERIFIED)

    def _phases(self, message: PhaseMessage) -> list[str]:
        lines = [line for line in self.text.splitlines() if says_only(line, message)]
        return [line.split()[0] for line in lines]

    def __repr__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s:\n{self.text}"


def json_of(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows in a JSON-lines file, or no rows if there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(folder: Path, metrics: str = "metrics.jsonl") -> dict[int, str]:
    """Return the loss by iteration, to five digits.

    If an iteration was repeated, the last result counts.
    """
    return {row["iteration"]: f"{row['loss']:.5g}" for row in lines_of(folder / metrics)}


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for a condition to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


def kill(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to this process only. Its previous output is dropped."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


class Listener:
    """Read the command lines of all processes repeatedly, as any user on the machine can."""

    def __init__(self, word: str) -> None:
        self.word, self.heard, self.looks = word.encode(), set[bytes](), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._over.wait(0.1):
            self.looks += 1
            # Not "[0-9]*/cmdline": glob looks at each such file, and raises if the process has just
            # ended.
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    line = (folder / "cmdline").read_bytes()
                    if self.word in line:
                        self.heard.add(line)


def kernels_below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the Jupyter kernels that a process started."""
    try:
        below = psutil.Process(process.pid).children()
        return [child for child in below if any("ipykernel" in word for word in child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def tree(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Return every file below a folder, by relative name."""
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(without)
    }
