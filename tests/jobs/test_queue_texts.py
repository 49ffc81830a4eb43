"""Parsers for queue output: texts captured from Slurm, and texts in the PBS format; see
tests/samples/queues/README.md.
"""

from pathlib import Path

import pytest

from runbook.jobs import pbs, slurm
from runbook.jobs.job_folder import JobState
from runbook.jobs.job_request import JobRequest, QueueLimits, parse_job_request, request_problems
from runbook.jobs.messages import JobMessage
from runbook.jobs.queue import QueueJob

SAMPLES = Path(__file__).parents[1] / "samples" / "queues"
GOLDEN = Path(__file__).parents[1] / "golden"


def sample(name):
    return (SAMPLES / name).read_text()


def test_squeue_of_slurm_22_05():
    jobs = {
        job.job: job
        for job in slurm.parse_jobs(sample("slurm-22.05-squeue.txt"), slurm.SQUEUE_COLUMNS)
    }
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
    assert [name for name, job in jobs.items() if slurm.never_starts(job.reason)] == ["7"]


def test_a_reason_with_the_separator_in_it_stays_whole():
    line = "4|PENDING|(null)|paid||Job's account not known, so it can't | use this partition\n"
    [job] = slurm.parse_jobs(line, slurm.SQUEUE_COLUMNS)
    assert job.reason == "Job's account not known, so it can't | use this partition"


def test_sacct_of_slurm_22_05():
    jobs = {
        job.job: job
        for job in slurm.parse_jobs(sample("slurm-22.05-sacct.txt"), slurm.SACCT_COLUMNS)
    }
    assert (jobs["2"].state, jobs["2"].exit_code) == (JobState.FAILED, 75)
    assert (jobs["5"].state, jobs["5"].word) == (JobState.CANCELLED, "CANCELLED by 0")
    assert jobs["6"].state is JobState.RUNNING
    assert slurm.parse_exit_code(sample("slurm-22.05-scontrol-job.txt")) == 3


def test_partitions_of_slurm_22_05():
    main, short, paid = slurm.Slurm().parse_limits(sample("slurm-22.05-scontrol-partition.txt"))
    assert (main.name, main.default, main.max_seconds, main.max_nodes, main.total_nodes) == (
        "main",
        True,
        0,
        0,
        2,
    )
    assert (short.max_seconds, short.max_nodes, short.accounts) == (300, 1, ())
    assert paid.accounts == ("physics",)
    assert short.words == (
        "PartitionName=short AllowAccounts=ALL MaxNodes=1 MaxTime=00:05:00 MinNodes=0 State=UP TotalNodes=2"
    )


@pytest.mark.parametrize(
    "text",
    ["", "slurm_load_jobs error: Invalid job id specified\n", "JOBID|STATE|A|B|C|D\n", "1|R\n"],
)
def test_what_is_no_answer_gives_no_job(text):
    assert (
        slurm.parse_jobs(text, slurm.SQUEUE_COLUMNS)
        == slurm.parse_jobs(text, slurm.SACCT_COLUMNS)
        == []
    )
    assert pbs.parse_jobs(text) == []


def test_a_word_that_slurm_never_said_stays_unknown():
    [job] = slurm.parse_jobs("1|DREAMING|(null)|main|node1|None\n", slurm.SQUEUE_COLUMNS)
    assert (job.state, job.word) == (JobState.UNKNOWN, "DREAMING")


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ("done done", "done"),
        ("done running failed", "running"),
        ("done pending", "pending"),
        ("done failed", "failed"),
    ],
)
def test_an_array_is_as_its_elements_are(states, whole):
    jobs = [
        QueueJob(str(number), JobState(state), state, "")
        for number, state in enumerate(states.split())
    ]
    assert slurm.together(jobs).state == whole


def test_qstat_of_openpbs_23_06():
    jobs = {
        job.job.partition(".")[0]: job
        for job in pbs.parse_jobs(sample("openpbs-23.06.06-qstat-jobs.txt"))
    }
    assert {name: (str(job.state), job.exit_code) for name, job in jobs.items()} == {
        "77[]": (
            "failed",
            None,
        ),  # element 0 ended with 1, and the last one with 0, which PBS reports for the array
        "78": ("failed", 3),
        "79": ("cancelled", None),  # deleted because 78 failed: no exit status and no comment
        "80": ("timeout", None),
        "81": ("cancelled", None),  # deleted while it ran, with an exit status of 0
        "82": ("cancelled", None),  # deleted while it was waiting
        "83": ("pending", None),
        "84": ("running", None),
        "85[]": ("running", None),
        "86": ("pending", None),
    }
    assert {job.token for job in jobs.values()} == {"runbook-0123456789abcdef"}
    assert (
        jobs["83"].reason
        == "Can Never Run: Insufficient amount of resource: ncpus (R: 99 A: 16 T: 16)"
    )
    assert jobs["79"].reason == JobMessage.DELETED_BEFORE_IT_RAN.fill()
    assert jobs["84"].nodes == "pnode1,pnode2"


