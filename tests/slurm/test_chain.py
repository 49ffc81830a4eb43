"""An unattended training run: the jobs of a chain follow each other, and a spare node replaces a
lost one.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chained_run import ChainedRun, write_site
from suite.messages import says
from two_nodes import Cluster, wait_until, what_is_missing

from runbook.jobs.job_folder import JobState
from runbook.jobs.messages import JobLine, JobReason
from runbook.jobs.render.training_job import UNENDED_SECONDS
from runbook.next_job.decisions import DECIDED_BY_JOB
from runbook.phases.job_control import training_jobs
from runbook.phases.job_control.ended_jobs import decision_of_job
from runbook.phases.phase_steps import train_step
from runbook.plan_file.job_ends import Action
from runbook.plan_file.resume_sources import near_partner
from runbook.records.logbook import make_entry
from runbook.runs.bad_nodes import bad_nodes_file, read_bad_nodes
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.tools.drills.faults import VARIABLE as FAULTS

pytestmark = [pytest.mark.slurm, pytest.mark.training]
NODES = 3
"""Two nodes train, and one is spare."""
SLOW_STEPS = "slow:seconds=0.25"
"""Long enough for a test to act within a step."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[Cluster]:
    """Start a separate Slurm cluster, because these tests kill its nodes."""
    if missing := what_is_missing():
        assert not os.environ.get("RUNBOOK_REQUIRE_SLURM"), missing
        pytest.skip(missing)
    cluster = Cluster(tmp_path_factory.mktemp("three-nodes"), nodes=NODES)
    try:
        cluster.do("start")
        yield cluster
    finally:
        cluster.do("stop")


@pytest.fixture(scope="module")
def project(nodes: Cluster, tmp_path_factory) -> Iterator[Path]:
    """Return the project folder, and put the cluster programs on our PATH."""
    root = tmp_path_factory.mktemp("unattended")
    write_site(root, NODES)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF", "CLUSTER_DIR"):
            patch.setenv(name, nodes.environment[name])
        patch.setenv(RUNS_VARIABLE, str(root / "runs"))
        yield root


@pytest.fixture(scope="module")
def undisturbed(project: Path, nodes: Cluster) -> dict[int, float]:
    """Train the same run without faults, and return its losses."""
    run = ChainedRun(project, nodes, "undisturbed")
    run.launch()
    run.wait_for_end()
    assert run.status().state is JobState.DONE, run.said()
    return run.losses()


@pytest.fixture(scope="module")
def killed(project: Path, nodes: Cluster) -> ChainedRun:
    """Run a chain of three jobs with a spare node.

    A node and a job script are killed while nobody watches.
    """
    words = ["jobs.training.chain=3", "jobs.training.spares=1", "training.near_interval=1"]
    # All nodes are on this machine, so each one gets a separate memory folder.
    words.append(f"training.near_folder={project}/memory/$SLURMD_NODENAME")
    run = ChainedRun(project, nodes, "killed", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS, SLOW_STEPS)
        run.launch()
    first, second, _ = run.queue_ids()
    run.wait_for_step(7, attempt=1)
    nodes.do("crash", "node2")
    run.wait_for_step(9, attempt=2)
    nodes.do("boot", "node2")
    nodes.ask("scancel", "--batch", "--signal=KILL", first)
    run.wait_for_step(11, attempt=3)
    assert run.status().job_id == f"slurm-{second}"
    run.wait_for_end()
    return run


def test_the_losses_are_those_of_an_undisturbed_training(killed, undisturbed):
    assert killed.losses() == undisturbed
    assert killed.status().state is JobState.DONE
    assert killed.status().reason == "finished"


def test_restarts_stay_in_the_allocation_until_its_script_is_killed(killed):
    first, second, third = killed.queue_ids()
    places = [event["id"] for event in killed.events("attempt_began")]
    assert places == [f"slurm-{first}"] * 2 + [f"slurm-{second}"]
    log = killed.job.err.read_text()
    assert says(log, JobLine.NODE, node="node2", fate=JobLine.NODE_LEFT_OUT.fill())
    assert says(log, JobLine.ATTEMPT_TRAINS, attempt=2, nodes="node1,node3")
    assert f"slurm-{third}" not in log, "the last job of the chain was taken out of the queue"


def test_the_spare_node_gets_the_state_of_the_lost_one_from_its_partner(killed):
    first, second = killed.events("resumed")
    assert first["source"] == near_partner([1])
    assert first["iteration"] > 4, "newer than the checkpoint"
    # When a script is killed, its ranks get SIGTERM: they save, and remove their copies.
    assert second["source"] == "shared"
    nodes_in_use = ("node1", "node3")
    for node in nodes_in_use:
        assert not list((killed.folder.parents[1] / "memory" / node).rglob("iter_*"))


def test_the_lost_node_is_remembered_and_the_logbook_says_so(killed):
    (event,) = killed.events("node_replaced")
    assert event["node"] == "node2"
    (bad,) = read_bad_nodes(bad_nodes_file(killed.open_phase.settings), time.time())
    assert (bad.node, bad.job) == ("node2", "04-training")
    text = make_entry(event).text
    assert all(fact in text for fact in ("node2", "04-training", event["why"]))


