"""What a person chose for a run: read, checked, and kept with its origin."""

from runbook.params.layers import Origin
from runbook.params.loading import load
from runbook.params.project import find_run_file, project_root, run_names, site_names
from runbook.params.schema import JOB_SECTIONS, PHASES, Job, Run, phase_name
from runbook.params.secrets import is_reference, mask, resolve_secret
from runbook.params.settings import Settings

__all__ = [
    "JOB_SECTIONS",
    "PHASES",
    "Job",
    "Origin",
    "Run",
    "Settings",
    "find_run_file",
    "is_reference",
    "load",
    "mask",
    "phase_name",
    "project_root",
    "resolve_secret",
    "run_names",
    "site_names",
]
