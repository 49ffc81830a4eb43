"""How a drill's end becomes a verdict, a page, an exit code; what it leaves running is found."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from runbook.commands.drill import drill
from runbook.drills import table
from runbook.drills.bench import Bench, write_project
from runbook.drills.document import page
from runbook.drills.random_kills import broken_order
from runbook.drills.table import DRILLS, chosen, do_one
from runbook.drills.verdict import Ending, judge
from runbook.errors import JobError, ParamsError
from runbook.schedulers.processes import wait_until


def test_there_are_twenty_named_after_the_table():
    assert [name[:2] for name in DRILLS] == [f"{number:02}" for number in range(1, 21)]
    assert next(iter(DRILLS)) == "01-kill-rank"


@pytest.mark.parametrize("word", ["01-kill-rank", "01", "1", "kill-rank"])
def test_a_drill_is_named_in_each_of_its_ways(word):
    assert chosen([word]) == ["01-kill-rank"]


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ParamsError, match=r"There is no drill 'kil-rank'\. Did you mean 01-kill-rank"):
        chosen(["kil-rank"])


def test_one_broken_rule_fails_the_drill_and_is_all_that_is_told():
    ending = Ending("nothing", told=["one held"])
    ending.rule(False, "five steps lost, at most four")
    verdict = judge("x", ending, [], 2.0)
    assert (verdict.verdict, verdict.detail) == ("fail", "broken: five steps lost, at most four")


def test_a_process_left_behind_fails_the_drill():
    verdict = judge("x", Ending("nothing", told=["all held"]), ["4711 python"], 1.0)
    assert (verdict.verdict, verdict.detail) == ("fail", "broken: processes left: 4711 python")


class Still(Bench):
    """A bench without a trainer."""

    def _warm_up(self) -> None:
        write_project(self.root, self.root / "python")


def test_a_drill_that_breaks_itself_is_a_failed_one(monkeypatch):
    def broken(bench):
        """Break."""
        raise JobError("no such job")

    monkeypatch.setitem(table.DRILLS, "01-kill-rank", broken)
    with Still() as bench:
        verdict = do_one(bench, "01-kill-rank")
    assert (verdict.verdict, verdict.detail) == ("fail", "broken: JobError: no such job")


def test_what_a_drill_left_running_is_found_by_its_mark_and_ended():
    with Still() as bench:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        assert wait_until(lambda: [one.pid for one in bench.left()] == [process.pid], 10)
        (told,) = bench.end_left()
        assert told.startswith(str(process.pid))
        assert process.wait(10) == -9
    assert bench.left() == []


def test_the_command_says_what_failed_and_ends_with_1(monkeypatch):
    monkeypatch.setattr(table, "Bench", Still)
    monkeypatch.setitem(table.DRILLS, "01-kill-rank", lambda bench: Ending("a", told=["held"]))
    monkeypatch.setitem(table.DRILLS, "02-kill-launcher", lambda bench: Ending("b", broken=["not detected"]))
    ended = CliRunner().invoke(drill, ["1", "2", "--json"], standalone_mode=False)
    rows = json.loads(ended.output)
    assert ended.return_value == 1
    assert [(row["name"], row["verdict"]) for row in rows] == [("01-kill-rank", "pass"), ("02-kill-launcher", "fail")]
    keys = {"name", "verdict", "detail", "fault", "detected_after_s", "action", "steps_lost", "final_loss_equal"}
    assert keys <= set(rows[0])
    shown = CliRunner().invoke(drill, ["1"], standalone_mode=False)
    assert shown.return_value == 0
    assert shown.output.endswith("1 of 1 drills ended as they should (of 20 that there are)\n")


def test_the_list_starts_nothing(monkeypatch):
    monkeypatch.setattr(table, "Bench", None)
    listed = CliRunner().invoke(drill, ["--list", "--json"], standalone_mode=False)
    assert [row["name"] for row in json.loads(listed.output)] == list(DRILLS)
    assert all(row["fault"] for row in json.loads(listed.output))


def test_the_page_has_a_row_for_each_drill(tmp_path):
    verdicts = [judge(name, Ending("a | b", told=["held"]), [], 3.0) for name in DRILLS]
    text = page(verdicts, "2026-11-21", "abc123")
    assert text.count("| pass |") == 20
    assert "**20 of 20 ended as they should**" in text and "a \\| b" in text


@pytest.mark.training
def test_the_warm_process_ends_with_its_owner():
    code = (
        "import os\nfrom runbook.drills.bench import Bench\n"
        "with Bench() as bench:\n    print(bench.warm_pid, flush=True)\n    os.kill(os.getpid(), 9)\n"
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

    assert wait_until(ended, 20)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([1, 2, 3], ""),
        ([1, 2, 2, 3], ""),
        ([1, 3], "after step 1 came step 3"),
        ([1, 2, 4, 3], "after step 2 came step 4"),
        ([2, 3], "after step 0 came step 2"),
        ([1, 2], "2 steps of 3"),
    ],
)
def test_the_order_of_samples_is_judged_along_the_steps_that_count(steps, says):
    rows = [{"iteration": step, "consumed_samples": 4 * step} for step in steps]
    assert broken_order(rows, 3) == says


def test_a_step_on_the_wrong_samples_is_found():
    rows = [{"iteration": 1, "consumed_samples": 4}, {"iteration": 2, "consumed_samples": 12}]
    assert broken_order(rows, 2) == "step 2 ended at sample 12"
