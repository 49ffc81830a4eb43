"""Faults of checkpoints and ranks end with a complete checkpoint, a clear message, and the right
exit code.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from suite.messages import containing, count_of, says
from suite.ports import free_port

from runbook.plan_file.messages import PlanFileMessage
from runbook.training.checkpoints import folders
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training


def content(**options):
    return specs.spec(**{"copies": 2, "checkpoint": {"interval": 2, "keep": 3}, **options})


@pytest.fixture(scope="module")
def whole(zygote, corpus, tmp_path_factory):
    """Train a run to its end, with checkpoints 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, content())
    assert job.code == 0, job.err
    return job


@pytest.fixture
def stopped(whole, tmp_path):
    """Return a copy of the run folder as if the run had been lost after iteration 4."""
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder, symlinks=True)
    shutil.rmtree(folder / "checkpoints" / "iter_0000006")
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4\n")
    (folder / "metrics.jsonl").unlink()
    return folder


def losses(metrics):
    return [(line["iteration"], line["loss"]) for line in metrics]


def shard(folder, iteration=4):
    files = sorted(
        (folder / "checkpoints" / f"iter_{iteration:07d}" / "torch_dist").glob("__*.distcp")
    )
    return max(files, key=lambda path: path.stat().st_size)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (truncate, TrainingMessage.FILE_CHANGED),
        (flip, TrainingMessage.FILE_CHANGED),
        (Path.unlink, TrainingMessage.FILE_MISSING),
    ],
    ids=["truncated", "one bit flipped", "deleted"],
)
def test_a_broken_shard_is_named_and_the_checkpoint_before_it_is_used(
    damage, fault, zygote, stopped, whole
):
    path = shard(stopped)
    values = {"path": path}
    if fault is TrainingMessage.FILE_CHANGED:
        values["expected"] = folders.sha256(path)[:16]
    damage(path)
    if fault is TrainingMessage.FILE_CHANGED:
        values["actual"] = folders.sha256(path)[:16]
        values["size"] = path.stat().st_size
    job = zygote.train(stopped, content())
    assert job.code == 0, job.err
    problem = fault.fill(**values)
    assert says(job.out, TrainingMessage.CHECKPOINT_PASSED_OVER, problem=problem)
    assert job.events("checkpoint_broken")[0]["message"] == problem
    assert job.events("resumed")[-1]["iteration"] == 2
    assert losses(job.metrics) == losses(whole.metrics)[2:]


def test_changed_metadata_is_not_believed(zygote, stopped):
    path = stopped / "checkpoints" / "iter_0000004" / "metadata.json"
    path.write_text(path.read_text().replace('"consumed_samples": 32', '"consumed_samples": 33'))
    job = zygote.train(stopped, content())
    assert job.code == 0
    problem = TrainingMessage.METADATA_UNUSABLE.fill(
        path=path, error=TrainingMessage.SEAL_BROKEN.fill()
    )
    assert says(job.out, TrainingMessage.CHECKPOINT_PASSED_OVER, problem=problem)
    assert job.events("resumed")[-1]["iteration"] == 2


@pytest.mark.parametrize("text", ["", "garbage\n", "release", "999\n", None])
def test_a_tracker_that_says_nothing_useful_is_written_anew(text, zygote, stopped, whole):
    tracker = stopped / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.unlink()
    if text is not None:
        tracker.write_text(text)
    job = zygote.train(stopped, content())
    assert job.code == 0, job.err
    assert losses(job.metrics) == losses(whole.metrics)[4:]
    assert tracker.read_text() == "6\n"


def test_no_whole_checkpoint_left_is_never_a_silent_new_start(zygote, stopped):
    for iteration in (2, 4):
        flip(shard(stopped, iteration))
    before = sorted(stopped.rglob("*"))
    job = zygote.train(stopped, content())
    assert job.code == 2
    assert says(job.err, TrainingMessage.NO_WHOLE_CHECKPOINT, root=stopped / "checkpoints")
    for iteration in (2, 4):
        assert count_of(job.err, TrainingMessage.FILE_CHANGED, path=shard(stopped, iteration)) == 1
    assert not (stopped / "metrics.jsonl").exists()
    assert [path for path in before if not path.exists()] == []


def test_a_tracker_without_any_checkpoint_is_refused_too(zygote, run):
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("50\n")
    job = zygote.train(run, content())
    assert job.code == 2
    tracker = run / "checkpoints" / "latest_checkpointed_iteration.txt"
    problem = TrainingMessage.TRACKER_NAMES_NOTHING.fill(tracker=tracker)
    assert says(job.err, TrainingMessage.NO_WHOLE_CHECKPOINT, problems=problem)


def test_a_checkpoint_of_another_model_is_refused_with_both_shapes(zygote, stopped):
    job = zygote.train(stopped, content(model={"hidden": 32, "layers": 2}))
    assert job.code == 2
    differences = [
        PlanFileMessage.VALUE_DIFFERS.fill(key=key, value=value, whose="plan", planned=planned)
        for key, value, planned in (("hidden", 64, 32), ("layers", 4, 2))
    ]
    assert says(
        job.err,
        TrainingMessage.CHECKPOINT_OF_ANOTHER_MODEL,
        folder=containing("iter_0000004"),
        difference=containing(", ".join(differences)),
    )
    assert job.events()[-1]["event"] == "failed"


