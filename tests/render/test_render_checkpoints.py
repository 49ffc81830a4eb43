"""Jobs of the documents' programs refuse to begin from random weights where a checkpoint lost its tracker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


def guard_of(site: str) -> str:
    """The lines of a rendered job that look at its checkpoints."""
    script = (GOLDEN / site / "04-training" / "job.sh").read_text()
    _, mark, rest = script.partition("\ncheckpoints=")
    folder, _, loop = rest.partition("\n")
    return loop.partition("\ndone\n")[0] + "\ndone\n" if mark and folder else ""


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ([], False),
        (["latest", "global_step10/x"], False),
        (["global_step10/x"], True),
        (["iter_0000010/x"], True),
    ],
)
def test_a_checkpoint_without_its_tracker_is_refused(tmp_path, files, refused):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    head = 'set -euo pipefail; refuse() { echo "$1"; exit 2; }\n'
    script = f"{head}checkpoints='{tmp_path}'\n{guard_of('lumi')}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert ended.returncode == (2 if refused else 0), ended.stderr
    assert ("start from random weights" in ended.stdout) == refused
