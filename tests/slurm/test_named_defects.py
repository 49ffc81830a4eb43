"""Real defects on the tests' Slurm cluster that preflight reports. `benchmarks.preflight_defects`
creates all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_node import BrokenNode
from defects import DEFECTS, Defect
from healthy import HEALTHY
from two_nodes import Cluster, Project

from benchmarks.preflight_defects import place_of, try_defect
from runbook.phases.p01_environment.preflight.node_differences import DIFFERENCE

pytestmark = pytest.mark.slurm
QUICK = (
    ("pids", "noexec"),
    ("nofile", "quota"),
    ("localhost", "hung-server"),
    ("disk-quota", "wrong-name"),
    ("loss", "shm-full"),
    ("dead-mount", "drained"),
    ("edited-checkout", "other-python"),
    ("taken-memory", "no-map"),
    ("prolog", "slow-folder"),
    ("loopback-down", "empty-extension"),
    ("device-file", "home-read-only"),
    ("small-buffers", "old-lock"),
    ("slow-names", "own-module"),
    ("absent-scratch", "array-size"),
    ("busy-program", "node-setup"),
    ("debug-variable", "wait-time"),
    ("left-trainer", "coming-maintenance"),
    ("older-slurm-conf", "bridge"),
    ("full-home", "cut-library"),
    ("few-connections", "isolated"),
    ("fixed-neighbour", "few-nodes"),
    ("full-home-everywhere", "old-reservation"),
    ("run-without-inodes", "endless-epilog"),
)
"""Pairs that take a few seconds each. Their stages come before the ranks start."""


@pytest.fixture(scope="module")
def broken_node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> BrokenNode:
    """Return the second node of the cluster, which tests may break."""
    return BrokenNode(cluster, tmp_path_factory.mktemp("defects"))


@pytest.mark.rotate(10)
@pytest.mark.parametrize("names", QUICK, ids="-".join)
def test_a_defect_is_named_with_its_cause_and_node(
    names: tuple[str, ...], project: Project, broken_node: BrokenNode
) -> None:
    place = place_of(project, broken_node.folder)
    for name in names:
        outcome = try_defect(project, broken_node, defect_of(name), place)
        assert outcome.is_right, outcome


@pytest.mark.training
@pytest.mark.rotate(7)
@pytest.mark.parametrize("settings", HEALTHY, ids=lambda settings: settings.name)
def test_a_sound_cluster_with_other_settings_has_no_defect(
    settings: Defect, project: Project, broken_node: BrokenNode
) -> None:
    outcome = try_defect(project, broken_node, settings, place_of(project, broken_node.folder))
    assert outcome.is_right, outcome
    # The other settings make one node differ from the other, which is a warning.
    if settings.name == "plain":
        assert not [name for name in outcome.warnings if name.startswith(DIFFERENCE)], outcome


def test_each_defect_has_a_name_of_its_own_and_a_check() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) > 50
    assert all(defect.checks for defect in DEFECTS)
    assert {name for pair in QUICK for name in pair} <= set(names)
    assert Path(__file__).with_name("node_shim.c").exists()


def defect_of(name: str) -> Defect:
    """Return a row from the table."""
    return next(defect for defect in DEFECTS if defect.name == name)
