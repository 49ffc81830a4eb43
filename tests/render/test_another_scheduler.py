"""Adding a scheduler takes a row in one table, and its scripts name no other queue."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import get_args

import pytest
from sites import PACKAGE, planned
from suite.scripts import command_of, commands_of

from runbook.jobs.render.pbs_scripts import PbsScripts
from runbook.jobs.render.task_job import data_tasks, render_task
from runbook.jobs.render.training_job import render_job
from runbook.jobs.schedulers import QUEUE_KINDS, QueueKind
from runbook.jobs.slurm import Slurm
from runbook.params.schema.site import Container, Site


class FluxScripts(PbsScripts):
    """The parts that Flux contributes to a script."""

    announces_end = True
    submit = "flux batch"
    cancel = "flux cancel"
    submit_folder = "${FLUX_SUBMIT_DIR:?}"
    job_number = "${FLUX_NUMBER:?}"
    array_index = "${FLUX_JOB_CC:?}"
    hosts = "flux hostlist --expand --delimiter='\\n' instance"
    time_left = "$(flux job timeleft)"

    def directives(self, settings, phase, job, *, devices=True):
        return [f"# flux: --nodes={job.nodes}", f"# flux: --job-name={settings.name}-{phase}"]

    def on_nodes(self, settings, job, tasks, count=None):
        return ["flux run", f"--nodes={job.nodes}", f"--tasks-per-node={tasks}"]

    def on_each_node(self, settings, job):
        return self.on_nodes(settings, job, 1)

    def on_one_node(self, seconds):
        return f'timeout {seconds} flux run --requires="host:$node"'

    def training_starter(self, settings, job, count, *, chooses_nodes):
        return self.on_nodes(settings, job, job.tasks_per_node, count)

    def task_starter(self, job):
        return ["flux run", f"--ntasks={job.nodes * job.tasks_per_node}"]


OTHER_QUEUES = re.compile(
    r"SBATCH|SLURM|sbatch|scancel|scontrol|srun |#PBS|PBS_|qsub|qdel|mpiexec "
)


@pytest.fixture
def on_flux(monkeypatch):
    """Return the settings and the plan for a run on a site that uses Flux."""
    monkeypatch.setitem(QUEUE_KINDS, "flux", QueueKind(Slurm, FluxScripts))
    words = ("jobs.training.chain=3", "jobs.data.array=4", "jobs.data.walltime=02:00:00")
    settings, plan = planned("slurm-oscar", "training.framework=runbook", *words)
    # Pyxis, which runs containers on this site, is a Slurm plug-in.
    update = {"scheduler": "flux", "directives": {}, "container": Container()}
    site = settings.site.model_copy(update=update)
    return replace(settings, site=site), plan


def assert_only_flux(script: str) -> None:
    commands = "\n".join(line.partition(" # ")[0] for line in script.split("\n"))
    assert OTHER_QUEUES.findall(commands) == []
    assert "# flux: --nodes=" in script
    assert 'cd -- "${FLUX_SUBMIT_DIR:?}"' in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_training_on_another_scheduler_uses_its_words_alone(on_flux):
    settings, plan = on_flux
    script = render_job(settings, plan, "04-training", package=PACKAGE).script
    assert_only_flux(script)
    nodes = str(settings.job("04-training").nodes)
    (command,) = commands_of(script, "flux", "run", f"--nodes={nodes}", "--tasks-per-node=1")
    assert command[4:7] == ["python3", "-m", "torch.distributed.run"]
    assert command_of(script, "set", "--") == ["set", "--", "flux-$job_number"]


def test_a_data_job_on_another_scheduler_uses_its_words_alone(on_flux):
    settings, _ = on_flux
    settings = replace(settings, project=PACKAGE)
    scripts = [
        render_task(settings, "02-data", task, PACKAGE).script
        for task in data_tasks(settings, "python3")
    ]
    assert any("element=${FLUX_JOB_CC:?}" in script for script in scripts)
    for script in scripts:
        assert_only_flux(script)


def test_the_table_has_every_queue_that_a_site_may_name():
    names = get_args(Site.model_fields["scheduler"].annotation)
    assert {*QUEUE_KINDS, "local"} == set(names)
    for name, kind in QUEUE_KINDS.items():
        assert kind.queue.kind == name
