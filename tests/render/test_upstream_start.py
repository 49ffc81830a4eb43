"""The documents' own programs start inside a rendered job and find the packages next to them."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sites import PACKAGE, settings_of
from suite.scripts import environment_of

from runbook.core import shell
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.training_job import render_job, write_job
from runbook.planning import make_plan

UPSTREAM_RUNS = ("aws-pile-175b", "azure-175b", "lumi-13b", "polaris-25b", "slurm-oscar")
PHASE = "03-smoke-test"

STAND_INS = {
    "srun": 'RANK=0 LOCAL_RANK=0 SLURM_PROCID=0 SLURM_LOCALID=0 exec bash "${@: -1}"',
    "mpiexec": 'script=${@: -1}; PMI_RANK=0 PMI_LOCAL_RANK=0 exec bash "${script#bash }"',
    "scontrol": "printf 'node%d\\n' $(seq \"$NODES\")",
    "module": "true",
    "conda": "true",
}
"""Stand-ins for the Slurm, PBS and site programs: one rank, on this machine."""


@pytest.fixture
def programs(tmp_path):
    """Create a folder for PATH with the stand-ins, and with this Python as python3."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    return folder


def upstream_checkout(folder: Path, script: str) -> None:
    """Create a program with a package next to it, like pretrain_gpt.py and megatron/."""
    program = folder / script
    (program.parent / "megatron").mkdir(parents=True)
    (program.parent / "megatron" / "training.py").write_text("WORD = 'imported'\n")
    program.write_text("from megatron.training import WORD\nprint(WORD)\n")


@pytest.mark.jobs
@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons ignore PYTHONSAFEPATH")
@pytest.mark.parametrize("run", UPSTREAM_RUNS)
def test_an_upstream_program_imports_the_package_next_to_it(run, programs, tmp_path):
    own = settings_of(run, f"jobs.stage={tmp_path}/stage")
    framework = own.run.training.framework
    assert framework != "runbook"
    checkout = own.site.frameworks[framework].model_copy(
        update={"folder": str(tmp_path / "checkout")}
    )
    own = replace(
        own, site=own.site.model_copy(update={"frameworks": {framework: checkout}, "setup": []})
    )
    upstream_checkout(tmp_path / "checkout", checkout.script)
    job = JobFolder(tmp_path / "run" / "jobs" / PHASE)
    rendered = render_job(own, make_plan(own), PHASE, package=PACKAGE)
    write_job(job, rendered)

    nodes = own.job(PHASE).nodes
    (tmp_path / "nodes").write_text("".join(f"node{i}\n" for i in range(nodes)))
    queue = {
        "SLURM_SUBMIT_DIR": job.path,
        "SLURM_JOB_ID": 7,
        "SLURM_JOB_NODELIST": "node",
        "NODES": nodes,
    }
    queue |= {
        "PBS_O_WORKDIR": job.path,
        "PBS_JOBID": "7.server",
        "PBS_NODEFILE": tmp_path / "nodes",
    }
    # A user may have set PYTHONSAFEPATH for other programs, and the queue passes it on.
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SIF": "image",
        "PYTHONSAFEPATH": "1",
    }
    said = shell.run(
        ["bash", str(job.script)],
        env=environment | {name: str(value) for name, value in queue.items()},
        check=False,
        timeout=60,
    )
    assert (said.exit_code, said.out) == (0, "imported\n"), said.err


def test_our_own_trainer_imports_nothing_from_the_folder_it_works_in():
    own = settings_of("lumi-13b", "training.framework=runbook")
    script = render_job(own, make_plan(own), PHASE, package=PACKAGE).script
    environment = environment_of(script)
    assert (environment["PYTHONUNBUFFERED"], environment["PYTHONSAFEPATH"]) == ("1", "1")
