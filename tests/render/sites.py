"""Renders the five documents' runs as `runbook render --placeholders` does, for paths that no
machine has.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from runbook import params
from runbook.jobs.render.task_job import data_tasks, render_task
from runbook.jobs.render.training_job import render_job
from runbook.params.schema.site import Container
from runbook.params.settings import with_placeholders
from runbook.planning import make_plan

PROJECT = Path(__file__).parents[2]
GOLDEN = PROJECT / "tests" / "golden"
UPSTREAM = PROJECT / "tests" / "upstream"
PACKAGE = Path("/project")
PHASES = ("03-smoke-test", "04-training")
RUNS = [name for name in params.run_names(PROJECT) if name != "local"]
NAMES = [
    *RUNS,
    *(f"{run}:{variant}" for run in RUNS for variant in params.variant_names(run, PROJECT)),
]

LENGTHS = {
    "iterations": ("training.iterations=1000", "training.samples=0", "training.tokens=0"),
    "samples": ("training.iterations=0", "training.samples=262144", "training.tokens=0"),
    "tokens": ("training.iterations=0", "training.samples=0", "training.tokens=1G"),
}
"""The --set words that give a training run its length, by unit."""
OF_EACH_FRAMEWORK = {
    "megatron-lm": "azure-175b",
    "megatron-deepspeed": "slurm-oscar",
    "nemo": "aws-pile-175b",
}
"""For each framework, a run that trains with it."""


UNATTENDED = {
    "own-trainer-slurm": (
        "azure-175b",
        "training.framework=runbook",
        "training.near_interval=10",
    ),
    "megatron-lm-slurm": ("azure-175b",),
    "megatron-deepspeed-pbs": ("polaris-25b",),
}
"""The run and the --set words for each job in a chain with spare nodes, by golden file name.
"""


def settings_of(name, *words):
    """Return the settings for a run, with placeholders for required values."""
    return with_placeholders(params.load(name, set_words=words, project=PROJECT))


@cache
def planned(name, *words):
    """Return the settings and plan for a run. They are cached because most tests use the same few."""
    settings = settings_of(name, *words)
    return settings, make_plan(settings)


@cache
def rendered(name, phase, *words):
    """Return the settings, the orders and the job for one phase in a run."""
    settings, plan = planned(name, *words)
    return settings, plan.phases[phase], render_job(settings, plan, phase, package=PACKAGE)


def data_jobs(name):
    """Return the data phase jobs in a run as an array of four, by folder name."""
    settings = replace(
        settings_of(name, "jobs.data.array=4", "jobs.data.walltime=02:00:00"), project=PACKAGE
    )
    tasks = data_tasks(settings, "python3")
    return settings, {
        task.folder("02-data"): render_task(settings, "02-data", task, PACKAGE) for task in tasks
    }


def length_arguments(framework, unit):
    """Plan a training run with its length in this unit. Return the plan and the rendered arguments."""
    _, phase, job = rendered(OF_EACH_FRAMEWORK[framework], "04-training", *LENGTHS[unit])
    return phase, job.arguments


def length_file(framework, unit):
    """Return the golden file for those arguments."""
    return GOLDEN / "lengths" / f"{framework}-{unit}.json"


def texts(job):
    """Return every file of a job by name."""
    arguments = json.dumps(job.arguments, indent=2, ensure_ascii=False) + "\n"
    return {"job.sh": job.script, "arguments.json": arguments, **job.files}


def facts(repository, commit):
    """Return the facts that tests/upstream stores about a checkout."""
    found = [json.loads(path.read_text()) for path in UPSTREAM.glob("*.json")]
    return next(
        entry for entry in found if (entry["repository"], entry["commit"]) == (repository, commit)
    )


FEWER_NODES = {
    "fewer-nodes-slurm": ("azure-175b", "jobs.training.nodes=64", "jobs.training.min_nodes=16"),
    "fewer-nodes-pbs": (
        "polaris-25b",
        "model=6.7b",
        "parallel.tensor=4",
        "training.offload=false",
        "training.sequence_length=2048",
        "training.global_batch=24",
        "jobs.training.nodes=8",
        "jobs.training.min_nodes=2",
    ),
}
"""The run and the --set words for a job that can continue on fewer nodes, with neither a chain nor
spare nodes.
"""

COPIED = {
    "own-trainer-slurm": ("azure-175b", "training.framework=runbook", "jobs.training.spares=2"),
    "megatron-deepspeed-pbs": ("polaris-25b",),
}
"""The run and the --set words for jobs in which Python runs from copies on the nodes, by golden
folder name.
"""


@cache
def copied_job(name, *more):
    """Return a training job that copies its environment to each node, on a site without containers."""
    run, *words = COPIED[name]
    settings = settings_of(run, *words)
    settings = replace(settings, site=settings.site.model_copy(update={"container": Container()}))
    given = {
        "environment_copy": "$TMPDIR/copies" if name == "own-trainer-slurm" else "/local/scratch"
    }
    jobs = settings.run.jobs.model_copy(update=given | dict(more))
    settings = replace(settings, run=settings.run.model_copy(update={"jobs": jobs}))
    return render_job(settings, make_plan(settings), "04-training", package=PACKAGE)


def copied_files(name):
    """Return the golden files for that job by name."""
    job = copied_job(name)
    return {
        "job.sh": job.script,
        "rank.sh": job.files["rank.sh"],
        "python.sh": job.files["python.sh"],
    }


def unattended_job(name):
    """Return the job of a training run that continues by itself."""
    if name in FEWER_NODES:
        run, *words = FEWER_NODES[name]
        return rendered(run, "04-training", *words, "training.framework=runbook")[2]
    run, *words = UNATTENDED[name]
    unattended = ("jobs.training.chain=3", "jobs.training.spares=2")
    return rendered(run, "04-training", *words, *unattended)[2]


def unattended_file(name):
    """Return the golden file for the script."""
    return GOLDEN / "unattended" / f"{name}.sh"
