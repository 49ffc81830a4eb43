"""The folder of copies on a node belongs to one user and one training run, and its path has no
unset variables.
"""

import os
import time

from suite.messages import refuses

from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import read_plan
from runbook.training.messages import TrainingMessage
from runbook.training.near import removal
from runbook.training.near.places import STALE_SECONDS, open_place, training_name

from . import specs


def test_only_whole_files_of_this_training_are_listed(tmp_path):
    place = open_place(str(tmp_path), "run-1")
    place.path(8, 1).touch()
    place.part("own.rank_00001").touch()
    assert [(iteration, rank) for _, iteration, rank in place.files()] == [(8, 1)]
    assert place.folder.parent.stat().st_mode & 0o777 == 0o700


def test_ranks_of_one_folder_are_on_one_node(tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_NAME", "n1")
    first = open_place(f"{tmp_path}/$NODE_NAME", "run-1")
    assert open_place(f"{tmp_path}/n1", "run-1").node == first.node
    assert open_place(f"{tmp_path}/n2", "run-1").node != first.node


def test_copies_that_were_given_up_are_removed_by_the_next_training(tmp_path):
    old = open_place(str(tmp_path), "given-up")
    new = open_place(str(tmp_path), "in-use")
    for place in (old, new):
        place.path(8, 0).touch()
    long_ago = time.time() - 2 * STALE_SECONDS
    for path in (old.path(8, 0), old.folder):
        os.utime(path, (long_ago, long_ago))
    open_place(str(tmp_path), "another")
    assert new.path(8, 0).exists() and not old.folder.exists()


def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"runbook-near-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with refuses(TrainingError, TrainingMessage.FOLDER_OF_SOMEBODY_ELSE):
        open_place(str(tmp_path), "run-1")
    with refuses(TrainingError, TrainingMessage.VARIABLE_NOT_SET):
        open_place("/dev/shm/$NOT_SET_ANYWHERE", "run-1")


def test_a_training_that_stops_for_a_person_leaves_nothing_in_node_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_MEMORY", str(tmp_path / "memory"))
    plan = specs.spec(checkpoint={"near_interval": 2, "near_folder": "$NODE_MEMORY/a"})
    run = tmp_path / "run"
    run.mkdir()
    file = specs.write_plan(run, plan)
    spec = read_plan(file, plan["phase"])
    place = open_place(spec.checkpoint.near_folder, training_name(spec))
    other = open_place(spec.checkpoint.near_folder, "other-training")
    for folder in (place, other):
        folder.path(4, 0).write_text("state")
    assert removal.main([str(file), "--phase", plan["phase"]]) == 0
    assert not place.folder.exists() and other.path(4, 0).exists()


def test_a_removal_that_leaves_copies_fails(tmp_path, monkeypatch):
    plan = specs.write_plan(tmp_path, specs.spec(checkpoint={"near_folder": str(tmp_path)}))
    place = open_place(str(tmp_path), training_name(read_plan(plan, "04-training")))
    place.path(8, 0).touch()
    argv = [str(plan), "--phase", "04-training"]
    monkeypatch.setattr(removal.shutil, "rmtree", lambda folder, ignore_errors: None)
    assert removal.main(argv) == 1
    monkeypatch.undo()
    assert removal.main(argv) == 0
    assert not place.folder.exists()
    assert removal.main(argv) == 0, "nothing is left"
