"""A user file in PYTHONPATH that is named like a standard library module."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runbook.cli.messages import CliMessage
from runbook.cli.replaced_modules import which_file


def test_a_file_that_replaces_a_module_of_python_is_named(tmp_path):
    file = tmp_path / "random.py"
    file.write_text("numbers = [1, 2]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "runbook", "preflight", "local"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    remedy = CliMessage.MODULE_REPLACED.fill(path=file, module="random")
    assert (ended.returncode, ended.stderr.strip()) == (1, f"Error: {remedy}")


@pytest.mark.parametrize(
    ("module", "path"), [("random", os.__file__), ("torch", "/u/me/torch.py"), ("random", None)]
)
def test_another_failed_import_is_not_explained_by_such_a_file(module, path):
    error = ImportError("cannot import name", name=module, path=path)
    with pytest.raises(ImportError):
        which_file(error)
