"""Jobs on this machine, really started. A few lines of Python stand in for the trainer."""

import errno
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from scheduler_bench import CLOCK_THAT_JUMPS, IGNORE_TERM, SAVE_ON_TERM, SLEEP, WAIT_FOR_GO
from suite.messages import containing, refuses, says

from runbook.core import processes, shell
from runbook.core.errors import JobError
from runbook.core.locks import hold
from runbook.core.messages import CoreMessage
from runbook.jobs.job_folder import (
    JobState,
    heartbeat_age,
    latest_job_folder,
    next_job_folder,
    read_started,
)
from runbook.jobs.messages import JobLine, JobMessage, JobReason

pytestmark = pytest.mark.jobs

FILL_THE_DISK = """
try:
    with open('full', 'wb', 0) as full:
        while full.write(b'x' * 100):
            pass
except OSError:
    sys.exit(75)
"""
SUBMIT = """
import sys
from pathlib import Path
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.local import LocalScheduler
print(LocalScheduler().submit(JobFolder(Path(sys.argv[1]))))
"""


def submit_elsewhere(folder):
    """Submit from a separate process, which has ended when this returns."""
    return shell.run([sys.executable, "-c", SUBMIT, str(folder.path)]).out.strip()


def test_a_job_outlives_its_submitter_and_is_attached_to_by_another(bench):
    folder = bench.write(WAIT_FOR_GO + "\nprint('rank', rank)")
    began = time.time()
    job_id = submit_elsewhere(folder)
    seen = [bench.scheduler.state(folder)]
    bench.let_ranks_go()
    seen += bench.watch(folder)
    assert {status.job_id for status in seen} == {job_id}
    assert seen[0].state is JobState.RUNNING
    assert seen[0].reason.startswith(f"process {bench.script_pid(folder)} on ")
    last = seen[-1]
    assert (last.state, last.exit_code, last.reason) == (JobState.DONE, 0, "finished")
    # The clock in the script has whole seconds, and file times may lag by one tick.
    assert began - 1 < last.started < last.ended < time.time() + 1
    assert heartbeat_age(folder) <= time.time() - began + 1
    assert sorted(folder.out.read_text().splitlines()) == ["rank 0", "rank 1"]
    assert folder.err.read_text() == "runbook: finished\n"


def test_a_running_job_is_found_and_not_doubled(bench):
    folder = bench.write("print('one', flush=True); " + SLEEP, ranks=1)
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(submit_elsewhere, [folder] * 2)) + list(
            pool.map(bench.scheduler.submit, [folder] * 4)
        )
    assert len(set(ids)) == 1
    assert processes.wait_until(lambda: "one" in folder.out.read_text(), 60)
    # job.sh and its only rank; each heartbeat briefly adds an mv process
    assert processes.wait_until(lambda: len(bench.pids(folder)) == 2, 60)
    assert folder.out.read_text() == "one\n"
    assert not list(folder.path.glob("submit.lock*"))


def test_a_script_refuses_to_run_a_second_time(bench):
    folder = bench.submit("print('once')", ranks=1)
    bench.wait(folder)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    said = shell.run(["bash", str(folder.script)], check=False)
    assert said.exit_code == 2
    assert says(said.err, JobLine.ALREADY_RUN, marker=folder.started)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_an_ended_job_is_not_overwritten_and_the_next_has_its_own_folder(bench):
    folder = bench.submit("print('first')", ranks=1)
    bench.wait(folder)
    with refuses(JobError, JobMessage.FOLDER_HOLDS_JOB, state="done", reason="finished"):
        bench.scheduler.submit(folder)
    assert latest_job_folder(bench.run_folder, "04-training") == folder
    following = next_job_folder(bench.run_folder, "04-training")
    assert following.path.name == "04-training-2"
    bench.wait(bench.submit("print('second')", ranks=1, name=following.path.name))
    assert folder.out.read_text() == "first\n"
    assert following.out.read_text() == "second\n"
    assert latest_job_folder(bench.run_folder, "04-training") == following


def test_a_second_job_of_a_phase_waits_for_the_first(bench):
    bench.submit(SLEEP, ranks=1)
    second = bench.write("", name="04-training-2")
    with refuses(
        JobError, JobMessage.SAME_FILES, job=containing("jobs/04-training"), state="running"
    ):
        bench.scheduler.submit(second)
    assert not second.record.exists()


