"""The time limit of an import in the preflight's last stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SLOW_MODULE = "import time\ntime.sleep(60)\n"
PROGRAM = """
import sys
from runbook.training import probe
probe.IMPORT_SECONDS = 1
probe.GIVE_UP_SECONDS = 0
sys.argv = ["probe", "--out", sys.argv[1], "--device", "cpu", "--layout", "1x1x1"]
probe.main()
"""


def test_a_slow_import_of_megatron_ends_by_its_own_name(tmp_path):
    package = tmp_path / "modules" / "megatron" / "core"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "parallel_state.py").write_text(SLOW_MODULE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parents[1]),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    facts = json.loads((tmp_path / "probe-0.json").read_text())
    assert facts["current"]["step"] == "importing megatron-core"
    assert facts["current"]["hung"]