BOUNDARIES = (
    "after_begin",
    "between_shards",
    "before_metadata",
    "before_rename",
    "before_tracker",
    "before_pruning",
)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.rotate(3)
def test_a_kill_at_any_moment_of_a_save_loses_nothing(boundary, zygote, run, whole):
    killed = zygote.train(
        run, content(checkpoint={"interval": 2, "keep": 1}), patch=f"training.killing:{boundary}"
    )
    assert -signal.SIGKILL in killed.codes and 0 not in killed.codes, killed.codes
    again = zygote.train(run, content(checkpoint={"interval": 2, "keep": 1}))
    assert again.code == 0, again.err
    resumed = again.events("resumed")[-1]["iteration"]
    assert resumed == (4 if boundary in ("before_tracker", "before_pruning") else 2)
    last = {line["iteration"]: line["loss"] for line in again.metrics}
    assert list(last.items()) == losses(whole.metrics)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "iter_0000006",
        "latest_checkpointed_iteration.txt",
    ]


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before_it(zygote, stopped, whole):
    job = zygote.train(stopped, content(), patch="training.killing:no_room")
    assert job.code == 1
    checkpoint = stopped / "checkpoints" / "iter_0000006"
    message = TrainingMessage.CHECKPOINT_NOT_WRITTEN
    assert count_of(job.err, message, checkpoint=checkpoint) == 1
    assert count_of(job.err, message) == 1
    assert sorted(path.name for path in (stopped / "checkpoints").glob("iter*")) == [
        "iter_0000002",
        "iter_0000004",
    ]
    shutil.copyfile(whole.folder / "events.jsonl", stopped / "events.jsonl")
    again = zygote.train(stopped, content())
    assert again.code == 0
    assert again.events("resumed")[-1]["iteration"] == 4


def test_a_disk_without_room_is_seen_before_anything_is_written(zygote, stopped):
    job = zygote.train(stopped, content(), patch="training.killing:no_space")
    assert job.code == 1
    assert says(
        job.err,
        TrainingMessage.CHECKPOINT_NOT_WRITTEN,
        error=TrainingMessage.DISK_FULL.fill(free=1000),
    )


def test_files_that_cannot_be_written_do_not_end_the_training(zygote, run):
    (run / "metrics.jsonl").mkdir()
    job = zygote.train(run, content())
    assert job.code == 0
    metrics = run / "metrics.jsonl"
    assert count_of(job.out, TrainingMessage.FILE_NOT_WRITABLE, path=metrics) == 1


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(zygote, run):
    job = zygote.train(run, content(peak=1e30, warmup=0, checkpoint={"interval": 1}))
    assert job.code == 1
    last_metrics = job.metrics[-1]
    first_sample = last_metrics["consumed_samples"]
    values = {
        "bad": "nan",
        "iteration": last_metrics["iteration"] + 1,
        "first_sample": first_sample,
        "last_sample": first_sample + last_metrics["global_batch"] - 1,
    }
    assert count_of(job.err, TrainingMessage.BAD_VALUE, **values) == 1
    assert count_of(job.err, TrainingMessage.BAD_VALUE, bad="nan") == 1
    last = int((run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    assert (
        all(math.isfinite(line["loss"]) for line in job.metrics)
        and job.metrics[-1]["iteration"] == last
    )
    assert job.events("failed")[0]["message"].startswith("TrainingError: the ")


LONG_LIMIT_SECONDS = 600
"""A limit on the wait for other ranks that no test reaches, however slow the machine is."""


def test_the_other_ranks_end_within_seconds_when_one_is_killed(zygote, run):
    limits = {"process_group_timeout_seconds": LONG_LIMIT_SECONDS}
    job = zygote.start(run, content(iterations=100_000, limits=limits))
    job.until(lambda: job.has_line(3))
    os.kill(job.pids[1], signal.SIGKILL)
    begun = time.monotonic()
    job.wait()
    assert time.monotonic() - begun < LONG_LIMIT_SECONDS
    assert job.codes == [1, -signal.SIGKILL]
    assert says(job.err, TrainingMessage.RANK_GONE)
    assert not says(job.out, TrainingMessage.RANK_GONE) and job.events("failed")


def test_a_rank_that_hangs_is_not_waited_for_longer_than_the_limit(zygote, run):
    job = zygote.start(
        run, content(iterations=100_000, limits={"process_group_timeout_seconds": 15})
    )
    job.until(lambda: job.has_line(3))
    os.kill(job.pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    job.codes = [job.ranks[0].wait()]
    assert time.monotonic() - begun > 2  # the stopped rank's connection stays open
    os.kill(job.pids[1], signal.SIGKILL)
    job.codes.append(job.ranks[1].wait())
    assert job.codes == [1, -signal.SIGKILL]
    assert says(job.err, TrainingMessage.RANK_GONE)


LAUNCHER = """
import os, subprocess, sys
for rank in range(2):
    environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    process = subprocess.Popen([sys.executable, "-m", "runbook.training", sys.argv[1]], env=environment)
    print(process.pid, flush=True)
process.wait()
"""


def test_no_rank_outlives_its_launcher(run):
    plan = specs.write_plan(run, content(iterations=100_000))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, plan],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(launcher.stdout.readline()) for _ in range(2)]
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid):
    try:
        return (
            json.dumps(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != '"Z"'
        )
    except (FileNotFoundError, ProcessLookupError):
        return False
