"""How a drill's end becomes a verdict, a page and an exit code, and how leftover processes are
found.
"""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner
from suite.messages import containing, refuses

from runbook.cli.drill import drill
from runbook.core.errors import JobError, ParamsError
from runbook.core.processes import wait_until
from runbook.tools.drills import drill_list
from runbook.tools.drills.bench import (
    Bench,
    DrillEnding,
    MeasuredValue,
    judge_ending,
    write_project,
)
from runbook.tools.drills.damaged_files import TrainerCode
from runbook.tools.drills.drill_list import DRILLS, chosen_drills, do_drill
from runbook.tools.drills.drill_report import page_text
from runbook.tools.drills.messages import DrillMessage
from runbook.tools.drills.random_kills import broken_order
from runbook.training.messages import TrainingMessage


def test_the_codes_that_drills_look_for_are_the_trainers():
    assert set(TrainerCode) <= {message.code for message in TrainingMessage}


def test_there_are_twenty_named_after_the_table():
    assert [name[:2] for name in DRILLS] == [f"{number:02}" for number in range(1, 21)]
    assert next(iter(DRILLS)) == "01-kill-rank"


@pytest.mark.parametrize("word", ["01-kill-rank", "01", "1", "kill-rank"])
def test_a_drill_is_named_in_each_of_its_ways(word):
    assert chosen_drills([word]) == ["01-kill-rank"]


def test_an_unknown_name_is_answered_with_the_nearest():
    with refuses(
        ParamsError,
        DrillMessage.NO_SUCH_DRILL,
        word="kil-rank",
        hint=containing("Did you mean 01-kill-rank"),
    ):
        chosen_drills(["kil-rank"])


def test_one_broken_rule_fails_the_drill_and_is_all_that_is_told():
    ending = DrillEnding("nothing", passed=["one held"])
    rule = "five steps lost, at most four"
    ending.rule(False, rule)
    verdict = judge_ending("x", ending, [], 2.0)
    assert (verdict.verdict, verdict.detail) == ("fail", DrillMessage.BROKEN.fill(rules=rule))


def test_what_is_measured_is_shown_with_its_band_and_decides_nothing():
    ending = DrillEnding("fifty kills", passed=["nothing lost"])
    figure = MeasuredValue("goodput 35.7%:", 71.2, 80, 105, "% of the ideal")
    ending.figures.append(figure)
    verdict = judge_ending("x", ending, [], 2.0)
    assert verdict.verdict == "pass"
    assert not figure.usual
    band = DrillMessage.UNUSUAL_BAND.fill(low=80, high=105)
    assert verdict.measured == DrillMessage.FIGURE.fill(
        name=figure.name, value=71.2, unit=figure.unit, band=band
    )
    (row,) = [
        line
        for line in page_text([verdict], "2026-11-21", "abc").splitlines()
        if line.startswith("| x |")
    ]
    assert verdict.measured in row
    assert "pass" in row.split(" | ")
    assert verdict.as_dict()["figures"] == [
        {
            "name": figure.name,
            "value": 71.2,
            "low": 80,
            "high": 105,
            "unit": figure.unit,
            "usual": False,
        }
    ]


def test_a_process_left_behind_fails_the_drill():
    verdict = judge_ending("x", DrillEnding("nothing", passed=["all held"]), ["4711 python"], 1.0)
    left = DrillMessage.PROCESSES_LEFT.fill(processes="4711 python")
    assert (verdict.verdict, verdict.detail) == ("fail", DrillMessage.BROKEN.fill(rules=left))


class Still(Bench):
    """A bench that starts no trainer."""

    def _warm_up(self) -> None:
        write_project(self.root, self.root / "python")


def test_a_drill_that_breaks_itself_is_a_failed_one(monkeypatch):
    error = JobError("no such job")

    def broken(bench):
        """Raise the error, as a drill that fails does."""
        raise error

    monkeypatch.setitem(drill_list.DRILLS, "01-kill-rank", broken)
    with Still() as bench:
        verdict = do_drill(bench, "01-kill-rank")
    detail = DrillMessage.BROKEN.fill(rules=f"JobError: {error}")
    assert (verdict.verdict, verdict.detail) == ("fail", detail)


