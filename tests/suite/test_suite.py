"""The shared test tools do what their docstrings say."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from suite.report import SuiteReport, read_report
from suite.rotation import left_to_other_turns

TESTS = Path(__file__).parents[1]
SHOW_IGNORED = """
import signal, subprocess, sys
from suite.signals import answer_inherited_signals
answer_inherited_signals()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
child = "import signal; print([n.name for n in signal.Signals if signal.getsignal(n) is signal.SIG_IGN])"
print(subprocess.run([sys.executable, "-ISc", child], capture_output=True, text=True).stdout)
"""


class Item:
    """What the rotation reads from a pytest item."""

    def __init__(self, name: str, every: int = 0, **more: int) -> None:
        self.nodeid = f"tests/test_a.py::{name}"
        self.marker = SimpleNamespace(args=(every,), kwargs=more) if every else None

    def get_closest_marker(self, _name: str) -> SimpleNamespace | None:
        return self.marker


def run_in(turn: int, items: list[Item]) -> list[str]:
    left_out = left_to_other_turns(items, turn)
    return [item.nodeid.rpartition(":")[2] for item in items if item not in left_out]


def test_every_case_comes_around_once_and_turns_are_equally_long():
    items = [Item(f"test_x[{case}]", 5) for case in range(20)]
    turns = [run_in(turn, items) for turn in range(5)]
    assert [len(turn) for turn in turns] == [4] * 5
    names = [name for turn in turns for name in turn]
    assert sorted(names) == sorted(f"test_x[{case}]" for case in range(20))
    assert run_in(7, items) == turns[2]


def test_what_names_its_turn_runs_in_it_and_the_unmarked_always():
    items = [Item("test_a", 3, turn=1), Item("test_b[1]", 3, turn=1), Item("test_c")]
    turns = [run_in(turn, items) for turn in range(3)]
    assert turns == [["test_c"], ["test_a", "test_b[1]", "test_c"], ["test_c"]]


def test_signals_that_nohup_and_the_background_ignore_reach_what_is_started():
    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    shown = subprocess.run(
        [sys.executable, "-c", SHOW_IGNORED],
        cwd=TESTS,
        preexec_fn=ignore,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split("\n")[0] == "True"
    assert not {"SIGINT", "SIGQUIT", "SIGHUP"} & set(shown.stdout.split("'"))


def test_reports_of_several_processes_add_up(tmp_path):
    first = SuiteReport(
        tests=Counter(quick=3, slurm=1),
        seconds=Counter(quick=1.5, slurm=60.0),
        skipped=Counter({"no browser (apt-get install chromium)": 2}),
        left_out=Counter({"harness": 5}),
        failed=["tests/a.py::test_x"],
    )
    first.write(tmp_path / "report.json")
    total = SuiteReport()
    total.add(first)
    total.add(read_report(tmp_path / "report.json"))
    assert total.tests == {"quick": 6, "slurm": 2}
    assert total.failed == ["tests/a.py::test_x"] * 2
    assert total.lines() == [
        "slurm         2 tests      120 s",
        "quick         6 tests        3 s",
        "left to another turn (make test-all runs them too): harness (10)",
        "skipped: 4 x no browser (apt-get install chromium)",
    ]
