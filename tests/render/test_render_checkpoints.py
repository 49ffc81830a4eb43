"""Jobs that run the documents' programs refuse to start from random weights if a checkpoint has
lost its tracker.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runbook.jobs.messages import JobLine, JobReason

GOLDEN = Path(__file__).parents[1] / "golden"


def guard_of(site: str) -> str:
    """Return the lines in a rendered job that check its checkpoints."""
    script = (GOLDEN / site / "04-training" / "job.sh").read_text()
    _, mark, rest = script.partition("\ncheckpoints=")
    folder, _, loop = rest.partition("\n")
    last = 'began-without-checkpoints"; fi\n'
    return loop.partition(last)[0] + last if mark and folder else ""


def look_at(run_folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the lines in a job that check the checkpoints in a run folder."""
    head = 'set -euo pipefail; job_number=12; refuse() { echo "$1"; exit 2; }\n'
    script = f"{head}checkpoints='{run_folder}'\n{guard_of('lumi')}"
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=run_folder, check=False
    )


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
    ended = look_at(tmp_path)
    assert ended.returncode == (2 if refused else 0), ended.stderr
    if refused:
        reason = JobReason.CHECKPOINT_WITHOUT_TRACKER.fill(
            checkpoint=(tmp_path / files[-1]).parent, tracker=tmp_path / "latest"
        )
        assert ended.stdout == f"{reason}\n"
    else:
        assert ended.stdout == ""


def test_a_first_save_that_was_cut_off_is_moved_away_and_the_training_begins_again(tmp_path):
    assert look_at(tmp_path).returncode == 0  # the first job, which begins without checkpoints
    (tmp_path / "global_step10").mkdir()
    ended = look_at(tmp_path)
    assert ended.returncode == 0, ended.stdout
    moved = JobLine.FIRST_SAVE_CUT_OFF.fill(
        checkpoint=tmp_path / "global_step10", folder=tmp_path / "cut-off-12"
    )
    assert ended.stderr == f"runbook: {moved}\n"
    assert (tmp_path / "cut-off-12" / "global_step10").is_dir()
    assert look_at(tmp_path).returncode == 0


def test_a_tracker_that_is_lost_after_a_save_is_no_save_that_was_cut_off(tmp_path):
    assert look_at(tmp_path).returncode == 0
    (tmp_path / "global_step10").mkdir()
    log = tmp_path / "jobs" / "04-training-2" / "out"
    log.parent.mkdir(parents=True)
    log.write_text("  successfully saved checkpoint at iteration      10 to checkpoints\n")
    assert look_at(tmp_path).returncode == 2
    assert (tmp_path / "global_step10").is_dir()
