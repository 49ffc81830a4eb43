"""The preflight on a real Slurm cluster of two nodes: healthy nodes pass, and a defect is reported
with its node.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from suite.messages import says
from two_nodes import BIN, Cluster, Project, wait_until

from runbook import params
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.learned_site import learn_site
from runbook.phases.p01_environment.preflight.placed_check import PreflightCheck
from runbook.phases.p01_environment.preflight.run_preflight import PreflightResult

pytestmark = pytest.mark.slurm
PACKAGES = Path(torch.__file__).parents[1]


def climb(project: Project, *words: str, limits: str = "") -> dict[str, object]:
    """Return what `runbook preflight` prints. `limits` are shell commands that run before it."""
    argv = f"{limits} exec '{BIN}/runbook' preflight queued --json --runs '{project.runs}' \"$@\""
    ended = subprocess.run(
        ["bash", "-c", argv, "preflight", *words],
        cwd=project.root,
        env=project.cluster.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.stdout, ended.stderr + project.logs()
    found: dict[str, object] = json.loads(ended.stdout)
    assert ended.returncode == (1 if found["defect"] else 0)
    return found


def broken(found: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return the checks that fail, by name."""
    return {check["name"]: check for check in found["checks"] if check["verdict"] == "fail"}


@pytest.fixture
def on_node2(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Return a function that runs a shell command inside the second node, with its mounts and
    network. Restart the node after the test.
    """

    def do(script: str) -> None:
        starter = (cluster.folder / "run" / "node2.pid").read_text().strip()
        children = Path(f"/proc/{starter}/task/{starter}/children").read_text().split()
        entered = ["nsenter", "-t", children[0], "-m", "-n", "-u", "-p", "--"]
        subprocess.run([*entered, "bash", "-ec", script], check=True)

    yield do
    cluster.do("crash", "node2")
    cluster.do("boot", "node2")
    cluster.wait_idle()


@pytest.mark.training
def test_sound_nodes_pass_every_rung(project: Project, cluster: Cluster):
    found = climb(project)
    assert broken(found) == {} and found["defect"] is None and found["not_asked"] == []
    names = {check["name"] for check in found["checks"]}
    assert names >= {
        PreflightCheck.SHARED_FOLDER,
        PreflightCheck.TORCH_IMPORT,
        PreflightCheck.LINKS,
        PreflightCheck.PROCESS_GROUPS,
    }
    assert set(found["nodes"]) == {"node1", "node2"}
    assert not cluster.ask("squeue", "-h")
    site = params.load(str(project.root / "params" / "queued.yaml"), project=project.root).site
    result = learn_site(site, PreflightResult(nodes=found["nodes"]), "job")
    assert {lesson.name for lesson in result.lessons} >= {
        "hardware.cores_per_node",
        "hardware.network",
    }


def test_defects_of_a_node_are_named_with_it_before_torch_is_imported(
    project: Project, cluster: Cluster, on_node2, tmp_path: Path
):
    """Create five defects at once, because the first stage judges each one separately."""
    (installed,) = PACKAGES.glob("torch-*.dist-info")
    other = re.sub(r"(?m)^Version: .*", "Version: 2.12.0", (installed / "METADATA").read_text())
    (tmp_path / "METADATA").write_text(other)
    own_hosts = (cluster.folder / "hosts").read_text().replace(" node1\n", " nobody\n")
    (tmp_path / "hosts").write_text(own_hosts)
    on_node2(
        f"""
        mount -t tmpfs -o size=16m tmpfs /dev/shm
        mount --bind '{tmp_path}/METADATA' '{installed}/METADATA'
        mount --bind '{tmp_path}/hosts' /etc/hosts
        """
    )
    found = climb(project, limits="ulimit -l 64; ulimit -n 300;")
    checks = broken(found)
    assert found["not_asked"] == ["torch", "peers", "groups"]
    assert checks[PreflightCheck.SHARED_MEMORY]["nodes"] == ["node2"]
    place = PhaseMessage.VERSION_ON_NODES.fill(version="2.12.0", nodes="node2")
    assert place in checks[PreflightCheck.VERSIONS]["value"]
    assert checks[PreflightCheck.NODE_NAMES]["nodes"] == ["node2"]
    assert "64.0 KiB" in checks[PreflightCheck.LOCKED_MEMORY]["value"]
    assert says(
        checks[PreflightCheck.OPEN_FILES]["value"],
        PhaseMessage.TOO_FEW_OPEN_FILES,
        limit=300,
        needed=1024,
    )


def test_a_folder_that_one_node_cannot_write_is_named(project: Project, on_node2):
    (project.runs / "queued").mkdir(parents=True, exist_ok=True)
    run = project.runs / "queued"
    on_node2(f"mount --bind '{run}' '{run}' && mount -o remount,ro,bind '{run}'")
    checks = broken(climb(project))
    assert checks[PreflightCheck.SHARED_FOLDER]["nodes"] == ["node2"]
    assert os.strerror(errno.EROFS) in checks[PreflightCheck.SHARED_FOLDER]["value"]


def test_a_command_of_the_site_that_fails_on_a_node_is_named(project: Project):
    site = project.root / "params" / "sites" / "two-nodes.yaml"
    reason = "no key for the cache"
    command = f"[[ $SLURMD_NODENAME == node1 ]] || {{ echo '{reason}' >&2; exit 3; }}"
    as_before = site.read_text()
    site.write_text(f"{as_before}\nnode_setup:\n  - {json.dumps(command)}\n")
    try:
        checks = broken(climb(project))
    finally:
        site.write_text(as_before)
    assert checks.keys() == {PreflightCheck.NODE_SETUP}
    value = checks[PreflightCheck.NODE_SETUP]["value"]
    # The step exits with 143 if srun ends the task on the other node first.
    assert says(value, PhaseMessage.ENDED_WITH_EXIT_CODE)
    assert re.search(r"\bexit code 3\b", value)
    assert "node2" in value
    assert reason in value


def test_a_time_limit_is_named_without_a_job(project: Project):
    found = climb(
        project, "--set", "jobs.training.partition=short", "--set", "jobs.training.nodes=1"
    )
    limits = PhaseMessage.LIMITS_OF_JOB.fill(section="training")
    assert broken(found).keys() == {limits} and found["job"] == ""


def test_a_preflight_that_is_ended_leaves_neither_lock_nor_job(project: Project, cluster: Cluster):
    process = project.start("preflight", "queued")
    wait_until(lambda: cluster.ask("squeue", "-h") or process.poll() is not None, "its job", 400)
    process.terminate()
    process.communicate(timeout=400)
    assert not (project.runs / "queued" / "lock.json").exists()
    wait_until(lambda: not cluster.ask("squeue", "-h"), "an empty queue", 400)
