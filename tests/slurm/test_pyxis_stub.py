"""The stand-in for pyxis refuses and passes on the same things as pyxis 0.24 with enroot 4.1.2 did
on two nodes (2026-11-22).
"""

from __future__ import annotations

import subprocess

import pytest
from two_nodes import Cluster

pytestmark = pytest.mark.slurm

IMAGE = "--container-image=registry.example.org#nothing:1"


@pytest.fixture
def step(cluster: Cluster):
    """Return a function that runs a step with one task, and returns its exit code, its output and
    the messages from srun.
    """

    def run(*options: str, program: str = "true", **environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["srun", "-N1", "-n1", *options, "bash", "-c", program],
            env=cluster.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--container-mounts=/tmp:/tmp,/nowhere:/nowhere"], "there is no /nowhere on this node"),
        (["--container-workdir=/nowhere"], "there is no /nowhere"),
        (["--container-mount-home", "--no-container-mount-home"], "contradict each other"),
        (["--container-env=A,,B"], "an empty element"),
        (["--container-mounts=/tmp:/tmp,"], "an empty element"),
    ],
)
def test_what_pyxis_refuses_is_refused(step, options, why):
    code, _, err = step(IMAGE, *options)
    assert code != 0 and why in err


def test_an_image_file_that_is_not_there_is_refused(step):
    code, _, err = step("--container-image=/nowhere.sqsh")
    refusal = "there is no /nowhere.sqsh on this node"
    assert code != 0 and refusal in err


def test_the_image_wins_over_the_job_but_for_what_the_job_names(step):
    names = ("MASTER_ADDR", "CUDA_DEVICE_MAX_CONNECTIONS", "LANG", "LC_ALL", "RANK", "OWN")
    show = " ".join(f'"${{{name}-none}}"' for name in names)
    show = f"printf '%s\\n' {show}"
    job = {
        "MASTER_ADDR": "node1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "LANG": "de",
        "LC_ALL": "de",
        "RANK": "7",
    }
    _, said, _ = step(IMAGE, program=show, OWN="mine", **job)
    assert said.splitlines() == ["image", "32", "C.UTF-8", "none", "0", "mine"]
    _, said, _ = step(IMAGE, "--container-env=MASTER_ADDR,LC_ALL", program=show, OWN="mine", **job)
    assert said.splitlines() == ["node1", "32", "C.UTF-8", "de", "0", "mine"]
    _, said, _ = step(program=show, OWN="mine", **job)
    lines = said.splitlines()
    assert lines == ["node1", "1", "de", "de", "7", "mine"], (
        "a step without a container is left alone"
    )


def test_a_step_ends_only_when_the_container_is_removed(step, cluster: Cluster):
    _, said, _ = step(IMAGE, program="date +%s.%N")
    ended = float(cluster.ask("date", "+%s.%N"))
    assert ended - float(said) > 0.9
