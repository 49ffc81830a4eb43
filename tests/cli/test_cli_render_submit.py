"""A rendered folder can be submitted from where it was written, that is, from the folder with the
script. srun is a stub.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.core import shell
from runbook.phases.messages import PhaseMessage

INIT = (
    *("--scheduler", "slurm", "--device", "A100-40GB"),
    *("--devices-per-node", 1, "--cores-per-node", 4),
)
SRUN = """\
#!/bin/bash
# srun for one node and one task: its options end where the first word has no dash.
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
SCONTROL = """\
#!/bin/bash
[[ "$1 $2" == "show hostnames" ]] && echo "$3"
"""
PLAN_IS = "the plan is "
INTERPRETER = f"""\
#!/bin/bash
# The site's python: torch.distributed.run starts one rank, the trainer reads its plan.
echo "python $*"
if [[ "$1 $2" == "-m torch.distributed.run" ]]; then
  while [[ $1 != --no-python ]]; do shift; done
  shift
  RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 exec "$@"
fi
[[ "$1 $2" == "-m runbook.training" && -s $3 ]] && echo "{PLAN_IS}$PWD/$3"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Create stand-ins for srun, scontrol and the site interpreter, but none for torchrun."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "trainer python": INTERPRETER}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def rendered(runbook, project: Path, programs: Path) -> Path:
    """Render a run from a project into an empty folder outside it."""
    assert runbook("init", ".", "--site", "oak", *INIT).code == 0
    site = project / "params" / "sites" / "oak.yaml"
    python = f"python: '{programs / 'trainer python'}'"
    text, count = re.subn(r"(?m)^python: .*$", python, site.read_text())
    assert count == 1
    site.write_text(text)
    out = programs.parent / "elsewhere"
    assert runbook("render", "oak", "--out", out).code == 0
    return out


def submit(script: Path, programs: Path) -> shell.Finished:
    """Run a job as Slurm does: copy its script, and start it in the folder that it was submitted
    from."""
    copy = programs.parent / "slurm_script"
    shutil.copy(script, copy)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(script.parent),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
    }
    return shell.run(["bash", str(copy)], cwd=script.parent, env=environment, check=False)


@pytest.mark.parametrize("phase", ["03-smoke-test", "04-training"])
def test_a_rendered_job_runs_from_its_own_folder_by_the_sites_interpreter(
    rendered: Path, programs: Path, phase: str
):
    folder = rendered / "jobs" / phase
    finished = submit(folder / "job.sh", programs)
    assert finished.exit_code == 0, finished.err
    starter, trainer, plan = finished.out.splitlines()
    launch = ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1"]
    assert shlex.split(starter)[:5] == ["python", *launch]
    training = ["-m", "runbook.training", "plan.json", "--phase", phase]
    assert shlex.split(trainer) == ["python", *training]
    assert plan.removeprefix(PLAN_IS) == f"{rendered}/plan.json"
    assert (folder / "exit_code").read_text().strip() == "0"


def test_render_lists_no_file_that_it_did_not_write(runbook, rendered: Path):
    listed = {Path(line) for line in runbook("render", "oak", "--out", rendered).out.splitlines()}
    assert listed == {path for path in rendered.rglob("*") if path.is_file()}
    (rendered / "letter.txt").write_text("Dear reader")
    again = runbook("render", "oak", "--out", rendered)
    assert {Path(line) for line in again.out.splitlines()} == listed


def test_rendering_over_a_submitted_job_is_refused_and_changes_nothing(
    runbook, rendered: Path, programs: Path
):
    submit(rendered / "jobs" / "04-training" / "job.sh", programs)
    before = {
        path: path.stat() for path in rendered.rglob("*") if stat.S_ISREG(path.stat().st_mode)
    }
    refused = runbook("render", "oak", "--out", rendered, "--set", "training.micro_batch=1")
    assert refused.code == 2
    assert says(
        refused.err, PhaseMessage.FOLDER_OF_A_SUBMITTED_JOB, folder=containing("jobs/04-training")
    )
    after = {path: path.stat() for path in before}
    assert after == before


def test_the_scripts_that_set_a_site_up_are_written_where_a_run_has_them(runbook, project: Path):
    assert runbook("render", "azure-175b", "--out", "scripts", "--placeholders").code == 0
    assert {path.name for path in Path("scripts/environment").iterdir()} >= {
        "prepare.sh",
        "deployment.env",
    }
