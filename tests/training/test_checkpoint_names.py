"""Which folders are complete checkpoints, judging only by their names."""

import pytest

from runbook.plan_file.checkpoint_folder import (
    checkpoint_folders,
    iteration_of,
    newest_checkpoint,
    saved_iterations,
    unfinished_folders,
)


@pytest.mark.parametrize(
    "name",
    ["iter_0000050.part", "iter_0000050.old.part", "iter_50", "iter_٠٠٠٠٠٥٠", "iter_-000050", "x"],
)
def test_any_other_name_is_no_checkpoint(name, tmp_path):
    (tmp_path / name).mkdir()
    assert iteration_of(name) is None
    assert checkpoint_folders(tmp_path) == []
    assert newest_checkpoint(tmp_path) is None


def test_the_newest_is_that_of_the_highest_iteration_and_whole(tmp_path):
    for name in ("iter_9999999", "iter_10000000", "iter_0000100", "iter_10000100.part"):
        (tmp_path / name).mkdir()
    (tmp_path / "iter_0000200").write_text("a file")
    assert saved_iterations(tmp_path) == [10_000_000, 9_999_999, 100]
    assert newest_checkpoint(tmp_path) == tmp_path / "iter_10000000"
    assert unfinished_folders(tmp_path) == [tmp_path / "iter_10000100.part"]


def test_a_folder_that_is_not_there_has_no_checkpoint(tmp_path):
    assert newest_checkpoint(tmp_path / "none") is None
