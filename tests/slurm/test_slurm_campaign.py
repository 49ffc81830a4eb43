"""The notebooks with a real two-node Slurm cluster: a data array, smoke tests, and a training run
that survives losing a node.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from suite.messages import says
from suite.scripts import commands_of, options_of
from two_nodes import Cluster, Project, lines_of, wait_until

from runbook.phases.messages import PhaseMessage

IMAGE = "registry.example.org#nothing:1"
"""The image that the site two-nodes names."""

NO_TRAINER = """\
import importlib.util

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
"""
pytestmark = [pytest.mark.slurm, pytest.mark.notebooks, pytest.mark.training]


@pytest.fixture(scope="session")
def tested(project: Project) -> Path:
    """Run the phases from plan to smoke test with torchrun, and return the run folder."""
    text = project.call("run", "queued", "--to", "smoke")
    for phase in ("00-plan", "01-environment", "02-data", "03-smoke-test"):
        assert f"{phase:16} done after" in text
    return project.runs / "queued"


def test_the_data_phase_was_an_array_and_a_job_that_joined_it(tested: Path, cluster: Cluster):
    jobs = {
        name: json.loads((tested / "jobs" / name / "job.json").read_text())
        for name in ("02-data", "02-data-join")
    }
    array, join = (jobs[name]["queue_id"] for name in ("02-data", "02-data-join"))
    assert "#SBATCH --array=0-1" in (tested / "jobs" / "02-data" / "job.sh").read_text()
    said = [
        (tested / "jobs" / "02-data" / f"element-{number}" / "out").read_text()
        for number in range(2)
    ]
    assert [f"share {number} of 2" in text for number, text in enumerate(said)] == [True, True]
    records = cluster.ask("scontrol", "--oneliner", "show", "job").splitlines()
    joined = next(line for line in records if line.startswith(f"JobId={join} "))
    elements = [line for line in records if f"ArrayJobId={array} " in line]
    assert len(elements) == 2
    # It began when the last element had ended. Times are whole seconds.
    ends = [line.partition(" EndTime=")[2].partition(" ")[0] for line in elements]
    assert joined.partition(" StartTime=")[2].partition(" ")[0] >= max(ends)


def test_the_smoke_test_ran_on_both_nodes_inside_what_pyxis_was_asked_for(tested: Path):
    folder = tested / "jobs" / "03-smoke-test"
    assert (folder / "hostfile").read_text() == "node1\nnode2\n"
    assert (folder / "exit_code").read_text().strip() == "0"
    metrics = lines_of(tested / "smoke" / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    assert {row["world_size"] for row in metrics} == {2}
    script = (folder / "job.sh").read_text()
    (command,) = [
        words for words in commands_of(script, "srun") if "torch.distributed.run" in words
    ]
    options = options_of(command, "srun", flags=("--no-container-mount-home",))
    assert options["--container-image"] == IMAGE
    place = command.index("torch.distributed.run")
    assert command[place - 2 : place] == ["python3", "-m"]


@pytest.fixture(scope="session")
def by_srun(project: Project) -> Path:
    """The folder for the same run, started by srun from a login node without a trainer, so that a
    job rehearses the layout.
    """
    own = project.root / "no trainer"
    own.mkdir()
    (own / "sitecustomize.py").write_text(NO_TRAINER)  # jobs have their own PYTHONPATH
    words = ("jobs.launcher=srun", "jobs.data.array=0", "training.rehearsal_waived_by=")
    words = [word for pair in words for word in ("--set", pair)]
    project.call("run", "queued", "--as", "srun", *words, "--to", "3", PYTHONPATH=str(own))
    return project.runs / "queued--srun"


def test_the_same_smoke_test_by_plain_srun_gives_the_same_losses(tested: Path, by_srun: Path):
    folder = by_srun
    script = (folder / "jobs" / "03-smoke-test" / "job.sh").read_text()
    assert (
        "torch.distributed.run" not in script
        and "SLURM_PROCID" in (folder / "jobs" / "03-smoke-test" / "rank.sh").read_text()
    )
    losses = [
        [row["loss"] for row in lines_of(run / "smoke" / "metrics.jsonl")]
        for run in (tested, folder)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_layout_is_rehearsed_by_a_job_in_the_container_where_there_is_no_trainer_here(
    by_srun: Path,
):
    (folder,) = by_srun.glob("jobs/01-environment-rehearsal-*")
    script = (folder / "job.sh").read_text()
    module = "runbook.training.rehearsal"
    (command,) = [words for words in commands_of(script, "srun") if module in words]
    assert f"--container-image={IMAGE}" in command
    place = command.index(module)
    assert command[place - 2 : place] == ["python3", "-m"]
    checks = json.loads((by_srun / "records" / "03-smoke-test.json").read_text())["checks"]
    (check,) = [check for check in checks if check["name"] == "rehearsal"]
    assert check["verdict"] == "pass"
    assert says(check["value"], PhaseMessage.FULLEST_STAGE, stage=0)
    (kept,) = [
        path for path in by_srun.glob("rehearsals/*.json") if not path.name.endswith(".plan.json")
    ]
    assert json.loads(kept.read_text())["stages"][0]["rank"] == 0


def test_drill_16_a_killed_step_and_a_node_without_power_are_gone_on_from_once_each(
    tested: Path, project: Project, cluster: Cluster
):
    """First the processes in the job step are killed on both nodes. Then one node in the next job
    loses power.
    """
    process = project.start("run", "queued", "--from", "training")
    first = tested / "jobs" / "04-training"
    folder = tested / "jobs" / "04-training-2"
    metrics = tested / "metrics.jsonl"

    def reached(step: int) -> bool:
        return process.poll() is not None or any(
            row["iteration"] >= step for row in lines_of(metrics)
        )

    try:
        wait_until(lambda: reached(12), "12 steps", 300)
        assert process.poll() is None, process.communicate()[0]
        cluster.ask("scancel", "--signal=KILL", f"{queue_id(first)}.0")
        wait_until(
            lambda: (folder / "started").exists() or process.poll() is not None,
            "the next job runs",
            180,
        )
        began = len(lines_of(metrics))
        wait_until(
            lambda: len(lines_of(metrics)) >= began + 8 or process.poll() is not None,
            "8 more steps",
            300,
        )
        assert process.poll() is None, process.communicate()[0]
        cluster.do("crash", "node2")
        number = queue_id(folder)
        states: list[str] = []

        def requeued() -> bool:
            states.append(
                cluster.ask("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").strip()
            )
            return states[-1] == "PENDING"

        wait_until(requeued, "the job is queued again", 180)
        cluster.do("boot", "node2")
        text, _ = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not done in 900 s: {project.logs()}") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        cluster.do("boot", "node2")
        cluster.wait_idle()
    assert process.returncode == 0, text + project.logs()
    assert not (first / "started.1").exists(), (
        "a killed step is no reason for the queue to start the job again"
    )
    assert [path.name for path in folder.glob("started.*")] == ["started.1"], "queued again once"
    assert not (tested / "jobs" / "04-training-3").exists()
    assert (folder / "started").read_text().startswith(f"job slurm-{number}\n")
    rows = lines_of(metrics)
    assert {row["iteration"] for row in rows} == set(range(1, 61))
    assert [row["iteration"] for row in rows][-1] == 60
    events = lines_of(tested / "events.jsonl")
    resumed = [one["iteration"] for one in events if one["event"] == "resumed"]
    assert len(resumed) == 2 and 10 <= resumed[0] <= resumed[1] < 60 and not sum(resumed) % 10
    ended = [one for one in events if one["event"] == "ended" and one["phase"] == "04-training"]
    assert [one["decision"] for one in ended] == ["go on", "done"]
    told = project.call("status", "queued")
    assert "slurm-" in told and "main" in told and "node1,node2" in told
    assert project.call("status", "--find", number).strip() == f"queued: {folder}"
    heading = "==> done: finished <=="
    assert heading in project.call("logs", "queued")


def queue_id(folder: Path) -> str:
    return str(json.loads((folder / "job.json").read_text())["queue_id"])
