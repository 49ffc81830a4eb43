"""tools/run_tests.py: every test belongs to one part, and a failed part fails the suite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import run_tests
from run_tests import FOLDERS, Part, Suite, long_drills, summary_of

from runbook.core.processes import wait_until

PROJECT = Path(__file__).parents[2]


def small_part(name: str, code: str) -> Part:
    return Part(name, (sys.executable, "-ISc", code))


def test_every_folder_that_is_a_part_exists_and_the_quick_part_has_all_others():
    assert all((PROJECT / "tests" / name).is_dir() for name in FOLDERS)
    parts = {part.name: part.command for part in run_tests.test_parts()}
    names = {folder: Path(folder).name for folder in FOLDERS}
    assert set(parts) == {"quick", *names.values()}
    ignored = {word.partition("=")[2] for word in parts["quick"] if word.startswith("--ignore")}
    assert ignored == {f"tests/{folder}" for folder in FOLDERS}
    assert all(parts[name][-1] == f"tests/{folder}" for folder, name in names.items())


def test_every_long_drill_comes_around_in_five_turns():
    from tools.drills.test_drills_done import LONG

    rotated = sorted(drill for turn in range(5) for drill in long_drills(turn))
    assert rotated == sorted(name[:2] for name in LONG) == sorted(long_drills(None))


def test_the_turn_is_the_number_of_commits_or_else_the_day(monkeypatch):
    answers = {"rev-list": "675", "rev-parse": "false"}
    monkeypatch.setattr(run_tests, "_git", lambda *words: answers[words[0]])
    assert run_tests.current_turn() == 675
    today = int(time.time()) // 86400
    for changed in ({"rev-parse": "true"}, {"rev-list": ""}):
        answers = {"rev-list": "675", "rev-parse": "false"} | changed
        assert run_tests.current_turn() in (today, today + 1)


def test_a_part_of_which_all_is_left_to_another_turn_has_not_failed():
    left_out = run_tests.SuiteReport(left_out=Counter(harness=5))
    for report, passed in ((left_out, True), (run_tests.SuiteReport(), False)):
        result = run_tests.PartResult("evaluate", 5, 1.0, 1.0, report)
        assert result.passed is passed


def test_lanes_share_the_parts_and_a_failed_one_fails_the_suite(tmp_path, capsys):
    parts = [small_part(str(number), f"raise SystemExit({number})") for number in range(3)]
    suite = Suite(parts, tmp_path, 4)
    suite.run(2)
    assert {result.name: result.exit_code for result in suite.results} == {"0": 0, "1": 1, "2": 2}
    lines = summary_of(suite.results, 4)
    failed = [line.split()[1:] for line in lines if line.startswith("FAILED ")]
    assert sorted(failed) == [["part", "1"], ["part", "2"]]
    started = re.findall(r"^=== (\S+): started", capsys.readouterr().out, re.MULTILINE)
    assert sorted(started) == ["0", "1", "2"]


def test_the_turn_and_the_report_reach_a_part(tmp_path, capsys):
    code = (
        "import os; print(os.environ['RUNBOOK_TURN']);"
        "open(os.environ['RUNBOOK_TEST_REPORT'], 'w').write("
        '\'{"tests": {"quick": 2}, "seconds": {"quick": 1}, "skipped": {"no x": 1}, "left_out": {}, "failed": []}\')'
    )
    suite = Suite([small_part("one", code)], tmp_path, 41)
    suite.run(1)
    assert "41\n" in capsys.readouterr().out
    assert suite.results[0].report.tests == {"quick": 2}
    report = suite.results[0].report
    assert report.skipped == {"no x": 1}
    assert set(report.lines()) <= set(summary_of(suite.results, 41))


def test_ctrl_c_ends_every_part_also_in_the_background_of_a_script(tmp_path):
    """A shell starts `command &` with SIGINT ignored, but the suite still passes on the signals
    that it gets.
    """
    code = (
        "import sys, signal, pathlib; sys.path[:0] = ['tools']\n"
        "import run_tests\n"
        "part = run_tests.Part('long', (sys.executable, '-ISc', sys.argv[1], sys.argv[2]))\n"
        "run_tests.test_parts = lambda: [part]\n"
        "sys.argv = ['run_tests.py']\n"
        "sys.exit(run_tests.main())"
    )
    waits = "import sys, time; open(sys.argv[1], 'w'); time.sleep(300)"
    running = tmp_path / "running"
    log = tmp_path / "out"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, waits, str(running)],
            cwd=PROJECT,
            env={**os.environ, "RUNBOOK_TURN": "0"},
            stdout=output,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
    assert wait_until(running.exists, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 1  # the part alone would take 300 s
    assert ["FAILED", "part", "long"] in [line.split() for line in log.read_text().splitlines()]


def test_a_failed_test_is_not_tried_again(tmp_path):
    """A second try would pass here, and would hide a flaky test."""
    test = tmp_path / "test_x.py"
    test.write_text(
        "from pathlib import Path\n"
        "def test_x():\n"
        "    seen = Path(__file__).with_name('seen')\n"
        "    again = seen.exists()\n"
        "    seen.touch()\n"
        "    assert again\n"
    )
    code = (
        "import sys; sys.path.insert(0, 'tools'); import run_tests\n"
        f"part = run_tests.pytest_part('x', {str(test)!r})\n"
        "run_tests.test_parts = lambda: [part]\n"
        "run_tests.ci_parts = lambda _: []\n"
        "sys.argv = ['run_tests.py', '--ci']\n"
        "sys.exit(run_tests.main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed" in ended.stdout


def test_a_full_disk_is_said_before_anything_starts(monkeypatch):
    """On a nearly full disk, healthy runs raise alarms, and the last lines of a run are lost."""
    free = SimpleNamespace(free=9_500_000_000)
    monkeypatch.setattr(run_tests.shutil, "disk_usage", lambda _: free)
    tests = run_tests.Part("quick", ())
    pythons = run_tests.Part("pythons", ())
    assert run_tests.room_missing([tests], [Path("a")]) == []
    place = Path("a")
    assert run_tests.room_missing([tests, pythons], [place]) == [
        run_tests.MissingRoom(place, free_gb=9.5, needed_gb=14)
    ]
