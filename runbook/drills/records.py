"""Drills around the training: locks of the dead, a kernel that dies, outputs that vanish, clocks, time limits."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from pathlib import Path

from runbook import shell
from runbook.drills.bench import Bench
from runbook.drills.case import PHASE, Case
from runbook.drills.ranks import end_well, same_as_undisturbed
from runbook.drills.verdict import Ending
from runbook.errors import HeldError
from runbook.phases import jobs
from runbook.phases.tail import read_lines
from runbook.schedulers.lock import hold

HOLD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from runbook.schedulers.lock import hold
with hold(Path(sys.argv[1]), "a drill"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
LAUNCH_AND_DIE = """
import os, signal, sys
from pathlib import Path
from runbook import params
from runbook.phases import campaign, jobs
settings = params.load("drill", set_words=sys.argv[2:], project=Path(sys.argv[1]))
opened = campaign.open_campaign(settings, "04-training")
jobs.launch(opened)
os.kill(os.getpid(), signal.SIGKILL)
"""


def stale_lock(bench: Bench) -> Ending:
    """The lock of a killed process is taken over and told; that of a living one is respected."""
    case, ending = Case(bench, "lock"), Ending("a process is killed while it holds the run's lock; then one that lives")
    dead = _python(HOLD_AND_DIE, str(case.folder))
    ending.rule(dead.exit_code == -9 and (case.folder / "lock.json").exists(), "the dead one left its lock")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        told = case.train()
    ending.rule("The lock of a dead process was taken over: process" in said.getvalue(), "taken over, and told")
    with hold(case.folder, "another worker"):
        try:
            _launch_anew(case)
            ending.rule(False, "a living one's lock was not respected")
        except HeldError as error:
            ending.rule("another worker" in str(error), "a living one's lock is respected, its holder named")
    ending.rule(not (case.folder / "lock.json").exists(), "no lock is left")
    ending.action = "recognised by process, start time, host and boot id; removed and told"
    return end_well(bench, case, ending, told)


def kernel_restart(bench: Bench) -> Ending:
    """The kernel dies after it submitted the job; the next one, and a cell run twice, find the job."""
    case, ending = (
        Case(bench, "kernel"),
        Ending("the kernel is killed right after it launched the job; cells run again"),
    )
    dead = _python(LAUNCH_AND_DIE, str(bench.root), *case.words, f"as={case.name}")
    ending.rule(dead.exit_code == -9 and case.job_names() == [PHASE], "the job was submitted, then the kernel died")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        _launch_anew(case)
        jobs.launch(case.campaign)
        told = case.train()
        case.train()
    found = "it is watched, not started again" in said.getvalue() or "nothing is started again" in said.getvalue()
    ending.rule(found, "a new kernel finds the job")
    ending.rule("done, verified. Nothing to launch" in said.getvalue(), "a cell run again after the end does nothing")
    ending.rule(case.job_names() == [PHASE], "no job was started twice")
    ending.action = "the state is read from the run's files; the running job is watched"
    return end_well(bench, case, ending, told)


def vanished_outputs(bench: Bench) -> Ending:
    """TensorBoard's folder, the log's reader and metrics.jsonl vanish while it trains."""
    case = Case(bench, "vanish")
    ending = Ending("standard output unread, TensorBoard's folder and metrics.jsonl moved away at step 5")
    metrics = case.folder / case.campaign.spec["log"]["metrics"]
    aside = case.folder / "aside.jsonl"

    def vanish() -> None:
        shutil.rmtree(case.folder / "tensorboard", ignore_errors=True)
        metrics.rename(aside)

    with case.meanwhile(case.is_at(5), vanish) as acted:
        status = case.one_job("mute:step=3; slow:seconds=0.1,factor=2")
    ending.rule(bool(acted) and status.exit_code == 0, "the training came to its end")
    joined = read_lines(aside) + read_lines(metrics)
    metrics.write_text(aside.read_text() + metrics.read_text())
    ending.rule([row["iteration"] for row in joined] == list(range(1, 17)), "no step is missing from both parts")
    ending.final_loss_equal = same_as_undisturbed(bench, case)
    ending.rule(ending.final_loss_equal, "every loss is that of the undisturbed training")
    ending.action = "training goes on; what can be written is written anew"
    return ending


def clocks(bench: Bench) -> Ending:
    """The clock is set back an hour; a job comes near its time limit; an exit duration is reached."""
    ending = Ending("clock set back by an hour at step 9; a time limit of 16 s; an exit duration of 3 s")
    case = Case(bench, "clock")
    told = case.train(f"clock:step=9,seconds=-3600,job={PHASE}")
    ending.rule(all(0 < row["seconds"] < 60 for row in case.rows()), "every step's time is measured without the clock")
    limited = Case(bench, "limit", "jobs.training.walltime=00:00:16", "training.iterations=72")
    text = limited.train("slow:seconds=0.15,factor=2")
    stopped, ended = limited.events("stopped"), limited.events("ended")
    ending.rule(not text and limited.done(), "with a time limit it came to its end" if not text else text[:300])
    ending.rule([one["signal"] for one in stopped] == ["time_limit"] * len(stopped) != [], "stopped before the limit")
    ending.rule(all(one["exit_code"] in (75, 0) for one in ended), "exit code 75 each time")
    late = [job for job in limited.job_names() if (limited.folder / "jobs" / job / "timed_out").exists()]
    ending.rule(not late, "the last save was whole before the limit")
    ending.rule(limited.steps_lost() == 0, "no step was done twice")
    for_a_while = Case(bench, "duration", "training.exit_duration=3", "training.iterations=32")
    text = for_a_while.train("slow:seconds=0.2,factor=2")
    reasons = {one["signal"] for one in for_a_while.events("stopped")}
    ending.rule(not text and reasons == {"exit_duration"}, "an exit duration saves and goes on")
    ending.action = "time is taken from the machine's uptime; stopped with a reserve of two saves"
    return end_well(bench, case, ending, told)


def _launch_anew(case: Case) -> None:
    case.campaign = case.open()
    jobs.launch(case.campaign)


def _python(code: str, *words: str) -> shell.Finished:
    package = str(Path(__file__).parents[2])
    return shell.run([sys.executable, "-c", code, *words], env={"PYTHONPATH": package}, check=False, timeout=120)
