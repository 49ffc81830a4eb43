"""Fixtures for the site tests: the Slurm cluster and the project of tests/slurm."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "slurm"))
from conftest_slurm import cluster, project

__all__ = ["cluster", "project"]
