"""Drills on the ranks of a job: killed, orphaned, asked to stop, hanging, slow, lost with their node, failing alike."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from runbook.drills.bench import Bench
from runbook.drills.case import Case
from runbook.drills.verdict import Ending
from runbook.schedulers.processes import wait_until

SAVE_INTERVAL = 4


def same_as_undisturbed(bench: Bench, case: Case, *words: str) -> bool:
    """Whether every loss is that of a training with the same values that nothing happened to."""
    if words not in bench.references:
        calm = Case(bench, f"calm-{len(bench.references)}", *words)
        assert calm.train() == "", "the undisturbed training failed"
        bench.references[words] = calm.losses()
    return case.losses() == bench.references[words]


def end_well(
    bench: Bench, case: Case, ending: Ending, told: str, *words: str, most_lost: int = SAVE_INTERVAL
) -> Ending:
    """The rules that hold wherever a training goes on to its end."""
    ending.steps_lost = case.steps_lost()
    ending.final_loss_equal = same_as_undisturbed(bench, case, *words)
    ending.rule(not told and case.done(), "it came to its end" if not told else f"it did not end: {told[:300]}")
    ending.rule(ending.steps_lost <= most_lost, f"{ending.steps_lost} steps lost, at most {most_lost}")
    ending.rule(ending.final_loss_equal, "every loss is that of the undisturbed training")
    ending.rule(not case.parts(), "no unfinished file is left")
    return ending


def kill_rank(bench: Bench) -> Ending:
    """SIGKILL to one rank in the middle of a step."""
    case, ending = Case(bench, "kill-rank"), Ending("SIGKILL to rank 1 at step 11")
    told = case.train("kill:rank=1,step=11,job=04-training")
    first = case.events("ended")[0]
    ending.detected_after_s = first["at"] - next(row["time"] for row in case.rows() if row["iteration"] == 10)
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    ending.rule(first["evidence"] == "rank 1 ended with exit code 137 (signal 9)", "the rank is named")
    ending.action = f"all ranks ended, resumed from step {case.events('resumed')[-1]['iteration']}"
    return end_well(bench, case, ending, told)


def kill_launcher(bench: Bench) -> Ending:
    """SIGKILL to the job's script; the ranks are python processes of their own, as on a cluster."""
    case, ending = Case(bench, "kill-launcher", "site=cold"), Ending("SIGKILL to the job's script at step 5")
    case.launch("slow:seconds=0.2,factor=2")
    wait_until(case.is_at(5), 120)
    script, ranks = case.script(), [case.rank(0), case.rank(1)]
    script.kill()
    began = time.monotonic()
    gone = wait_until(lambda: not any(runs(rank) for rank in ranks) and case.status().final, 30, interval=0.02)
    ending.detected_after_s = time.monotonic() - began
    ending.rule(gone, "its ranks ended with it, and its end is known")
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    told = case.train()
    ending.rule(len(case.job_names()) == 2, "the next launch resumed it")
    ending.action = "the kernel ended the ranks; the lost job was recognised and resumed"
    return end_well(bench, case, ending, told)


