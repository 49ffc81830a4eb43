"""The next run removes files that a killed writer has left behind, but not files that are being
written.
"""

from __future__ import annotations

import os
import subprocess
import sys

from runbook.phases.runner import remove_leftovers

KILLED_WHILE_WRITING = """
import os, sys
from pathlib import Path
from runbook.core import files
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
files.write_text(Path(sys.argv[1]), "half")
"""


def test_what_a_killed_process_left_is_removed_and_told(tmp_path):
    record = tmp_path / "records" / "04-training.json"
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(record)])
    assert done.returncode == -9
    (left,) = record.parent.iterdir()
    assert left.name.endswith(".part")
    assert remove_leftovers(tmp_path) == [f"records/{left.name}"]
    assert list(record.parent.iterdir()) == []


def test_what_is_being_written_and_what_others_clean_stays(tmp_path):
    kept = [
        f".run.yaml.{os.getpid()}.part",
        "lock.json.0123456789ab.part",
        "jobs/04-training/started.part",
        "checkpoints/iter_0000004.part/a.12345678.part",
        "plan.json",
    ]
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    left = f"jobs/04-training/.job.sh.{ended.stdout.strip()}.part"
    for name in [*kept, left]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert remove_leftovers(tmp_path) == [left]
    assert all((tmp_path / name).exists() for name in kept)
