"""Drills in which ranks die, hang or lag, locks are stale, kernels are killed, or clocks jump."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runbook.core import shell
from runbook.core.errors import HeldError
from runbook.core.files import read_lines
from runbook.core.locks import hold
from runbook.core.ports import port_of, reserve_port
from runbook.core.processes import wait_until
from runbook.core.shell import Finished
from runbook.jobs.warm_trainer import still_runs
from runbook.next_job.messages import NextJobMessage
from runbook.phases.job_control import job_step
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.diagnostics import Statement
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.rendezvous_causes import RendezvousCause
from runbook.tools.drills.bench import Bench, DrillEnding, DrillRun, MeasuredValue
from runbook.tools.drills.faults import ON_PURPOSE

SAVE_INTERVAL = 4


def same_as_undisturbed(bench: Bench, case: DrillRun, *set_words: str) -> bool:
    """Check that every loss equals that in an uninterrupted run with the same parameters."""
    if set_words not in bench.references:
        calm = DrillRun(bench, f"calm-{len(bench.references)}", *set_words)
        assert calm.train() == "", "the undisturbed training failed"
        bench.references[set_words] = calm.losses()

    return case.losses() == bench.references[set_words]


def end_well(
    bench: Bench,
    case: DrillRun,
    ending: DrillEnding,
    failure: str,
    *set_words: str,
    most_lost: int = SAVE_INTERVAL,
) -> DrillEnding:
    """Check the rules for training runs that finish."""
    ending.steps_lost = case.steps_lost()
    ending.final_loss_equal = same_as_undisturbed(bench, case, *set_words)
    ending.rule(not failure and case.done(), "the training finished", failure[:300])
    ending.rule(
        ending.steps_lost <= most_lost, f"{ending.steps_lost} steps lost, at most {most_lost}"
    )
    ending.rule(ending.final_loss_equal, "every loss equals that of the undisturbed training run")
    ending.rule(not case.parts(), "no unfinished files left")
    return ending


def kill_rank(bench: Bench) -> DrillEnding:
    """Send SIGKILL to one rank in the middle of a step."""
    case = DrillRun(bench, "kill-rank")
    ending = DrillEnding("SIGKILL to rank 1 at step 11")
    failure = case.train("kill:rank=1,step=11,job=04-training")
    first = case.events("ended")[0]
    ending.detected_after_s = first["at"] - next(
        row["time"] for row in case.rows() if row["iteration"] == 10
    )
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    # On a busy machine, rank 0 may be killed later, so the evidence also mentions rank 0.
    names_rank = first["evidence"].startswith("rank 1 ended with exit code 137 (signal 9)")
    ending.rule(names_rank, "the rank is named")
    ending.action = f"all ranks ended, resumed from step {case.events('resumed')[-1]['iteration']}"
    return end_well(bench, case, ending, failure)


def kill_launcher(bench: Bench) -> DrillEnding:
    """Send SIGKILL to the job script. The ranks are separate processes, as on a cluster."""
    case = DrillRun(bench, "kill-launcher", "site=cold")
    ending = DrillEnding("SIGKILL to the job's script at step 5")
    case.launch("slow:seconds=0.2")
    wait_until(case.is_at(5), 120)
    script = case.script()
    ranks = [case.rank(0), case.rank(1)]
    script.kill()
    began = time.monotonic()
    gone = wait_until(
        lambda: not any(map(still_runs, ranks)) and case.status().final,
        30,
        interval=0.02,
    )
    ending.detected_after_s = time.monotonic() - began
    ending.rule(gone, "its ranks ended with it, and the job was recorded as ended")
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    failure = case.train()
    ending.rule(len(case.job_names()) == 2, "the next launch resumed it")
    ending.action = "the operating system ended the ranks; the lost job was detected and resumed"
    return end_well(bench, case, ending, failure)


def preemption(bench: Bench) -> DrillEnding:
    """Send SIGTERM to the script, then SIGUSR1 and SIGTERM to single ranks, in separate jobs."""
    case = DrillRun(bench, "preempt")
    ending = DrillEnding("SIGTERM to the script, SIGUSR1 to rank 0, SIGTERM to rank 1")
    faults = (
        "slow:seconds=0.3,job=04-training; usr1:rank=0,step=11,job=04-training-2; "
        "term:rank=1,step=13,job=04-training-3"
    )
    with case.meanwhile(case.is_at(3), lambda: case.script().terminate()):
        failure = case.train(faults)
    stopped = case.events("stopped")
    ended = case.events("ended")
    signals = [event["signal"] for event in stopped]
    ending.rule(signals == ["SIGTERM", "SIGUSR1", "SIGTERM"], f"stopped by {', '.join(signals)}")
    ending.rule(
        [event["exit_code"] for event in ended] == [75, 75, 75, 0], "exit code 75 each time, then 0"
    )
    ending.rule(len(case.job_names()) == 4, "each was resubmitted once")
    samples = case.samples()
    ending.rule(all(samples[n] == 4 * n for n in samples), "the data order continued exactly")
    ending.rule(case.steps_lost() == 0, "no step was repeated")
    ending.action = "saved, ended with 75, resumed"
    return end_well(bench, case, ending, failure)


def hang(bench: Bench) -> DrillEnding:
    """Stop one rank with SIGSTOP; in the next job, make another rank sleep forever."""
    limit = 20
    set_words = (f"training.process_group_timeout={limit}",)
    case = DrillRun(bench, "hang", *set_words)
    ending = DrillEnding(
        "SIGSTOP to rank 1 at step 9; rank 0 sleeps forever at step 15 of the next job"
    )
    failure = case.train(
        "stop:rank=1,step=9,job=04-training; hang:rank=0,step=15,job=04-training-2"
    )
    hangs = case.events("hang")
    hanging = [(event["rank"], event["step"]) for event in hangs]
    ending.rule(hanging == [(1, 9), (0, 15)], f"the hanging rank and step are named: {hanging}")
    if len(hangs) == 2:
        last = next(row["time"] for row in case.rows() if row["iteration"] == 8)
        ending.detected_after_s = hangs[0]["time"] - last
        ending.rule(
            ending.detected_after_s < limit,
            f"{ending.detected_after_s:.1f} s, before the limit of {limit} s",
        )
        stacks = []
        for event in hangs:
            if Path(event["stacks"]).exists():
                stacks.append(Path(event["stacks"]).read_text(errors="replace"))

        ending.rule(
            len(stacks) == 2 and all("faults.py" in text for text in stacks),
            "their stack traces were saved",
        )

    ending.action = "saved the stack traces, killed the rank, resumed the job"
    return end_well(
        bench,
        case,
        ending,
        failure,
        *set_words,
    )


def slow_ranks(run: DrillRun) -> list[dict[str, Any]]:
    """Return the alarms about slow ranks."""
    return [event for event in run.events("alarm") if event["kind"] == "slow rank"]


def straggler(bench: Bench) -> DrillEnding:
    """Slow all ranks equally, then rank 1 by a factor of 1.2, then rank 1 by a factor of 2."""
    set_words = ("training.iterations=56", "training.save_interval=0")
    everybody = "slow:seconds=0.12"
    even, near, case = (DrillRun(bench, name, *set_words) for name in ("even", "near", "slow"))
    ending = DrillEnding(
        "rank 1 takes 1.2 times as long per step, then 2 times; the threshold is 1.5"
    )
    failure = even.train(everybody)
    ending.rule(not failure and not slow_ranks(even), "no alarm when all ranks are equally slow")
    failure = near.train(f"{everybody}; slow:rank=1,factor=1.2")
    ending.rule(not failure and not slow_ranks(near), "no alarm at 1.2 times the step time")
    failure = case.train(f"{everybody}; slow:rank=1,factor=2")
    alarms = slow_ranks(case)
    ending.rule(
        bool(alarms) and {alarm["rank"] for alarm in alarms} == {1},
        "at 2 times the step time only the slow rank is named",
    )
    if alarms:
        ending.detected_after_s = alarms[0]["time"] - case.rows()[0]["time"]
        ratio = alarms[0]["value"] / max(alarms[0]["usual"], 1e-9)
        ending.figures.append(
            MeasuredValue(
                "step of the slow rank",
                ratio,
                1.8,
                2.3,
                "times the other's",
            )
        )

    ending.rule(not failure and case.done(), "the training finished")
    ending.final_loss_equal = near.losses() == case.losses() == even.losses()
    ending.rule(
        ending.final_loss_equal, "every loss equals that of the run with equally slow ranks"
    )
    ending.action = "reported the slow rank in the log and in events.jsonl; ended no process"
    return ending


def node_loss(bench: Bench) -> DrillEnding:
    """Kill two of four ranks at once, as if a node failed. Then kill a job again and again."""
    set_words = ("site=four",)
    case = DrillRun(bench, "node", *set_words)
    ending = DrillEnding("SIGKILL to ranks 2 and 3 of 4 at once (a node of two)")
    failure = case.train("kill:rank=2,step=9,job=04-training; kill:rank=3,step=9,job=04-training")
    ending.rule(len(case.job_names()) == 2, "resubmitted once")
    first = case.events("ended")[0]
    ending.detected_after_s = first["at"] - next(
        row["time"] for row in case.rows() if row["iteration"] == 8
    )
    ending.rule(ending.detected_after_s < 5, f"detected in {ending.detected_after_s:.1f} s")
    end_well(
        bench,
        case,
        ending,
        failure,
        *set_words,
    )
    loop = DrillRun(bench, "crash-loop", "jobs.training.restarts=1")
    failure = loop.train("kill:rank=1,step=6")
    ending.rule(
        NextJobMessage.NO_NEW_STEP.fill(jobs_without_progress=2, budget=1) in failure,
        "a crash loop is stopped",
    )
    ending.rule(len(loop.job_names()) == 3, "after the allowed number of restarts")
    ending.action = "resumed once; stopped the crash loop when the restarts were used up"
    return ending


def same_failure(bench: Bench) -> DrillEnding:
    """Raise an error at the same step in two jobs, then at two different steps."""
    ending = DrillEnding("an exception at step 6 of every job; then at steps 6 and 11")
    case = DrillRun(bench, "same-step")
    failure = case.train("raise:rank=0,step=6")
    last_end = case.events("ended")[-1]
    same_failure_twice = NextJobMessage.SAME_FAILURE_TWICE.fill(
        failing_step=6, both=f"{FULL} and {FULL}-2: {last_end.get('failure')}"
    )
    ending.rule(last_end["why"] == same_failure_twice, "stopped at the second failure")
    ending.rule(ON_PURPOSE in failure, "the evidence is shown")
    ending.rule(len(case.job_names()) == 2, "no third job")
    two_steps = DrillRun(bench, "other-step")
    failure = two_steps.train(
        "raise:rank=0,step=6,job=04-training; raise:rank=0,step=11,job=04-training-2"
    )
    ending.rule(len(two_steps.job_names()) == 3, "after a failure at another step it restarts")
    ending.action = (
        "stopped at the second failure at the same step; restarted after a failure at a different "
        "step"
    )
    return end_well(bench, two_steps, ending, failure)


TIMEOUT_SECONDS = 4
MARGIN_SECONDS = 15
"""Tolerance beyond the timeout, because a busy machine starts and ends processes slowly."""


def rendezvous(bench: Bench) -> DrillEnding:
    """Start with a port in use, rank 0 or rank 1 missing, or an address that does not resolve."""
    case = DrillRun(bench, "meeting", f"training.process_group_timeout={TIMEOUT_SECONDS}")
    ending = DrillEnding(
        "port in use; rank 0 missing; rank 1 missing; an address that does not resolve"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _judge_rendezvous(
            ending,
            "port in use",
            _start_ranks(case, [0, 1], {"MASTER_PORT": str(taken.getsockname()[1])}),
            RendezvousCause.PORT_IN_USE,
        )

    with reserve_port() as reservation:
        port = {"MASTER_PORT": str(port_of(reservation))}
        _judge_rendezvous(
            ending, "rank 0 missing", _start_ranks(case, [1], port), port["MASTER_PORT"]
        )
        _judge_rendezvous(
            ending, "rank 1 missing", _start_ranks(case, [0], port), RendezvousCause.MISSING_RANK
        )
        wrong = {**port, "MASTER_ADDR": "no-such-host.invalid"}
        _judge_rendezvous(
            ending, "wrong address", _start_ranks(case, [1], wrong), "no-such-host.invalid"
        )

    failure = case.train()
    ending.rule(not failure and case.done(), "a job that picks its own port trains", failure[:300])
    ending.action = f"each rank named the cause soon after the timeout of {TIMEOUT_SECONDS} s"
    return ending


def _start_ranks(
    case: DrillRun, ranks: Sequence[int], changes: Mapping[str, str]
) -> tuple[float, list[Finished]]:
    """Start the given ranks in a pair by hand. Return their duration and output."""
    command = [
        str(case.bench.root / "python"),
        "-m",
        "runbook.training",
        str(case.folder / "plan.json"),
    ]

    def run_rank(rank: int) -> Finished:
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }
        environment |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", **changes}
        return shell.run(
            [*command, "--phase", FULL],
            cwd=case.folder,
            env=environment,
            check=False,
            timeout=120,
        )

    began = time.monotonic()
    with ThreadPoolExecutor(len(ranks)) as pool:
        finished = list(pool.map(run_rank, ranks))
    return time.monotonic() - began, finished


def _judge_rendezvous(
    ending: DrillEnding,
    situation: str,
    ended: tuple[float, list[Finished]],
    cause: str,
) -> None:
    seconds, ranks = ended
    text = "\n".join(rank.out + rank.err for rank in ranks)
    ending.rule(all(rank.exit_code for rank in ranks), f"{situation}: every rank failed")
    ending.rule(seconds < TIMEOUT_SECONDS + MARGIN_SECONDS, f"{situation}: after {seconds:.1f} s")
    ending.rule(
        cause in text and "Traceback" not in text, f"{situation}: the cause is named", text[-600:]
    )
    ending.detected_after_s = max(ending.detected_after_s or 0.0, seconds)


HOLD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from runbook.core.locks import hold
with hold(Path(sys.argv[1]), "a drill"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
LAUNCH_AND_DIE = """
import os, signal, sys
from pathlib import Path
from runbook import params
from runbook.phases import open_phase
from runbook.phases.job_control import job_step
from runbook.phases.job_control.training_jobs import training_step
settings = params.load("drill", set_words=sys.argv[2:], project=Path(sys.argv[1]))
opened = open_phase.open_run_phase(settings, "04-training")
job_step.launch(training_step(opened.training, opened.session))
os.kill(os.getpid(), signal.SIGKILL)
"""


def stale_lock(bench: Bench) -> DrillEnding:
    """Take over a lock held by a killed process, but not one held by a running process."""
    case = DrillRun(bench, "lock")
    ending = DrillEnding("a killed process leaves the run's lock; then a live process holds it")
    dead = _run_python(HOLD_AND_DIE, str(case.folder))
    ending.rule(
        dead.exit_code == -9 and (case.folder / "lock.json").exists(),
        "the dead process left its lock",
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        failure = case.train()
    ending.rule(
        "The lock of a dead process was taken over: process" in printed.getvalue(),
        "it was taken over with a notice",
    )
    with hold(case.folder, "another worker"):
        try:
            _launch_again(case)
            ending.rule(False, "a live process's lock was not respected")
        except HeldError as error:
            holder = error.values.get("holder")
            ending.rule(
                isinstance(holder, Statement) and holder.values["purpose"] == "another worker",
                "a live process's lock is respected and its holder named",
            )

    ending.rule(not (case.folder / "lock.json").exists(), "no lock is left")
    ending.action = (
        "identified the stale lock by process, start time, host and boot id; removed it with a "
        "notice"
    )
    return end_well(bench, case, ending, failure)


def kernel_restart(bench: Bench) -> DrillEnding:
    """Kill the kernel right after it submits the job.

    A new kernel and a repeated cell must find the job.
    """
    case = DrillRun(bench, "kernel")
    ending = DrillEnding(
        "the kernel is killed right after it launches the job; the cells are run again"
    )
    dead = _run_python(LAUNCH_AND_DIE, str(bench.root), *case.words, f"as={case.name}")
    ending.rule(
        dead.exit_code == -9 and case.job_names() == [FULL],
        "the job was submitted, then the kernel died",
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        _launch_again(case)
        job_step.launch(case.training_job())
        failure = case.train()
        case.train()

    # Both messages about a job that was found, running or finished, contain these words.
    finds_job = "is not started again" in printed.getvalue()
    ending.rule(finds_job, "a new kernel finds the job")
    ending.rule(
        PhaseMessage.NOTHING_TO_LAUNCH.fill(phase=FULL) in printed.getvalue(),
        "rerunning a cell after the end does nothing",
    )
    ending.rule(case.job_names() == [FULL], "no job was started twice")
    ending.action = "read the state from the run's files and watched the running job"
    return end_well(bench, case, ending, failure)


def vanished_outputs(bench: Bench) -> DrillEnding:
    """Remove the TensorBoard folder, the log reader and metrics.jsonl during training."""
    case = DrillRun(bench, "vanish")
    ending = DrillEnding(
        "standard output unread, TensorBoard's folder and metrics.jsonl moved away at step 5"
    )
    metrics = case.folder / case.open_phase.phase_plan.log.metrics
    aside = case.folder / "aside.jsonl"

    def vanish() -> None:
        shutil.rmtree(case.folder / "tensorboard", ignore_errors=True)
        metrics.rename(aside)

    with case.meanwhile(case.is_at(5), vanish) as acted:
        status = case.one_job("mute:step=3; slow:seconds=0.1")
    ending.rule(bool(acted) and status.exit_code == 0, "the training finished")
    joined = read_lines(aside) + read_lines(metrics)
    metrics.write_text(aside.read_text() + metrics.read_text())
    ending.rule(
        [row["iteration"] for row in joined] == list(range(1, 17)),
        "the two halves of metrics.jsonl contain every step",
    )
    ending.final_loss_equal = same_as_undisturbed(bench, case)
    ending.rule(ending.final_loss_equal, "every loss equals that of the undisturbed training run")
    ending.action = "training continues; files that can be written are created again"
    return ending


def clocks(bench: Bench) -> DrillEnding:
    """Set the clock back an hour. Let a job reach its time limit, and another its exit duration."""
    ending = DrillEnding(
        "clock set back by an hour at step 9; a time limit of 40 s; an exit duration of 3 s"
    )
    case = DrillRun(bench, "clock")
    failure = case.train(f"clock:step=9,seconds=-3600,job={FULL}")
    ending.rule(
        all(0 < row["seconds"] < 60 for row in case.rows()), "step times do not depend on the clock"
    )
    limited = DrillRun(bench, "limit", "jobs.training.walltime=00:00:40", "training.iterations=100")
    # The steps alone take 50 s, which exceeds the limit.
    text = limited.train("slow:seconds=0.5")
    stopped = limited.events("stopped")
    ended = limited.events("ended")
    ending.rule(not text and limited.done(), "with a time limit it finished", text[:300])
    ending.rule(
        [event["signal"] for event in stopped] == ["time_limit"] * len(stopped) != [],
        "stopped before the limit",
    )
    ending.rule(all(event["exit_code"] in (75, 0) for event in ended), "exit code 75 each time")
    # On a busy machine, ending the processes may take longer than the reserve. No step is lost
    # then.
    submitted = [event["time"] for event in limited.events("submitted")]
    late = []
    for begin, stop in zip(submitted, stopped, strict=False):
        if stop["time"] - begin > 40:
            late.append(stop)

    ending.rule(not late, "the last save was complete before the limit")
    ending.rule(limited.steps_lost() == 0, "no step was repeated")
    for_a_while = DrillRun(bench, "duration", "training.exit_duration=3", "training.iterations=32")
    text = for_a_while.train("slow:seconds=0.2")
    reasons = {event["signal"] for event in for_a_while.events("stopped")}
    ending.rule(
        not text and reasons == {"exit_duration"}, "at the exit duration it saves and resumes"
    )
    ending.action = "measured time by the machine's uptime; stopped early enough for two saves"
    return end_well(bench, case, ending, failure)


def _launch_again(case: DrillRun) -> None:
    case.open_phase = case.open()
    job_step.launch(case.training_job())


def _run_python(code: str, *arguments: str) -> shell.Finished:
    package = str(Path(__file__).parents[1])
    return shell.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": package},
        check=False,
        timeout=120,
    )