@pytest.mark.parametrize(
    ("codes", "exit_code", "state", "reason"),
    [
        ([0, 0], 0, JobState.DONE, "finished"),
        ([75, 75], 75, JobState.STOPPED, "saved and stopped"),
        ([0, 75], 75, JobState.STOPPED, "saved and stopped"),
        ([0, 1], 1, JobState.FAILED, "rank 1 failed (exit code 1)"),
        ([1, 2], 2, JobState.FAILED, "rank 1 refused to start the training (exit code 2)"),
        ([75, 3], 1, JobState.FAILED, "rank 1 ended with exit code 3"),
        ([1, -9], 1, JobState.FAILED, "rank 1 ended with exit code 137 (signal 9)"),
        ([-15, 1], 75, JobState.STOPPED, "stopped by SIGTERM before the training began"),
    ],
)
def test_the_ranks_ends_become_the_jobs_end(codes, exit_code, state, reason, bench):
    lines = f"code = {codes}[rank]\nif code < 0: os.kill(os.getpid(), -code)\nsys.exit(code)"
    status = bench.wait(bench.submit(lines))
    assert (status.exit_code, status.state, status.reason) == (exit_code, state, reason)


def test_the_peers_of_a_dead_rank_do_not_outlive_it(bench, monkeypatch):
    monkeypatch.setattr("runbook.jobs.render.training_job.KILLED_PEERS_SECONDS", 1)
    folder = bench.submit(IGNORE_TERM)
    rank_1 = processes.ranks(bench.script_pid(folder), bench.scheduler.state(folder).job_id)[1]
    rank_1.kill()
    status = bench.wait(folder, 300)  # every other limit in this bench is 600 s
    assert status.state is JobState.FAILED
    assert status.reason == "".join(
        [
            JobReason.RANK_ENDED.fill(rank=1, code=137, by=""),
            JobReason.BY_SIGNAL.fill(signal=9),
            JobReason.KILLED.fill(ranks=0),
        ]
    )
    # The script itself ends a moment after it has written its exit code.
    assert processes.wait_until(lambda: bench.pids(folder) == [], 60)


def test_sigterm_reaches_the_ranks_once_and_they_save(bench):
    folder = bench.submit(SAVE_ON_TERM)
    bench.scheduler.request_stop(folder)
    status = bench.wait(folder)
    assert (status.state, status.exit_code, status.reason) == (
        JobState.STOPPED,
        75,
        JobReason.SAVED_AND_STOPPED.fill(by=""),
    )
    assert [(bench.run_folder / f"saved-{rank}").read_text() for rank in range(2)] == [
        "saved\n"
    ] * 2


def test_a_script_that_is_asked_to_end_lets_its_ranks_save(bench):
    folder = bench.submit(SAVE_ON_TERM)
    os.kill(bench.script_pid(folder), signal.SIGTERM)
    status = bench.wait(folder)
    assert (status.state, status.exit_code, status.reason) == (
        JobState.STOPPED,
        75,
        JobReason.SAVED_AND_STOPPED.fill(by=JobReason.AT.fill(request="SIGTERM")),
    )
    assert [(bench.run_folder / f"saved-{rank}").read_text() for rank in range(2)] == [
        "saved\n"
    ] * 2


def test_a_stop_of_a_job_that_ended_is_told(bench):
    folder = bench.submit("", ranks=1)
    bench.wait(folder)
    with refuses(JobError, JobMessage.NOT_RUNNING, state="done", reason="finished"):
        bench.scheduler.request_stop(folder)


def test_cancel_lets_the_job_save_and_leaves_nothing(bench):
    folder = bench.submit(SAVE_ON_TERM)
    status = bench.scheduler.cancel(folder)
    assert (status.state, status.exit_code) == (JobState.CANCELLED, 75)
    by = JobReason.AT.fill(request=JobReason.REQUEST_TO_CANCEL.fill())
    assert status.reason == JobReason.SAVED_AND_STOPPED.fill(by=by)
    assert (bench.run_folder / "saved-1").read_text() == "saved\n"
    assert bench.pids(folder) == []
    assert bench.scheduler.cancel(folder) == bench.scheduler.state(folder)


