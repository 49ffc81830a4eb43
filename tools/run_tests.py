"""Run the suite as parts in parallel lanes: `make test`, `make test-all`, and .ci/run.

    python tools/run_tests.py                  the tests, in as many lanes as there are processors, two at most
    python tools/run_tests.py --ci             also the sites, the long drills and other Pythons
    python tools/run_tests.py --all no rotation: also the tests for other turns (RUNBOOK_ALL=1)

A part is one process. The longest parts start first, and a free lane takes the next one, so that
all lanes end at about the same time. Failed tests are not retried. The output from a part is
printed when it ends. The summary repeats the failures, and lists the time for each part and each
marker, the skipped tests, and the tests left to other turns.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests"))

from suite.report import REPORT_VARIABLE, SuiteReport, read_report  # noqa: E402
from suite.rotation import TURN_VARIABLE  # noqa: E402
from suite.signals import answer_inherited_signals  # noqa: E402

ALL_VARIABLE = "RUNBOOK_ALL"
LANES = min(2, os.cpu_count() or 1)
BIN = Path(sys.executable).parent
FOLDERS = (
    "training",
    "notebooks",
    "tools/evaluate",
    "slurm",
    "browser",
    "jobs",
    "phases",
    "tools/drills",
    "fuzz",
)
"""Folders below tests/ that are separate parts, the longest first. All other folders together are
the part `quick`.
"""
QUICK = "quick"
LONG_DRILLS = ("02", "09", "14", "15", "20")
"""Drills that are too long for tests/tools/drills. `runbook drill` runs one drill per turn."""
SUITE_GB = 5
"""Free space that the tests need, in GB.

With much less, healthy training runs raise an alarm about low disk space.
"""
PYTHONS_GB = 9
"""Free space for `make pythons`, in GB: PyTorch with CUDA, its download, and the rest of an
environment.
"""
SECONDS_A_DAY = 86_400
NO_TESTS = 5
"""The exit code from pytest if it ran no test, which happens if all tests in a part are left for
another turn.
"""


@dataclass(frozen=True)
class Part:
    """A part of the suite, which runs as one process."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class PartResult:
    """The result of a part."""

    name: str
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    """Processor time of the part and all processes that it waited for, without detached processes.
    """
    report: SuiteReport

    @property
    def passed(self) -> bool:
        """Return whether the part passed."""
        nothing_to_do = self.exit_code == NO_TESTS and bool(self.report.left_out)
        return self.exit_code == 0 or nothing_to_do


def pytest_part(name: str, *words: str) -> Part:
    """Return a part that is a separate pytest process."""
    return Part(name, (str(BIN / "pytest"), "-q", "-p", "no:cacheprovider", *words))


def test_parts() -> list[Part]:
    """Return the parts that `make test` runs."""
    parts = [pytest_part(Path(folder).name, f"tests/{folder}") for folder in FOLDERS]
    ignored = [f"--ignore=tests/{folder}" for folder in FOLDERS]
    parts.insert(1, pytest_part(QUICK, "tests", *ignored))
    return parts


def ci_parts(turn: int | None) -> list[Part]:
    """Return the parts that .ci/run adds, the longest first."""
    drill = (str(BIN / "runbook"), "drill", *long_drills(turn))
    return [
        pytest_part("sites", "--timeout=1200", "tests/sites/rehearse_sites.py"),
        Part("pythons", ("make", "pythons", "PYTHONS=rotate")),
        Part("drill", drill),
    ]


def long_drills(turn: int | None) -> tuple[str, ...]:
    """Return the numbers of the long drills for this turn, or all numbers if there is no turn.

    >>> long_drills(6), len(long_drills(None))
    (('09',), 5)
    """
    if turn is None:
        return LONG_DRILLS
    return (LONG_DRILLS[turn % len(LONG_DRILLS)],)


def current_turn() -> int:
    """Return the turn for this commit: the number of commits up to it.

    If git cannot tell, the turn is the number of days since 1970.
    """
    commits = _git("rev-list", "--count", "HEAD")
    is_shallow = _git("rev-parse", "--is-shallow-repository") == "true"
    if is_shallow or not commits.isdigit():
        return int(time.time()) // SECONDS_A_DAY
    return int(commits)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


