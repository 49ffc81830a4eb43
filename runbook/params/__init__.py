"""What a person chose for a run: read, checked, and kept with its origin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runbook.params.explain import Explanation, why
    from runbook.params.keys import Key, all_keys, sections
    from runbook.params.layers import Origin
    from runbook.params.loading import check, load
    from runbook.params.notebook import PARAMETERS, bind
    from runbook.params.project import find_run_file, project_root, run_names, site_names, variant_names
    from runbook.params.schema import JOB_SECTIONS, PHASES, Job, Run, phase_name
    from runbook.params.secrets import is_reference, mask, resolve_secret
    from runbook.params.settings import Settings
    from runbook.params.words import split_words

_HOMES = {
    "explain": ("Explanation", "why"),
    "keys": ("Key", "all_keys", "sections"),
    "layers": ("Origin",),
    "loading": ("check", "load"),
    "notebook": ("PARAMETERS", "bind"),
    "project": ("find_run_file", "project_root", "run_names", "site_names", "variant_names"),
    "schema": ("JOB_SECTIONS", "PHASES", "Job", "Run", "phase_name"),
    "secrets": ("is_reference", "mask", "resolve_secret"),
    "settings": ("Settings",),
    "words": ("split_words",),
}

__all__ = [
    "JOB_SECTIONS",
    "PARAMETERS",
    "PHASES",
    "Explanation",
    "Job",
    "Key",
    "Origin",
    "Run",
    "Settings",
    "all_keys",
    "bind",
    "check",
    "find_run_file",
    "is_reference",
    "load",
    "mask",
    "phase_name",
    "project_root",
    "resolve_secret",
    "run_names",
    "sections",
    "site_names",
    "split_words",
    "variant_names",
    "why",
]


def __getattr__(name: str) -> Any:
    """Fetch a public name when it is first used: pydantic takes a tenth of a second that --help does not have."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