def test_cancel_ends_also_what_left_the_session_and_does_not_listen(bench):
    lines = "if os.fork() == 0: os.setsid(); os.fork()\n" + IGNORE_TERM
    folder = bench.write(lines)
    bench.scheduler.submit(folder)
    assert processes.wait_until(lambda: folder.out.read_text().count("ready") == 6, 60)
    assert processes.wait_until(lambda: len(bench.pids(folder)) == 7, 60)
    pids = bench.pids(folder)
    assert len({os.getsid(pid) for pid in pids}) == 3
    status = bench.scheduler.cancel(folder, grace_seconds=0.3)
    assert status.state is JobState.CANCELLED
    assert [pid for pid in pids if processes.identify(pid)] == []


def test_what_a_rank_leaves_behind_ends_with_the_job(bench):
    lines = """
if os.fork() == 0:
    os.setsid()
    open('left.part', 'w').write(str(os.getpid()))
    os.rename('left.part', 'left')
    time.sleep(300)
while not os.path.exists('left'): time.sleep(0.02)
"""
    folder = bench.submit(lines, ranks=1)
    assert bench.wait(folder).state is JobState.DONE
    left = int((bench.run_folder / "left").read_text())
    assert processes.wait_until(lambda: processes.identify(left) is None, 60)


def test_cancelling_an_ended_job_changes_nothing(bench):
    folder = bench.submit("", ranks=1)
    bench.wait(folder)
    assert bench.scheduler.cancel(folder).state is JobState.DONE
    assert not folder.cancelled.exists()


def test_a_killed_script_is_lost_and_what_it_left_is_found_and_ended(bench):
    folder = bench.submit(IGNORE_TERM)
    os.kill(bench.script_pid(folder), signal.SIGKILL)
    status = bench.wait(folder)
    assert status.state is JobState.LOST
    assert status.exit_code is None
    vanished = JobMessage.PROCESS_VANISHED.fill(pid=bench.script_pid(folder))
    two_left = vanished + JobMessage.PROCESSES_LEFT.fill(num_running=2)
    # The mv process from the last heartbeat may also be left for a moment.
    assert processes.wait_until(lambda: bench.scheduler.state(folder).reason == two_left, 60)
    with refuses(JobError, JobMessage.FOLDER_HOLDS_JOB, state="lost"):
        bench.scheduler.submit(folder)
    assert bench.scheduler.cancel(folder).state is JobState.LOST
    assert bench.pids(folder) == []


def test_the_next_job_of_a_phase_ends_what_a_lost_one_left(bench, monkeypatch):
    folder = bench.submit(IGNORE_TERM)
    os.kill(bench.script_pid(folder), signal.SIGKILL)
    assert len(bench.pids(folder)) >= 2
    bench.wait(bench.submit("", ranks=1, name="04-training-2"))
    assert bench.pids(folder) == []
    # The job state is still known, without searching the processes on this machine again.
    assert folder.nothing_left.exists()
    with monkeypatch.context() as patched:
        patched.delattr(processes, "process_tree")
        assert bench.scheduler.state(folder).state is JobState.LOST


@pytest.mark.parametrize(
    ("lines", "grace_seconds", "exit_code", "reason"),
    [
        (SAVE_ON_TERM, 600, 75, "saved and stopped at the end of the walltime of 3600 s"),
        (
            IGNORE_TERM,
            1,
            1,
            "not all ranks ended at the end of the walltime of 3600 s; "
            "killed because they did not end on their own: rank 0, 1",
        ),
    ],
)
def test_the_walltime_ends_a_job(lines, grace_seconds, exit_code, reason, bench, monkeypatch):
    """The clock in the job script jumps forward an hour as soon as the ranks are ready."""
    monkeypatch.setattr("runbook.jobs.render.training_job.LOCAL_GRACE_SECONDS", grace_seconds)
    folder = bench.submit(lines, walltime=3600, setup=[CLOCK_THAT_JUMPS])
    (bench.run_folder / "hour-is-over").touch()
    status = bench.wait(folder)
    assert (status.state, status.exit_code, status.reason) == (JobState.TIMEOUT, exit_code, reason)