class Suite:
    """The parts that are waiting, running and finished."""

    def __init__(self, parts: Iterable[Part], folder: Path, turn: int | None) -> None:
        self.waiting: queue.SimpleQueue[Part] = queue.SimpleQueue()
        for part in parts:
            self.waiting.put(part)
        self.folder = folder
        self.turn = turn
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.results: list[PartResult] = []
        self.stopped = False
        self._printing = threading.Lock()

    def run(self, lanes: int) -> None:
        """Run all parts in this many lanes."""
        threads = [threading.Thread(target=self._run_lane, daemon=True) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: pass it on to the process groups of all parts, and start no more parts."""
        self.stopped = True
        for process in list(self.running.values()):
            if process.poll() is None:
                os.killpg(process.pid, number)

    def _run_lane(self) -> None:
        while not self.stopped:
            try:
                part = self.waiting.get_nowait()
            except queue.Empty:
                return
            self._run_part(part)

    def _run_part(self, part: Part) -> None:
        log = self.folder / f"{part.name}.log"
        report = self.folder / f"{part.name}.json"
        environment = {**os.environ, REPORT_VARIABLE: str(report)}
        if self.turn is not None:
            environment[TURN_VARIABLE] = str(self.turn)
        self._say(f"=== {part.name}: started")
        began = time.monotonic()
        with log.open("wb") as output:
            # A separate session, so that neither a terminal hangup nor Ctrl-C in a test reaches the
            # other parts.
            process = subprocess.Popen(
                part.command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running[part.name] = process
            # Not Popen.wait, because only wait4 returns the processor time that this part used.
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        result = PartResult(
            name=part.name,
            exit_code=process.returncode,
            wall_seconds=time.monotonic() - began,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            report=read_report(report) if report.exists() else SuiteReport(),
        )
        self.results.append(result)
        self._say(f"=== {part.name}\n{log.read_text(errors='replace')}=== {row_of(result)}")

    def _say(self, text: str) -> None:
        with self._printing:
            print(text, flush=True)


def row_of(result: PartResult) -> str:
    """Return one line with the part, its result, and its times."""
    ending = "passed" if result.passed else f"failed ({result.exit_code})"
    wall = f"{result.wall_seconds:7.0f} s"
    return f"{result.name:12}{ending:14}{wall}{result.cpu_seconds:7.0f} s of processor time"


def summary_of(results: Sequence[PartResult], turn: int | None) -> list[str]:
    """Return the last lines: parts, markers, rotation, skipped tests, and finally the failures."""
    total = SuiteReport()
    for result in results:
        total.add(result.report)
    lines = [row_of(result) for result in results]
    lines += total.lines()
    if turn is not None:
        lines.append(f"turn {turn}: {TURN_VARIABLE}={turn} make test repeats it")
    lines += [f"FAILED {name}" for name in total.failed]
    lines += [f"FAILED part {result.name}" for result in results if not result.passed]
    return lines


def main() -> int:
    """Run the parts and print the summary. Return 1 if a part failed."""
    parser = argparse.ArgumentParser(description="Run the suite as parts in parallel lanes.")
    parser.add_argument(
        "--ci", action="store_true", help="also the sites, the long drills and other Pythons"
    )
    parser.add_argument("--all", action="store_true", help="no rotation")
    parser.add_argument("--lanes", type=int, default=LANES, help="parts at the same time")
    parser.add_argument("parts", nargs="*", help="only these parts")
    asked = parser.parse_args()
    everything = asked.all or os.environ.get(ALL_VARIABLE) == "1"
    turn = None if everything else int(os.environ.get(TURN_VARIABLE) or current_turn())
    known = [*(ci_parts(turn) if asked.ci else []), *test_parts()]
    if unknown := set(asked.parts) - {part.name for part in known}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = [part for part in known if not asked.parts or part.name in asked.parts]
    if missing := room_missing(parts, [PROJECT, Path(tempfile.gettempdir())]):
        print("\n".join(map(str, missing)), file=sys.stderr)
        return 1
    answer_inherited_signals()
    with tempfile.TemporaryDirectory(prefix="runbook-suite-") as folder:
        suite = Suite(parts, Path(folder), turn)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, suite.stop)
        began = time.monotonic()
        suite.run(asked.lanes)
        print(f"\n=== {asked.lanes} lanes, {time.monotonic() - began:.0f} s")
        print("\n".join(summary_of(suite.results, turn)))
        failed = suite.stopped or not all(result.passed for result in suite.results)
    return int(failed)


@dataclass(frozen=True)
class MissingRoom:
    """A place with less free space than the parts need."""

    place: Path
    free_gb: float
    needed_gb: int

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.free_gb:.1f} GB are free, and these parts need "
            f"{self.needed_gb} GB"
        )


def room_missing(parts: Sequence[Part], places: Sequence[Path]) -> list[MissingRoom]:
    """Return each place with less free space than the parts need.

    >>> room_missing([], [Path("/")])
    []
    """
    needed = 0
    if parts:
        needed = SUITE_GB
    if any(part.name == "pythons" for part in parts):
        needed += PYTHONS_GB
    missing = []
    for place in places:
        free_gb = shutil.disk_usage(place).free / 1e9
        if free_gb < needed:
            missing.append(MissingRoom(place, free_gb, needed))
    return missing


if __name__ == "__main__":
    sys.exit(main())