def runs(process: psutil.Process) -> bool:
    """Whether a process still does anything."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def preemption(bench: Bench) -> Ending:
    """SIGTERM to the script, SIGUSR1 and SIGTERM to single ranks, one job after the other."""
    case = Case(bench, "preempt")
    ending = Ending("SIGTERM to the script, SIGUSR1 to rank 0, SIGTERM to rank 1")
    faults = (
        "slow:seconds=0.3,factor=2,job=04-training; usr1:rank=0,step=11,job=04-training-2; "
        "term:rank=1,step=13,job=04-training-3"
    )
    with case.meanwhile(case.is_at(3), lambda: case.script().terminate()):
        told = case.train(faults)
    stopped, ended = case.events("stopped"), case.events("ended")
    signals = [one["signal"] for one in stopped]
    ending.rule(signals == ["SIGTERM", "SIGUSR1", "SIGTERM"], f"stopped by {', '.join(signals)}")
    ending.rule([one["exit_code"] for one in ended] == [75, 75, 75, 0], "exit code 75 each time, then 0")
    ending.rule(len(case.job_names()) == 4, "each was submitted again once")
    samples = case.samples()
    ending.rule(all(samples[n] == 4 * n for n in samples), "the data order went on exactly")
    ending.rule(case.steps_lost() == 0, "no step was done twice")
    ending.action = "saved, ended with 75, resumed"
    return end_well(bench, case, ending, told)


def hang(bench: Bench) -> Ending:
    """One rank is stopped by SIGSTOP, in the next job another one sleeps for ever."""
    limit = 20
    words = (f"training.process_group_timeout={limit}",)
    case = Case(bench, "hang", *words)
    ending = Ending("SIGSTOP to rank 1 at step 9; rank 0 sleeps for ever at step 15 of the next job")
    told = case.train("stop:rank=1,step=9,job=04-training; hang:rank=0,step=15,job=04-training-2")
    hangs = case.events("hang")
    found = [(one["rank"], one["step"]) for one in hangs]
    ending.rule(found == [(1, 9), (0, 15)], f"hanging rank and step named: {found}")
    if len(hangs) == 2:
        last = next(row["time"] for row in case.rows() if row["iteration"] == 8)
        ending.detected_after_s = hangs[0]["time"] - last
        ending.rule(ending.detected_after_s < limit, f"{ending.detected_after_s:.1f} s, before the limit of {limit} s")
        stacks = [Path(one["stacks"]).read_text(errors="replace") for one in hangs if Path(one["stacks"]).exists()]
        ending.rule(len(stacks) == 2 and all("faults.py" in text for text in stacks), "their stacks were kept")
    ending.action = "stacks written, rank killed, job resumed"
    return end_well(bench, case, ending, told, *words)


def straggler(bench: Bench) -> Ending:
    """A rank that takes twice as long, and a training in which all take as long."""
    words = ("training.iterations=56", "training.save_interval=0")
    case, even = Case(bench, "slow", *words), Case(bench, "even", *words)
    ending = Ending("rank 1 computes for twice as long")
    told = even.train("slow:seconds=0.2,factor=2")
    ending.rule(not told and not even.events("straggler"), "no alarm where all are as slow")
    told = case.train("slow:rank=1,seconds=0.2,factor=2")
    found = case.events("straggler")
    ending.rule(bool(found) and {one["rank"] for one in found} == {1}, "the slow rank is named, and no other")
    if found:
        ending.detected_after_s = found[0]["time"] - case.rows()[0]["time"]
        ratio = found[0]["seconds_per_step"] / max(found[0]["others_seconds_per_step"], 1e-9)
        ending.rule(True, f"told after {ending.detected_after_s:.0f} s: {ratio:.1f} times as long a step")
    ending.rule(not told and case.done(), "the training went on")
    ending.final_loss_equal = case.losses() == even.losses()
    ending.rule(ending.final_loss_equal, "every loss is that of the even training")
    ending.action = "told in the log and in events.jsonl; nothing is ended for being slow"
    return ending


def node_loss(bench: Bench) -> Ending:
    """Two of four ranks are gone at once, as with a node; then a job that is killed again and again."""
    words = ("site=four",)
    case, ending = Case(bench, "node", *words), Ending("SIGKILL to ranks 2 and 3 of 4 at once (a node of two)")
    told = case.train("kill:rank=2,step=9,job=04-training; kill:rank=3,step=9,job=04-training")
    ending.rule(len(case.job_names()) == 2, "submitted again once")
    first = case.events("ended")[0]
    ending.detected_after_s = first["at"] - next(row["time"] for row in case.rows() if row["iteration"] == 8)
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    end_well(bench, case, ending, told, *words)
    loop = Case(bench, "crash-loop", "jobs.training.restarts=1")
    told = loop.train("kill:rank=1,step=6")
    ending.rule("2 jobs in a row made no new step (jobs.training.restarts is 1)" in told, "a crash loop is stopped")
    ending.rule(len(loop.job_names()) == 3, "after as many restarts as the budget has")
    ending.action = "resumed once; the crash loop stopped by the budget"
    return ending


def same_failure(bench: Bench) -> Ending:
    """An error at the same step of two jobs, and one at two different steps."""
    ending = Ending("an exception at step 6 of every job; then at steps 6 and 11")
    case = Case(bench, "same-step")
    told = case.train("raise:rank=0,step=6")
    ending.rule("the same failure twice at step 6 (04-training and 04-training-2:" in told, "stopped at the second one")
    ending.rule("a fault on purpose (RUNBOOK_FAULTS)" in told, "with the evidence")
    ending.rule(len(case.job_names()) == 2, "no third job")
    other = Case(bench, "other-step")
    told = other.train("raise:rank=0,step=6,job=04-training; raise:rank=0,step=11,job=04-training-2")
    ending.rule(len(other.job_names()) == 3, "at another step it is started again")
    ending.action = "STOP on the same failure at one step, RESTART at another"
    return end_well(bench, other, ending, told)