def test_a_set_up_command_that_fails_or_leaves_is_a_failure(bench):
    for number, command in enumerate(["echo no such module >&2; false", "exit 0"], start=1):
        name = "04-training" if number == 1 else f"04-training-{number}"
        folder = bench.submit("print('never')", setup=[command], name=name)
        status = bench.wait(folder)
        assert (status.state, status.exit_code) == (JobState.FAILED, 1)
        assert status.reason == JobReason.SCRIPT_FAILED.fill()
        assert folder.out.read_text() == ""


def test_a_job_cancelled_during_its_set_up_trains_nothing(bench):
    goes_on = "the set-up goes on"
    setup = [": >set-up-began", "sleep 300 || true", f"echo {goes_on}"]
    folder = bench.submit("print('never')", setup=setup)
    assert processes.wait_until((bench.run_folder / "set-up-began").exists, 60)
    status = bench.scheduler.cancel(folder)
    assert (status.state, status.reason) == (
        JobState.CANCELLED,
        JobReason.STOPPED_BEFORE_TRAINING.fill(),
    )
    assert folder.out.read_text() == f"{goes_on}\n"


def test_a_script_that_bash_cannot_read_is_told_in_bashs_words(bench):
    folder = bench.write("")
    folder.script.write_text("if then\n")
    with refuses(
        JobError,
        JobMessage.ENDED_BEFORE_IT_BEGAN,
        tail=containing("syntax error near unexpected token"),
    ):
        bench.scheduler.submit(folder)
    assert bench.scheduler.state(folder).state is JobState.LOST


def test_a_job_started_by_hand_is_seen_too(bench):
    folder = bench.write(WAIT_FOR_GO, ranks=1)
    pid = shell.start_detached(["bash", "job.sh"], cwd=folder.path, out=folder.out, err=folder.err)
    assert processes.wait_until(lambda: read_started(folder) is not None, 60)
    status = bench.scheduler.state(folder)
    assert (status.state, status.reason) == (
        JobState.RUNNING,
        f"process {pid} on {processes.host_name()}",
    )
    assert status.job_id.startswith(f"by-hand-{pid}-")
    assert bench.scheduler.submit(folder) == status.job_id
    bench.let_ranks_go()
    assert bench.wait(folder).state is JobState.DONE


def test_a_job_does_not_inherit_the_right_to_the_run(bench, monkeypatch):
    monkeypatch.setenv("RUNBOOK_HOLDER", str(bench.run_folder))
    folder = bench.submit("print(os.environ.get('RUNBOOK_HOLDER'))", ranks=1)
    bench.wait(folder)
    assert folder.out.read_text() == "None\n"


def is_unmounted(folder):
    """Try to unmount the folder. Return whether that was possible."""
    return shell.run(["umount", str(folder)], check=False).exit_code == 0


def test_the_end_is_written_down_on_a_full_disk_too(bench, tmp_path):
    bench.run_folder.mkdir()
    mounted = shell.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(bench.run_folder)], check=False
    )
    if mounted.exit_code:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.err}")
    try:
        folder = bench.submit(FILL_THE_DISK, ranks=1)
        status = bench.wait(folder)
        assert (status.state, status.exit_code, status.reason) == (
            JobState.STOPPED,
            75,
            JobReason.EXIT_CODE.fill(code=75),
        )
        full = {"reason": os.strerror(errno.ENOSPC)}
        arguments = containing("arguments.json")
        with refuses(JobError, CoreMessage.NOT_WRITTEN, path=arguments, **full):
            bench.write("", name="04-training-2")
        with (
            refuses(JobError, CoreMessage.NOT_WRITTEN, **full),
            hold(bench.run_folder, "planning"),
        ):
            pytest.fail("held")
        assert not list(bench.run_folder.rglob("*.part"))
    finally:
        # The script still has its log open for a moment after it has written its exit code.
        assert processes.wait_until(lambda: is_unmounted(bench.run_folder), 60)


def test_a_stopped_script_does_not_hinder_cancelling(bench):
    folder = bench.submit(IGNORE_TERM, ranks=1)
    psutil.Process(bench.script_pid(folder)).suspend()
    assert bench.scheduler.cancel(folder, grace_seconds=0.2).state is JobState.CANCELLED
    assert bench.pids(folder) == []
