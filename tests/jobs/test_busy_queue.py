"""A Slurm controller that is busy or being restarted, which scripts on PATH imitate with the words
of Slurm 22.05: queries are repeated, and no accepted job is submitted twice.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from suite.messages import containing, refuses

from runbook.core.errors import JobError
from runbook.jobs import queue
from runbook.jobs.job_folder import JobFolder, JobState
from runbook.jobs.messages import JobMessage
from runbook.jobs.queue import (
    NotReachedError,
    QueueScheduler,
    QueueSilentError,
    UnknownSubmissionError,
)
from runbook.jobs.slurm import Slurm

UNREACHED = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
UNSPECIFIED = "Unspecified error"
CONTROLLER = """\
#!/bin/bash
# {name}: the first calls fail with the words in {name}.fails, one line each
cd '{folder}'
echo "$*" >>{name}.calls
number=$(wc -l <{name}.calls)
words=$(sed -n "${{number}}p" {name}.fails)
[[ {name} == sbatch && $words == *"{unspecified}"* ]] && accepted=1
if [[ -n $words ]]; then
  echo "{name}: error: $words" >&2
  [[ ${{accepted:-}} && "$*" =~ --comment=([^ ]+) ]] && echo "12|PENDING|${{BASH_REMATCH[1]}}|main||None" >late
  exit 1
