"""A node's report about its memory, based on its control groups and its shared folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.node_checks import control_groups, shared_folder

MIB = 1 << 20
GROUP = "job/step"
OF_VERSION = {
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("", "memory.max", "memory.current", ""),
}


@pytest.fixture
def in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes control groups like the kernel's for a process in `job/step`."""

    def make(version: int, limits: dict[str, tuple[str, int, int]]) -> None:
        controller, limit_name, usage_name, prefix = OF_VERSION[version]
        root = tmp_path / controller
        for group, (limit, usage, cached) in limits.items():
            folder = root / group
            folder.mkdir(parents=True, exist_ok=True)
            (folder / limit_name).write_text(f"{limit}\n")
            (folder / usage_name).write_text(f"{usage}\n")
            stat = f"anon 1\n{prefix}inactive_file {cached}\n{prefix}active_file 0\n"
            (folder / "memory.stat").write_text(stat)

        monkeypatch.setattr(control_groups, "ROOT", tmp_path)
        monkeypatch.setattr(
            control_groups, "_folders", lambda name: _groups(tmp_path, name, controller)
        )

    return make


def _groups(root: Path, name: str, controller: str) -> list[Path]:
    if name != controller:
        return []
    return [root / controller / GROUP, (root / controller / GROUP).parent]


@pytest.mark.parametrize("version", OF_VERSION)
def test_memory_that_other_programs_use_is_not_left_and_cached_files_are(in_groups, version):
    in_groups(version, {GROUP: (str(2048 * MIB), 2000 * MIB, 0), "job": ("max", 0, 0)})
    assert control_groups.memory_left() == 48 * MIB
    in_groups(version, {GROUP: (str(2048 * MIB), 2000 * MIB, 1500 * MIB)})
    assert control_groups.memory_left() == 1548 * MIB


@pytest.mark.parametrize("version", OF_VERSION)
def test_the_tightest_group_counts(in_groups, version):
    limits = {GROUP: (str(2048 * MIB), 0, 0), "job": (str(4096 * MIB), 4000 * MIB, 0)}
    in_groups(version, limits)
    assert control_groups.memory_left() == 96 * MIB


@pytest.mark.parametrize("version", OF_VERSION)
def test_without_a_limit_nothing_is_counted(in_groups, version):
    limit = {1: str(1 << 63), 2: "max"}[version]
    in_groups(version, {GROUP: (limit, 10 * MIB, 0)})
    assert control_groups.memory_left() is None


def test_a_folder_that_can_be_used_has_no_error_and_keeps_no_file_of_the_speed_test(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNBOOK_NODES", "n1")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    (tmp_path / shared_folder.TOKEN_NAME).write_text("mine\n")
    facts = shared_folder.look_at_folder(tmp_path, "mine")
    assert facts["errors"] == {} and facts["token"] == "same" and facts["unseen"] == []
    assert 0 < facts["write_seconds"] < 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen-n1", shared_folder.TOKEN_NAME]
