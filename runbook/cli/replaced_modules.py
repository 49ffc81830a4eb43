"""Finds user files that Python imports in place of a standard library module."""

import sys
import sysconfig
from pathlib import Path

from runbook.cli.messages import CliMessage


def which_file(error: ImportError) -> str:
    """Return the remedy if a file in PYTHONPATH replaces a standard library module.

    Otherwise raise `error` again.
    """
    module = (error.name or "").partition(".")[0]
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    if module not in sys.stdlib_module_names or not error.path:
        raise error
    path = Path(error.path).resolve()
    if path.is_relative_to(library):
        raise error
    return CliMessage.MODULE_REPLACED.fill(path=path, module=module)