fi
{answer}
"""
SQUEUE = (
    '[[ -e late && $number -gt $(cat late_after) ]] && cat late; echo "7|RUNNING||main|n1|None"'
)


class Controller:
    """Programs on PATH, and the errors with which they first answer."""

    def __init__(self, folder) -> None:
        self.folder = folder
        (folder / "late_after").write_text("0\n")
        self.add("squeue", SQUEUE)
        self.add("sbatch", "echo 12")
        self.add("scontrol", "echo PartitionName=main Default=YES State=UP TotalNodes=2")
        self.add("scancel", "true")
        self.add("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")

    def add(self, name: str, answer: str) -> None:
        self.fail(name)
        program = self.folder / name
        program.write_text(
            CONTROLLER.format(name=name, folder=self.folder, answer=answer, unspecified=UNSPECIFIED)
        )
        program.chmod(0o755)

    def fail(self, name: str, *words: str) -> None:
        (self.folder / f"{name}.fails").write_text("".join(f"{word}\n" for word in words))
        (self.folder / f"{name}.calls").write_text("")

    def num_calls(self, name: str) -> int:
        return len((self.folder / f"{name}.calls").read_text().splitlines())


@pytest.fixture
def controller(tmp_path, monkeypatch) -> Controller:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    return Controller(folder)


@pytest.fixture
def scheduler() -> QueueScheduler:
    return QueueScheduler(Slurm())


@pytest.fixture
def folder(tmp_path) -> JobFolder:
    job = JobFolder(tmp_path / "jobs" / "04-training")
    job.path.mkdir(parents=True)
    job.script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    return job


@pytest.mark.parametrize("words", [UNREACHED, TIMED_OUT, UNSPECIFIED])
def test_a_query_is_repeated_if_the_controller_is_busy(controller, words):
    controller.fail("squeue", words, f"slurm_load_jobs error: {words}")
    job = Slurm().ask("7")
    assert job is not None and job.state is JobState.RUNNING
    assert controller.num_calls("squeue") == 3


def test_a_controller_that_stays_silent_is_an_error_and_a_refusal_is_not_repeated(controller):
    controller.fail("squeue", *[TIMED_OUT] * 5)
    with pytest.raises(QueueSilentError):
        Slurm().ask("7")
    assert controller.num_calls("squeue") == 3
    controller.fail("squeue", "Invalid user id")
    with pytest.raises(QueueSilentError):
        Slurm().ask("7")
    assert controller.num_calls("squeue") == 1


def test_a_query_that_took_long_is_not_repeated(controller, monkeypatch):
    monkeypatch.setattr(queue, "RETRY_UNTIL_SECONDS", -1.0)
    controller.fail("squeue", *[UNREACHED] * 5)
    with pytest.raises(QueueSilentError):
        Slurm().ask("7")
    assert controller.num_calls("squeue") == 1


def test_a_program_on_a_node_is_started_once(controller):
    controller.add("srun", "true")
    controller.fail("srun", UNSPECIFIED)
    with pytest.raises(QueueSilentError):
        Slurm().node_output("7", "n1", "true")
    assert controller.num_calls("srun") == 1


def test_a_submission_that_did_not_reach_the_controller_is_made_again(
    controller, scheduler, folder
):
    controller.fail("sbatch", UNREACHED)
    controller.fail("squeue", UNREACHED)
    assert scheduler.submit(folder) == "slurm-12"
    assert controller.num_calls("sbatch") == 2
    # The queue said in between that it has no such job.
    assert controller.num_calls("squeue") >= 2


def test_no_job_is_submitted_again_before_the_queue_says_that_it_has_none(
    controller, scheduler, folder
):
    controller.fail("sbatch", UNREACHED)
    controller.fail("squeue", *[UNREACHED] * 20)
    with pytest.raises(NotReachedError):
        scheduler.submit(folder)
    assert controller.num_calls("sbatch") == 1
    assert not folder.record.exists()


@pytest.mark.parametrize("num_queries", [0, 1, 2])
def test_an_accepted_job_whose_answer_was_an_error_is_found_and_not_doubled(
    controller, scheduler, folder, num_queries
):
    """A busy controller lists the job only some queries later."""
    controller.fail("sbatch", f"Batch job submission failed: {UNSPECIFIED}")
    (controller.folder / "late_after").write_text(f"{num_queries}\n")
    assert scheduler.submit(folder) == "slurm-12"
    assert controller.num_calls("sbatch") == 1
    assert json.loads(folder.record.read_text())["queue_id"] == "12"


def test_a_job_that_may_still_appear_is_not_submitted_again(
    controller, scheduler, folder, monkeypatch
):
    controller.fail("sbatch", f"Batch job submission failed: {TIMED_OUT}")
    with refuses(UnknownSubmissionError, JobMessage.NOT_IN_QUEUE_YET):
        scheduler.submit(folder)
    with refuses(JobError, JobMessage.SUBMISSION_MAY_BE_LATE):
        scheduler.submit(folder)
    assert controller.num_calls("sbatch") == 1
    record = json.loads(folder.record.read_text())
    late = record | {"submitted": time.time() - queue.LATE_SECONDS - 1}
    folder.record.write_text(json.dumps(late))
    assert scheduler.submit(folder) == "slurm-12"
    assert controller.num_calls("sbatch") == 2


def test_a_queue_with_too_many_jobs_is_named(controller, scheduler, folder, monkeypatch):
    monkeypatch.setattr(queue, "SUBMIT_SECONDS", 0.5)
    full = "Slurm temporarily unable to accept job, sleeping and retrying"
    controller.add("sbatch", f"echo 'sbatch: error: {full}' >&2; sleep 60")
    with refuses(UnknownSubmissionError, JobMessage.QUEUE_FULL, lost=containing(full)):
        scheduler.submit(folder)
    assert folder.record.exists()


def test_variables_of_the_shell_that_a_refused_submission_read_are_named(
    controller, scheduler, folder, monkeypatch
):
    monkeypatch.setenv("SBATCH_RESERVATION", "workshop")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    folder.script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --partition=main\n")
    controller.fail("sbatch", "Batch job submission failed: Requested reservation is invalid")
    with pytest.raises(JobError) as caught:
        scheduler.submit(folder)
    read = JobMessage.VARIABLES_READ.fill(program="sbatch", variables="SBATCH_RESERVATION=workshop")
    assert read in str(caught.value)


def test_jobs_that_still_clean_up_are_listed_with_their_nodes(controller):
    controller.add("squeue", "printf '9|node2\\n10|\\n11|rack0n[1-2]\\n'")
    assert Slurm().completing_jobs("main") == [("9", "node2"), ("11", "rack0n[1-2]")]
    assert "--partition=main" in (controller.folder / "squeue.calls").read_text()
