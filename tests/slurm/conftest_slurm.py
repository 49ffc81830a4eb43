"""Provide one Slurm cluster and one project for all tests in this folder.

Without Slurm, the tests are skipped, or fail if Slurm is required.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from two_nodes import Cluster, Project, what_is_missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """Start a Slurm cluster with two idle nodes."""
    if missing := what_is_missing():
        assert not os.environ.get("RUNBOOK_REQUIRE_SLURM"), missing
        pytest.skip(missing)
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.do("start")
        yield made
    finally:
        made.do("stop")


@pytest.fixture(scope="session")
def project(cluster: Cluster, tmp_path_factory) -> Project:
    """Create a project that runs on the cluster."""
    return Project(tmp_path_factory.mktemp("a project"), cluster)
