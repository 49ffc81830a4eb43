"""The time limit for imports in the last preflight stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from suite.ports import free_port

from runbook.training.probe import IMPORT_STEP

SLOW_MODULE = "import time\ntime.sleep(60)\n"
PROGRAM = """
import sys
from runbook.training import probe
probe.IMPORT_SECONDS = 1
probe.GIVE_UP_SECONDS = 0
sys.argv = ["probe", "--out", sys.argv[1], "--device", "cpu", "--layout", "1x1x1"]
probe.main()
"""


FAILING_MODULE = "raise DeprecationWarning('pkg_resources is deprecated')\n"


def probe_with(module: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the single-rank probe with this module in place of megatron-core."""
    package = tmp_path / "modules" / "megatron" / "core"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "parallel_state.py").write_text(module)
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parents[1]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_slow_import_of_megatron_ends_by_its_own_name(tmp_path):
    ended = probe_with(SLOW_MODULE, tmp_path)
    assert ended.returncode == 1, ended.stderr
    facts = json.loads((tmp_path / "probe-0.json").read_text())
    assert facts["current"]["step"] == IMPORT_STEP
    assert facts["current"]["hung"]


def test_an_import_of_megatron_that_fails_is_told_with_its_error_and_not_as_a_hang(tmp_path):
    """PYTHONWARNINGS=error in a user's shell or a broken Transformer Engine makes the import fail."""
    ended = probe_with(FAILING_MODULE, tmp_path)
    assert ended.returncode == 0, ended.stderr
    facts = json.loads((tmp_path / "probe-0.json").read_text())
    error = f"{IMPORT_STEP}: DeprecationWarning: pkg_resources is deprecated"
    assert facts["errors"]["groups"] == error
    assert facts["groups"] is None
