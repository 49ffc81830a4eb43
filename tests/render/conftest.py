import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runbook import params, planning
from runbook.params import Settings
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import Job, Jobs, Run
from runbook.params.schema.site import Hardware, Site


@pytest.fixture
def make_settings():
    """Return a function that makes settings for a local run, as if read from files, with a test's
    changes."""

    def make(
        environment=None, *, cores=8, walltime=0, nodes=1, scheduler="local", modules=(), setup=()
    ):
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

    return make


@pytest.fixture(scope="session")
def local_plan():
    return planning.make_plan(params.load("local"), None)


@pytest.fixture
def make_plan(local_plan):
    """Return a function that makes a plan with only the parts that rendering reads."""

    def changed(phase, world_size):
        parallel = replace(phase.parallel, world_size=world_size)
        limits = phase.limits
        return replace(
            phase, parallel=parallel, limits=replace(limits, process_group_timeout_seconds=600)
        )

    def make(world_size=2):
        phases = {name: changed(phase, world_size) for name, phase in local_plan.phases.items()}
        return replace(local_plan, phases=phases)

    return make


@pytest.fixture(scope="session")
def recorder(tmp_path_factory):
    """A stand-in for the trainer's Python: it writes its arguments, folder and environment as JSON
    to standard output.
    """
    program = tmp_path_factory.mktemp("program") / "recorder"
    program.write_text(
        f"#!{sys.executable} -IS\n"
        "import json, os, sys\n"
        "line = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + '\\n'\n"
        "os.write(1, line.encode())\n"
    )
    program.chmod(0o755)
    return program
