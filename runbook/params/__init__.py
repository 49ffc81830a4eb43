"""What a person chose for a run: read, checked, and kept with its origin."""

from runbook.params.layers import Origin
from runbook.params.parameters_cell import PARAMETERS, bind
from runbook.params.project import project_root, run_names, site_names, variant_names
from runbook.params.run_loader import check, load
from runbook.params.schema.keys import all_keys
from runbook.params.schema.run_file import Job
from runbook.params.secrets import is_reference, resolve_secret
from runbook.params.settings import Settings, why

__all__ = [
    "PARAMETERS",
    "Job",
    "Origin",
    "Settings",
    "all_keys",
    "bind",
    "check",
    "is_reference",
    "load",
    "project_root",
    "resolve_secret",
    "run_names",
    "site_names",
    "variant_names",
    "why",
]
