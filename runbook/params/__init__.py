"""Reads and checks run files and site files, and records where each value comes from."""

from runbook.params.parameters_cell import PARAMETERS as PARAMETERS
from runbook.params.parameters_cell import bind as bind
from runbook.params.project import project_root as project_root
from runbook.params.project import run_names as run_names
from runbook.params.project import site_names as site_names
from runbook.params.project import variant_names as variant_names
from runbook.params.run_loader import load as load
from runbook.params.schema.keys import all_keys as all_keys
from runbook.params.schema.run_file import Job as Job
from runbook.params.secrets import is_reference as is_reference
from runbook.params.secrets import resolve_secret as resolve_secret
from runbook.params.settings import Settings as Settings
from runbook.params.settings import key_meant as key_meant
from runbook.params.settings import origin_facts as origin_facts
from runbook.params.settings import why as why
