"""`make pythons`: the trainer and all phases on every other supported Python, in environments that
`make setup` creates.

PYTHONS=all (the default) tests all versions, PYTHONS=3.13 only that one, and PYTHONS=rotate one
that depends on the commit: CI only has time for one. The first and the last output line say which
versions were tested. It only runs by name, because it takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from find_python import SUPPORTED, find_interpreters, version_text
from python_choice import chosen_versions, summary
from release import build_release, installed_apart, own_environment

CLONE = Path(__file__).parents[2]
OWN = sys.version_info[:2]
OTHERS = [version for version in SUPPORTED if version != OWN]

TRAINER_TESTS = (
    "test_deepspeed.py",
    "test_engines.py",
    "test_gpu_kernels.py",  # only needed here, because a CPU build of torch has no Triton
    "test_layouts.py",
    "test_order.py",
    "test_resume.py",
    "test_tuning.py",
)

# Every phase in params/local.yaml, with a tiny model and few steps.
SMALL = (
    "model=tiny",
    "training.smoke.model=tiny",
    "training.iterations=8",
    "training.rehearse_stop=3",
    "training.save_interval=4",
    "training.eval_interval=4",
    "training.smoke.iterations=6",
    "jobs.training.walltime=00:10:00",
    "jobs.smoke.walltime=00:10:00",
)
PHASES = (
    "00-plan",
    "01-environment",
    "02-data",
    "03-smoke-test",
    "04-training",
    "05-analysis",
    "06-evaluation",
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment for one Python version, set up from requirements.lock."""

    version: tuple[int, int]
    folder: Path

    @property
    def program(self) -> str:
        return str(self.folder / "bin" / "python")


def head() -> str:
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(asked, cwd=CLONE, capture_output=True, text=True, check=True).stdout


CHOSEN = chosen_versions(os.environ.get("PYTHONS", "all"), OTHERS, head)


@pytest.fixture(scope="session", autouse=True)
def say_what_is_run():
    """Print which Pythons are tested, at the beginning and at the end, so that a log shows it."""
    text = summary(OWN, OTHERS, CHOSEN)
    print(f"\n{text}", flush=True)
    yield
    print(f"\n{text}", flush=True)


@pytest.fixture(scope="module", params=CHOSEN, ids=version_text)
def environment(request):
    """Set up an environment in build/pythons, where a second run finds it."""
    version = request.param
    interpreter = find_interpreters().get(version)
    assert interpreter, f"no Python {version_text(version)} on PATH or in pyenv's folder"
    folder = CLONE / "build" / "pythons" / version_text(version)
    make = ["make", "--no-print-directory", "setup", "GPU=0", f"VENV={folder}"]
    subprocess.run([*make, f"PYTHON={interpreter}"], cwd=CLONE, check=True)
    return Environment(version, folder)


def losses_with(python: str, folder: Path) -> dict[str, list[float]]:
    path = folder / "losses.json"
    program = CLONE / "tests" / "pythons" / "train_layouts.py"
    subprocess.run([python, str(program), str(path)], check=True)
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def own_losses(tmp_path_factory):
    """Train with the Python in this environment on this machine, because other machines round
    differently.
    """
    return losses_with(sys.executable, tmp_path_factory.mktemp("own"))


def test_each_engine_and_layout_has_the_losses_of_the_other_python(
    environment, own_losses, tmp_path
):
    losses = losses_with(environment.program, tmp_path)
    assert losses.keys() == own_losses.keys()
    for layout, expected in own_losses.items():
        assert losses[layout] == pytest.approx(expected, rel=1e-6), layout


def test_the_tests_of_the_trainer_pass(environment):
    files = [f"tests/training/{name}" for name in TRAINER_TESTS]
    pytest_ = [environment.program, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    subprocess.run(pytest_, cwd=CLONE, check=True)


def test_every_phase_of_local_is_done_from_the_wheel_in_an_empty_folder(environment, tmp_path):
    wheel = build_release(tmp_path / "release").wheel
    programs = installed_apart(environment.program, wheel, tmp_path / "environment")
    variables = own_environment(programs, environment.program)
    project = tmp_path / "project"
    runbook = str(programs / "runbook")
    subprocess.run([runbook, "init", str(project)], cwd=tmp_path, env=variables, check=True)
    words = [word for change in SMALL for word in ("--set", change)]
    command = [runbook, "run", "local", "--as", "small", *words]
    subprocess.run(command, cwd=project, env=variables, check=True)
    records = sorted((project / "runs" / "local--small" / "records").glob("*.json"))
    contents = {path.stem: json.loads(path.read_text()) for path in records}
    states = {phase: record["state"] for phase, record in contents.items()}
    assert states == dict.fromkeys(PHASES, "done")
    python = contents["04-training"]["versions"]["python"]
    assert python.startswith(version_text(environment.version))
