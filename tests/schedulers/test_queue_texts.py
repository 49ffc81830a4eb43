"""What queues say, read: captured texts of Slurm, texts in PBS's form; see tests/samples/queues/README.md."""

from pathlib import Path

import pytest

from runbook.schedulers import pbs_text, slurm_text
from runbook.schedulers.asked import Asked, Limits, asked_of, faults
from runbook.schedulers.base import State
from runbook.schedulers.queue_base import QueueJob

SAMPLES = Path(__file__).parents[1] / "samples" / "queues"
GOLDEN = Path(__file__).parents[1] / "golden"


def sample(name):
    return (SAMPLES / name).read_text()


def test_squeue_of_slurm_22_05():
    jobs = {job.job: job for job in slurm_text.parse_squeue(sample("slurm-22.05-squeue.txt"))}
    assert {name: str(job.state) for name, job in jobs.items()} == {
        "5": "cancelled",
        "1": "done",
        "4_0": "done",
        "4_1": "done",
        "2": "failed",
        "3": "failed",
        "7": "pending",
        "9": "pending",
        "6": "running",
    }
    assert jobs["1"].token == "runbook-0123456789abcdef" and jobs["2"].token == ""
    assert (jobs["6"].nodes, jobs["6"].partition) == ("node[1-2]", "main")
    assert [name for name, job in jobs.items() if slurm_text.never_starts(job.reason)] == ["7"]


def test_a_reason_with_the_separator_in_it_stays_whole():
    line = "4|PENDING|(null)|paid||Job's account not known, so it can't | use this partition\n"
    [job] = slurm_text.parse_squeue(line)
    assert job.reason == "Job's account not known, so it can't | use this partition"


def test_sacct_of_slurm_22_05():
    jobs = {job.job: job for job in slurm_text.parse_sacct(sample("slurm-22.05-sacct.txt"))}
    assert (jobs["2"].state, jobs["2"].exit_code) == (State.FAILED, 75)
    assert (jobs["5"].state, jobs["5"].word) == (State.CANCELLED, "CANCELLED by 0")
    assert jobs["6"].state is State.RUNNING
    assert slurm_text.parse_job_exit_code(sample("slurm-22.05-scontrol-job.txt")) == 3


def test_partitions_of_slurm_22_05():
    main, short, paid = slurm_text.parse_partitions(sample("slurm-22.05-scontrol-partition.txt"))
    assert (main.name, main.default, main.max_seconds, main.max_nodes, main.total_nodes) == ("main", True, 0, 0, 2)
    assert (short.max_seconds, short.max_nodes, short.accounts) == (300, 1, ())
    assert paid.accounts == ("physics",)
    assert short.words == (
        "PartitionName=short AllowAccounts=ALL MaxNodes=1 MaxTime=00:05:00 MinNodes=0 State=UP TotalNodes=2"
    )


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error: Invalid job id specified\n", "JOBID|STATE|A|B|C|D\n", "1|R\n"]
)
def test_what_is_no_answer_gives_no_job(text):
    assert slurm_text.parse_squeue(text) == slurm_text.parse_sacct(text) == []
    assert pbs_text.parse_jobs(text) == []


def test_a_word_that_slurm_never_said_stays_unknown():
    [job] = slurm_text.parse_squeue("1|DREAMING|(null)|main|node1|None\n")
    assert (job.state, job.word) == (State.UNKNOWN, "DREAMING")


@pytest.mark.parametrize(
    ("states", "whole"),
    [("done done", "done"), ("done running failed", "running"), ("done pending", "pending"), ("done failed", "failed")],
)
def test_an_array_is_as_its_elements_are(states, whole):
    jobs = [QueueJob(str(number), State(state), state, "") for number, state in enumerate(states.split())]
    assert slurm_text.together(jobs).state == whole


def test_qstat_of_jobs():
    jobs = {job.job.partition(".")[0]: job for job in pbs_text.parse_jobs(sample("pbs-qstat-jobs.txt"))}
    assert {name: str(job.state) for name, job in jobs.items()} == {
        "1701": "pending",
        "1702": "running",
        "1703": "cancelled",
        "1704[]": "running",
        "1705": "cancelled",
    }
    assert jobs["1701"].token == "runbook-0123456789abcdef"  # its value is wrapped in the middle of the name
    assert jobs["1701"].reason == "Not Running: Insufficient amount of resource: ncpus"
    assert jobs["1702"].nodes == "x3004c0s7b0n0,x3004c0s7b1n0"
    assert jobs["1703"].exit_code == 143


def test_qstat_of_queues():
    debug, prod, old = pbs_text.parse_queues(sample("pbs-qstat-queues.txt"))
    assert (debug.name, debug.max_seconds, debug.max_nodes, debug.min_nodes) == ("debug", 3600, 2, 1)
    assert (prod.min_nodes, prod.state, old.state) == (10, "UP", "INACTIVE")
    assert [row["state"] for row in pbs_text.queue_rows(sample("pbs-qstat-queues.txt"))] == ["open", "closed", "closed"]


@pytest.mark.parametrize(
    ("status", "state", "code"),
    [
        *[(0, "done", 0), (75, "stopped", 75), (1, "failed", 1), (265, "cancelled", 137), (267, "failed", 139)],
        *[(-29, "timeout", None), (-1, "lost", None), (None, "unknown", None)],
    ],
)
def test_the_end_of_a_job_of_pbs(status, state, code):
    assert pbs_text.state_of("F", status) == (State(state), code)


@pytest.mark.parametrize(
    ("site", "asked"),
    [
        ("lumi", ("standard-g", "GIVE_JOBS_ACCOUNT", 2, 3600)),
        ("azure", ("gpu", "", 16, 86400)),
        ("polaris", ("debug-scaling", "GIVE_JOBS_ACCOUNT", 8, 3600)),
    ],
)
def test_what_our_own_scripts_ask_for_is_read_back(site, asked):
    found = asked_of((GOLDEN / site / "04-training" / "job.sh").read_text())
    assert (found.partition, found.account, found.nodes, found.seconds) == asked


def test_directives_after_the_first_command_are_none_as_the_queues_read_them():
    assert asked_of("#!/bin/bash\n#SBATCH --nodes=2\ndate\n#SBATCH --nodes=9\n").nodes == 2


def test_one_of_several_partitions_that_takes_the_job_is_enough():
    small, large = Limits("small", max_nodes=2), Limits("large", max_nodes=64)
    assert faults(Asked("small,large", nodes=8), [small, large]) == []
    assert faults(Asked("small", nodes=8), [small, large]) == ["8 nodes are more than partition small gives a job, 2"]
    assert faults(Asked("", nodes=8), [small, large]) == []  # which one is the default is not known
