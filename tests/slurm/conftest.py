"""The fixtures of conftest_slurm, which `make sites` uses too."""

from conftest_slurm import cluster, project

__all__ = ["cluster", "project"]