def test_what_a_drill_left_running_is_found_by_its_mark_and_ended():
    with Still() as bench:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True
        )
        assert wait_until(lambda: [one.pid for one in bench.left()] == [process.pid], 60)
        (killed,) = bench.end_left()
        assert killed.startswith(str(process.pid))
        assert process.wait(60) == -9
    assert bench.left() == []


def test_the_command_says_what_failed_and_ends_with_1(monkeypatch):
    monkeypatch.setattr(drill_list, "Bench", Still)
    monkeypatch.setitem(
        drill_list.DRILLS, "01-kill-rank", lambda bench: DrillEnding("a", passed=["held"])
    )
    monkeypatch.setitem(
        drill_list.DRILLS,
        "02-kill-launcher",
        lambda bench: DrillEnding("b", broken=["not detected"]),
    )
    ended = CliRunner().invoke(drill, ["1", "2", "--json"], standalone_mode=False)
    rows = json.loads(ended.output)
    assert ended.return_value == 1
    assert [(row["name"], row["verdict"]) for row in rows] == [
        ("01-kill-rank", "pass"),
        ("02-kill-launcher", "fail"),
    ]
    keys = {
        "name",
        "verdict",
        "detail",
        "fault",
        "detected_after_s",
        "action",
        "steps_lost",
        "final_loss_equal",
    }
    assert keys <= set(rows[0])
    shown = CliRunner().invoke(drill, ["1"], standalone_mode=False)
    assert shown.return_value == 0
    assert shown.output.endswith("1 of 1 ended as they should (there are 20 drills)\n")


def test_the_list_starts_nothing(monkeypatch):
    monkeypatch.setattr(drill_list, "Bench", None)
    listed = CliRunner().invoke(drill, ["--list", "--json"], standalone_mode=False)
    assert [row["name"] for row in json.loads(listed.output)] == list(DRILLS)
    assert all(row["fault"] for row in json.loads(listed.output))


def test_the_page_has_a_row_for_each_drill(tmp_path):
    detail = "a | b"
    verdicts = [
        judge_ending(name, DrillEnding(detail, passed=["held"]), [], 3.0) for name in DRILLS
    ]
    text = page_text(verdicts, "2026-11-21", "abc123")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert sum("pass" in row for row in rows) == 20
    assert f"**{DrillMessage.ENDED_AS_THEY_SHOULD.fill(passed=20, all=20)}**" in text
    assert detail.replace("|", r"\|") in text


@pytest.mark.training
def test_the_warm_process_ends_with_its_owner():
    code = (
        "import os\nfrom runbook.tools.drills.bench import Bench\n"
        "with Bench() as bench:\n    print(bench.warm.pid, flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    gone = (psutil.NoSuchProcess, psutil.ZombieProcess)

    def ended() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except gone:
            return True

    assert wait_until(ended, 120)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([1, 2, 3], ""),
        ([1, 2, 2, 3], ""),
        ([1, 3], "step 1 was followed by step 3"),
        ([1, 2, 4, 3], "step 2 was followed by step 4"),
        ([2, 3], "step 0 was followed by step 2"),
        ([1, 2], "2 steps of 3"),
    ],
)
def test_the_order_of_samples_is_judged_along_the_steps_that_count(steps, says):
    rows = [{"iteration": step, "consumed_samples": 4 * step} for step in steps]
    assert broken_order(rows, 3) == says


def test_a_step_on_the_wrong_samples_is_found():
    rows = [{"iteration": 1, "consumed_samples": 4}, {"iteration": 2, "consumed_samples": 12}]
    assert broken_order(rows, 2) == DrillMessage.STEP_AT_SAMPLE.fill(step=2, samples=12)