def test_each_end_is_an_event_with_the_decision_of_the_job_itself(killed):
    ends = killed.events("ended")
    assert [end["decision"] for end in ends] == ["go on", "done"]
    assert {end["by"] for end in ends} == {DECIDED_BY_JOB}


def test_a_watcher_that_comes_later_takes_over_what_the_job_decided(killed):
    decision = decision_of_job(killed.job)
    assert decision is not None and decision.action is Action.DONE
    training_jobs.watch(killed.open_phase.training, killed.training_job())
    assert not train_step(killed.open_phase.run, "04-training").why_not_done()


@pytest.fixture(scope="module")
def with_fewer_nodes(project: Path, nodes: Cluster) -> ChainedRun:
    """Run a chain of two jobs without a spare node.

    The first job loses a node, and later its script is killed.
    """
    run = ChainedRun(project, nodes, "fewer", "jobs.training.chain=2", "jobs.training.min_nodes=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS, SLOW_STEPS)
        run.launch()
    run.wait_for_step(6, attempt=1)
    _, lost = run.job.hostfile.read_text().split()
    nodes.do("crash", lost)
    run.wait_for_step(9, attempt=2)
    nodes.do("boot", lost)
    nodes.ask("scancel", "--batch", "--signal=KILL", run.queue_ids()[0])
    run.wait_for_end()
    assert run.status().state is JobState.DONE, run.said()
    return run


def test_without_a_spare_the_training_goes_on_with_fewer_replicas_and_never_silently(
    with_fewer_nodes,
):
    run = with_fewer_nodes
    first, second = run.queue_ids()
    places = [event["id"] for event in run.events("attempt_began")]
    assert places == [f"slurm-{first}"] * 2 + [f"slurm-{second}"]
    log = run.job.err.read_text()
    assert says(log, JobLine.FEWER_NODES_TRAIN, num_nodes=1, nodes=2)
    lost, back = run.events("replicas_changed")
    assert (lost["replicas"], lost["planned_replicas"], lost["num_microbatches"]) == (1, 2, 4)
    assert lost["iteration"] == 4
    assert re.search(r"\b1 of 2\b", make_entry(lost).text)
    assert (back["replicas"], back["world_size"]) == (2, 2), "the next job has all its nodes again"


def test_the_global_batch_and_the_losses_are_those_of_all_nodes(with_fewer_nodes, undisturbed):
    """Compare losses with a tolerance: sums over one process and over two differ by fp32 rounding."""
    rows = with_fewer_nodes.rows()
    assert {row["global_batch"] for row in rows} == {4}
    lost, back = with_fewer_nodes.events("replicas_changed")
    of_fewer = [row["iteration"] for row in rows if row["world_size"] == 1]
    assert of_fewer[0] == lost["iteration"] + 1 and of_fewer[-1] >= back["iteration"]
    assert with_fewer_nodes.losses() == pytest.approx(undisturbed, rel=1e-5)


def step_daemon_of(trainer: int) -> int:
    """Return the slurmstepd above a training process."""
    pid = trainer
    while not (Path("/proc") / str(pid) / "cmdline").read_bytes().startswith(b"slurmstepd"):
        pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, f"no slurmstepd above process {trainer}"

    return pid


def trainer_on(nodes: Cluster, node: str) -> int:
    """Return the rank that runs on a node."""
    for pid in nodes.processes():
        place = Path("/proc") / str(pid)
        is_trainer = b"runbook.training\0plan.json" in (place / "cmdline").read_bytes()
        if is_trainer and f"SLURMD_NODENAME={node}".encode() in (place / "environ").read_bytes():
            return pid

    raise AssertionError(f"no rank runs on {node}")


def test_a_failed_step_that_does_not_end_on_a_node_is_left_behind(project, nodes, undisturbed):
    """Stop the step daemon on a node, so that it seems to wait for a process that cannot be killed."""
    words = ["jobs.training.chain=1", "jobs.training.spares=1"]
    run = ChainedRun(project, nodes, "unended", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULTS, SLOW_STEPS)
        run.launch()
    run.wait_for_step(6, attempt=1)
    frozen = step_daemon_of(trainer_on(nodes, "node2"))
    os.kill(frozen, signal.SIGSTOP)
    try:
        os.kill(trainer_on(nodes, "node1"), signal.SIGKILL)
        wait_until(run.job.exit_code.exists, "the end of the job's script", 180)
    finally:
        os.kill(frozen, signal.SIGCONT)
    run.wait_for_end()
    assert run.status().state is JobState.DONE, run.said()
    (event,) = run.events("node_replaced")
    assert event["node"] == "node2"
    log = run.job.err.read_text()
    assert says(log, JobReason.STEP_LEFT_BEHIND, seconds=UNENDED_SECONDS)
    assert says(log, JobLine.ATTEMPT_TRAINS, attempt=2, nodes="node1,node3")
    assert run.losses() == undisturbed
