"""Checkpoint folders, without torch. test_faults.py tests what ranks do with them."""

import hashlib
import json
import shutil
import threading

import pytest

from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import Checkpoint
from runbook.training.checkpoints import folders
from runbook.training.messages import TrainingMessage

SHAPE = {"layers": 4, "hidden": 64}


def write(root, iteration, keep=2, keep_every=0, *, in_background=False):
    part = folders.begin_checkpoint(root, iteration)
    (part / folders.SHARDS / "__0_0.distcp").write_bytes(b"weights %d" % iteration)
    name = f"{folders.SHARDS}/__0_0.distcp"
    sums = {name: folders.sha256(part / name)}
    return folders.seal_checkpoint(
        part,
        {"iteration": iteration, "model": SHAPE},
        sums,
        Checkpoint("checkpoints", interval=10, keep=keep, keep_every=keep_every),
        in_background=in_background,
    )


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_a_written_checkpoint_is_found_whole(tmp_path):
    folder = write(tmp_path, 50)
    (found,), problems = folders.candidates(tmp_path)
    assert (found.folder, found.iteration, problems) == (folder, 50, [])
    assert folders.checksum_fault(found, sorted(found.metadata["files"])) == ""
    assert found.metadata["files"] == {
        "torch_dist/__0_0.distcp": hashlib.sha256(b"weights 50").hexdigest()
    }
    assert folders.tracked_iteration(tmp_path) == 50


def test_the_newest_are_kept_and_found_newest_first(tmp_path):
    for iteration in (999_999, 9_999_999, 10_000_000):
        write(tmp_path, iteration)
    assert [found.iteration for found in folders.candidates(tmp_path)[0]] == [10_000_000, 9_999_999]
    assert names(tmp_path) == ["iter_10000000", "iter_9999999", folders.TRACKER]


def test_old_checkpoints_are_deleted_while_the_training_goes_on(tmp_path, monkeypatch):
    may_delete = threading.Event()
    delete = shutil.rmtree

    def delete_later(folder, **options):
        assert may_delete.wait(60)
        delete(folder, **options)

    write(tmp_path, 10)
    monkeypatch.setattr(folders.shutil, "rmtree", delete_later)
    write(tmp_path, 20, keep=1, in_background=True)
    assert names(tmp_path) == ["iter_0000010.old.part", "iter_0000020", folders.TRACKER]
    may_delete.set()
    folders.begin_checkpoint(tmp_path, 30)  # may use the space of the deleted one
    assert names(tmp_path) == ["iter_0000020", "iter_0000030.part", folders.TRACKER]


def test_a_deletion_that_failed_stops_the_next_save(tmp_path, monkeypatch):
    def refuse(folder, **options):
        raise PermissionError(13, "Permission denied", str(folder))

    write(tmp_path, 10)
    monkeypatch.setattr(folders.shutil, "rmtree", refuse)
    write(tmp_path, 20, keep=1, in_background=True)
    with pytest.raises(PermissionError):
        folders.begin_checkpoint(tmp_path, 30)


def test_every_nth_is_kept_for_ever(tmp_path):
    for iteration in range(10, 80, 10):
        write(tmp_path, iteration, keep=2, keep_every=30)
    assert [found.iteration for found in folders.candidates(tmp_path)[0]] == [70, 60, 30]


def test_a_checkpoint_can_be_written_again_over_a_broken_one(tmp_path):
    folder = write(tmp_path, 50)
    (folder / "torch_dist" / "__0_0.distcp").write_bytes(b"")
    write(tmp_path, 50)
    (found,), _ = folders.candidates(tmp_path)
    assert folders.checksum_fault(found, list(found.metadata["files"])) == ""


def test_what_a_killed_save_left_is_removed_and_named(tmp_path):
    write(tmp_path, 50)
    folders.begin_checkpoint(tmp_path, 100)
    (tmp_path / "iter_0000010.old.part").mkdir()
    (tmp_path / f"{folders.TRACKER}.part").write_text("10")
    assert folders.remove_leftovers(tmp_path) == [
        "iter_0000010.old.part",
        "iter_0000100.part",
        f"{folders.TRACKER}.part",
    ]
    assert names(tmp_path) == ["iter_0000050", folders.TRACKER]
    assert folders.remove_leftovers(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("text", "means"), [("50\n", 50), ("", None), ("release", None), ("-3", None), ("9" * 12, None)]
)
def test_a_tracker_is_believed_only_where_it_is_a_number(text, means, tmp_path):
    (tmp_path / folders.TRACKER).write_text(text)
    assert folders.tracked_iteration(tmp_path) == means


def test_a_tracker_of_other_bytes_is_not_believed(tmp_path):
    (tmp_path / folders.TRACKER).write_bytes(b"\xff\x00")
    assert folders.tracked_iteration(tmp_path) is None
    assert folders.tracked_iteration(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"iteration": "x"}', None])
def test_metadata_that_cannot_be_used_is_told_of(text, tmp_path):
    write(tmp_path, 50)
    path = write(tmp_path, 100) / folders.METADATA
    path.unlink()
    if text is not None:
        path.write_text(text)
    found, problems = folders.candidates(tmp_path)
    assert [one.iteration for one in found] == [50]
    assert len(problems) == 1 and problems[0].startswith(f"{path} cannot be used: ")


def test_any_change_of_the_metadata_breaks_its_seal(tmp_path):
    path = write(tmp_path, 50) / folders.METADATA
    content = json.loads(path.read_text())
    content["model"]["hidden"] = 65
    path.write_text(json.dumps(content))
    found, problems = folders.candidates(tmp_path)
    broken = TrainingMessage.SEAL_BROKEN.fill()
    assert found == []
    assert problems == [TrainingMessage.METADATA_UNUSABLE.fill(path=path, error=broken)]


def test_a_difference_of_shape_has_both_numbers():
    assert folders.differences(SHAPE, SHAPE) == ""
    assert folders.differences({"layers": 4}, SHAPE) == PlanFileMessage.VALUE_DIFFERS.fill(
        key="hidden", value=None, whose="plan", planned=64
    )


def test_a_folder_without_checkpoints_has_no_trace(tmp_path):
    assert not folders.has_checkpoints(tmp_path)
    (tmp_path / "iter_0000050.part").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert not folders.has_checkpoints(tmp_path)
    write(tmp_path, 50)
    assert folders.has_checkpoints(tmp_path)
