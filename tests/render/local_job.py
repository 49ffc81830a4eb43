"""Local jobs used to test job scripts, and those in tests/golden/local."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from runbook import params, planning
from runbook.jobs.render.training_job import RenderedJob, render_job
from runbook.params import Settings
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import Job, Jobs, Run
from runbook.params.schema.site import Hardware, Site
from runbook.planning import Plan

PHASES = ("03-smoke-test", "04-training")
ENVIRONMENT = {
    "threads": {"MKL_NUM_THREADS": "1", "OMP_PROC_BIND": None},
    "empty group": {},
    "names with blanks": {"TMPDIR": "/tmp/with a blank", "QUOTED": "it's $HOME"},
}


def local_settings(
    environment=None, *, cores=8, walltime=0, nodes=1, scheduler="local", modules=(), setup=()
) -> Settings:
    """Return settings for a local run, as if read from files."""
    hardware = Hardware(device="cpu", devices_per_node=2, cores_per_node=cores)
    site = Site(
        site="local",
        title="This machine",
        scheduler=scheduler,
        hardware=hardware,
        environment=environment or {},
        modules=list(modules),
        setup=list(setup),
    )
    job = Job(walltime=walltime, nodes=nodes)
    model = Model(label="tiny", layers=4, hidden=128, heads=4, source="test")
    return Settings(
        run=Run(run="golden", model="tiny", jobs=Jobs(smoke=job, training=job)),
        site=site,
        model=model,
        smoke_model=model,
        smoke_model_name="tiny",
        dataset=Dataset(title="Corpus", kind="corpus", licence="CC0", source="test"),
        origins={},
        project=Path("/project"),
    )


@cache
def _whole_plan() -> Plan:
    return planning.make_plan(params.load("local"), None)


def local_plan(world_size=2) -> Plan:
    """Return a plan with only the parts that rendering reads."""

    def changed(phase):
        parallel = replace(phase.parallel, world_size=world_size)
        limits = replace(phase.limits, process_group_timeout_seconds=600)
        return replace(phase, parallel=parallel, limits=limits)

    whole = _whole_plan()
    return replace(whole, phases={name: changed(phase) for name, phase in whole.phases.items()})


def golden_job(phase: str) -> RenderedJob:
    """Return the job with the script and arguments in tests/golden/local."""
    settings = local_settings()
    if phase == "04-training":
        settings = local_settings(
            ENVIRONMENT, cores=0, walltime=3600, modules=["gcc/13"], setup=["ulimit -c 0"]
        )
    return render_job(settings, local_plan(), phase, python="/opt/my python/bin/python")