def test_qstat_of_queues():
    debug, prod, old = pbs.Pbs().parse_limits(sample("pbs-qstat-queues.txt"))
    assert (debug.name, debug.max_seconds, debug.max_nodes, debug.min_nodes) == (
        "debug",
        3600,
        2,
        1,
    )
    assert (prod.min_nodes, prod.state, old.state) == (10, "DOWN", "INACTIVE")
    assert [row["state"] for row in pbs.queue_rows(sample("pbs-qstat-queues.txt"))] == [
        "open",
        "closed",
        "closed",
    ]


def test_qstat_of_queues_of_openpbs_23_06():
    """Read several queues, including one that was never enabled. Its output lacks a line that the
    others have.
    """
    queues = {
        queue.name: queue
        for queue in pbs.Pbs().parse_limits(sample("openpbs-23.06.06-qstat-queues.txt"))
    }
    states = {name: queue.state for name, queue in queues.items()}
    assert states == {"workq": "UP", "debug": "UP", "prod": "DOWN", "old": "INACTIVE"}
    assert (queues["debug"].max_seconds, queues["debug"].max_nodes, queues["prod"].min_nodes) == (
        3600,
        2,
        10,
    )


@pytest.mark.parametrize(
    ("status", "state", "code"),
    [
        *[
            (0, "done", 0),
            (75, "stopped", 75),
            (1, "failed", 1),
            (265, "cancelled", 137),
            (267, "failed", 139),
        ],
        *[(-29, "timeout", None), (-1, "lost", None), (None, "cancelled", None)],
    ],
)
def test_the_end_of_a_job_of_pbs(status, state, code):
    assert pbs.state_of("F", status) == (JobState(state), code)


def test_the_id_of_a_submitted_job_is_the_last_line_that_is_one():
    assert slurm.Slurm().parse_job_id("sbatch: warning of the site\n12;cluster\n") == "12"
    text = "qsub: waiting\n1701.polaris-pbs-01.hsn.cm.polaris\n"
    assert pbs.Pbs().parse_job_id(text) == "1701.polaris-pbs-01.hsn.cm.polaris"
    assert pbs.Pbs().parse_job_id("12[].pbs") == "12[].pbs"
    assert slurm.Slurm().parse_job_id("nothing") == pbs.Pbs().parse_job_id("") == ""


@pytest.mark.parametrize(
    ("site", "asked"),
    [
        ("lumi", ("standard-g", "GIVE_JOBS_ACCOUNT", 2, 3600)),
        ("azure", ("gpu", "", 16, 86400)),
        ("polaris", ("debug-scaling", "GIVE_JOBS_ACCOUNT", 8, 3600)),
    ],
)
def test_what_our_own_scripts_ask_for_is_read_back(site, asked):
    found = parse_job_request((GOLDEN / site / "04-training" / "job.sh").read_text())
    assert (found.partition, found.account, found.nodes, found.seconds) == asked


def test_directives_after_the_first_command_are_none_as_the_queues_read_them():
    assert parse_job_request("#!/bin/bash\n#SBATCH --nodes=2\ndate\n#SBATCH --nodes=9\n").nodes == 2


def test_one_of_several_partitions_that_takes_the_job_is_enough():
    small = QueueLimits("small", max_nodes=2)
    large = QueueLimits("large", max_nodes=64)
    assert request_problems(JobRequest("small,large", nodes=8), [small, large]) == []
    assert request_problems(JobRequest("small", nodes=8), [small, large]) == [
        JobMessage.MORE_NODES_THAN_ALLOWED.fill(nodes=8, partition="partition small", max_nodes=2)
    ]
    assert (
        request_problems(JobRequest("", nodes=8), [small, large]) == []
    )  # the default is not known


def test_a_queues_word_for_a_partition_changes_no_name():
    asked = JobRequest("debug", account="partition-lab", nodes=1)
    limits = [QueueLimits("debug", denied_accounts=("partition-lab",), words="partition debug")]
    assert request_problems(asked, limits, "queue") == [
        JobMessage.QUEUE_SAYS.fill(
            problem=JobMessage.ACCOUNT_DENIED.fill(
                account="partition-lab", partition="queue debug"
            ),
            words="partition debug",
        )
    ]
