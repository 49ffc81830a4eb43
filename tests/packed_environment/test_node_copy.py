"""The copy on a node is checked, created once and removed. Also tests a node that cannot have a
copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packed_environment.conftest import (
    PROJECT,
    Packed,
    ask,
    in_use,
    make_environment,
    make_package,
)
from suite.messages import says

from runbook.packed_environment import copy_lock, failure_note, node_copy
from runbook.packed_environment.__main__ import describe
from runbook.packed_environment.copy_lock import lock_file
from runbook.packed_environment.manifest import MANIFEST_NAME
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.node_copy import (
    CopyProblem,
    CopyState,
    copies_folder,
    ensure_copy,
    remove_copy,
)
from runbook.packed_environment.pack import pack

SAY = "import answers, sys; print(answers.__file__); print(sys.prefix); print(sys.base_prefix)"


def ensure(packed, **changes):
    if changes:
        path = packed.folder / "other.json"
        path.write_text(replace(packed.manifest, **changes).as_text())
    else:
        path = packed.manifest_path
    return ensure_copy(path, str(packed.disk))


def run(*command):
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("compression", ["packed", "packed_with_zstd"])
def test_python_runs_from_the_copy_alone(compression, request):
    packed = request.getfixturevalue(compression)
    result = ensure(packed)
    assert (result.state, result.problem) == (CopyState.UNPACKED, "")
    copy = Path(result.folder)
    module, prefix, _ = run(copy / packed.manifest.python, "-c", SAY).splitlines()
    assert module.startswith(str(copy))
    assert prefix == str(copy / "environment")
    assert run(copy / "environment/bin/say-prefix") == f"{copy}/environment\n"


def test_the_installation_is_found_in_the_copy_too(tmp_path):
    """Pack the environment completely, with the standard library from the Python that runs this
    test.
    """
    environment = make_environment(tmp_path / "venv")
    interpreter = ask(environment / "bin" / "python")
    if interpreter.base_is_on_nodes:
        pytest.skip("this Python is the system's own")
    folder = tmp_path / "archives"
    pack(interpreter, make_package(tmp_path / "clone"), folder, "none", lambda *_: None)
    result = ensure_copy(folder / MANIFEST_NAME, str(tmp_path / "disk"))
    assert result.state is CopyState.UNPACKED, result.detail
    program = Path(result.folder) / "environment/bin/python"
    question = "import json, sys; print(sys.base_prefix); print(json.__file__)"
    base, module = run(program, "-c", question).splitlines()
    assert base == f"{result.folder}/base"
    assert module.startswith(base)


def test_a_second_start_unpacks_nothing(packed):
    first = ensure(packed)
    packed.archive.unlink()
    second = ensure(packed)
    assert (second.state, second.folder) == (CopyState.PRESENT, first.folder)


def test_ranks_that_start_at_once_unpack_once(packed):
    command = [sys.executable, "-s", "-S", "-m", "runbook.packed_environment", "ensure"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    processes = [
        subprocess.Popen(
            [*command, str(packed.manifest_path), str(packed.disk)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for _ in range(4)
    ]
    answers = [json.loads(process.communicate()[0]) for process in processes]
    states = sorted(answer["state"] for answer in answers)
    assert states == ["present"] * 3 + ["unpacked"]
    assert {process.returncode for process in processes} == {0}


@pytest.fixture
def brief_waits(monkeypatch):
    """Set lock timeouts that are short enough for a test."""
    monkeypatch.setattr(copy_lock, "IN_USE_SECONDS", 0.3, raising=False)
    monkeypatch.setattr(copy_lock, "MAKING_SECONDS", 0.3, raising=False)


@pytest.mark.timeout(300)
def test_a_copy_in_use_by_another_training_is_used_at_once(packed, monkeypatch):
    monkeypatch.setattr(copy_lock, "IN_USE_SECONDS", 600.0)
    copy = Path(ensure(packed).folder)
    with in_use(copy):
        result = ensure(packed)
    assert result.state is CopyState.PRESENT
    assert result.seconds < 600


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("brief_waits")
def test_a_copy_in_use_that_is_not_ready_is_given_up_after_a_while(packed):
    copy = Path(ensure(packed).folder)
    (copy / "ready").unlink()
    with in_use(copy):
        result = ensure(packed)
        assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.LOCKED)
        assert (copy / "environment").exists(), "somebody runs from it"
    assert ensure(packed).state is CopyState.UNPACKED


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("brief_waits")
def test_a_process_that_makes_a_copy_for_ever_is_given_up_after_a_while(packed):
    copy = copies_folder(str(packed.disk)) / packed.manifest.name
    copy.parent.mkdir(parents=True)
    with lock_file(copy).open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        result = ensure(packed)
    assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.LOCKED)


def test_a_copy_of_another_archive_is_made_again(packed):
    copy = Path(ensure(packed).folder)
    (copy / "ready").write_text(f"{packed.manifest.name}{'0' * 48}\n")
    assert ensure(packed).state is CopyState.UNPACKED
    assert (copy / "ready").read_text() == f"{packed.manifest.sha256}\n"


@pytest.fixture(autouse=True)
def notes_in_memory(tmp_path, monkeypatch):
    """Use a temporary folder instead of the memory file system."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(node_copy, "MEMORY_FOLDER", str(folder))
    return folder


def damage(archive):
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    archive.write_bytes(content)


@pytest.mark.parametrize("compression", ["packed", "packed_with_zstd"])
def test_one_flipped_bit_is_found_and_nothing_is_left(compression, request):
    packed = request.getfixturevalue(compression)
    damage(packed.archive)
    result = ensure(packed)
    assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.DAMAGED)
    assert result.folder == packed.manifest.interpreter
    assert str(packed.archive) in result.detail
    assert not list(packed.disk.glob("*/*/"))


def test_a_cut_archive_is_damaged(packed):
    os.truncate(packed.archive, packed.archive.stat().st_size // 2)
    assert ensure(packed).problem == CopyProblem.DAMAGED


def test_a_node_without_a_copy_is_refused_where_the_shared_environment_has_changed(packed):
    damage(packed.archive)
    (packed.packages / "answers.py").write_text("ANSWER = 43\n")
    result = ensure(packed)
    assert result.state is CopyState.REFUSED
    assert result.problem == CopyProblem.DAMAGED
    reason = CopyMessage.NO_COPY.fill(problem=CopyProblem.DAMAGED, detail=result.detail)
    assert describe(result) == CopyMessage.REFUSED.fill(reason=reason)


def test_a_missing_archive_is_named(packed):
    packed.archive.unlink()
    result = ensure(packed)
    assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.NO_ARCHIVE)


def test_a_job_without_a_manifest_is_refused(tmp_path):
    result = ensure_copy(tmp_path / "environment.json", str(tmp_path))
    assert (result.state, result.problem) == (CopyState.REFUSED, CopyProblem.NO_ARCHIVE)


def test_room_is_looked_for_first(packed):
    result = ensure(packed, disk_bytes=2**60)
    assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.NO_ROOM)
    assert not list(packed.disk.glob("*/*/"))


def test_files_are_room_too(packed, monkeypatch):
    few_files = SimpleNamespace(f_bavail=2**40, f_frsize=4096, f_files=1000, f_favail=3)
    monkeypatch.setattr(node_copy.os, "statvfs", lambda _: few_files)
    result = ensure(packed)
    assert result.problem == CopyProblem.NO_ROOM
    assert says(result.detail, CopyMessage.NO_ROOM_FOR_FILES, free=3, needed=packed.manifest.files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_disk_that_fills_meanwhile_leaves_nothing(packed, tmp_path, monkeypatch):
    """Unpack on a real file system of 256 KiB, while the manifest asks for only one byte.

    Temporary files go to the same file system.
    """
    small = tmp_path / "small"
    small.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(options, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        big = packed.packages / "big.bin"
        big.write_bytes(os.urandom(1_000_000))
        packed.pack()
        manifest = packed.pack()
        path = packed.folder / "small.json"
        path.write_text(replace(manifest, disk_bytes=1).as_text())
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        result = ensure_copy(path, str(small))
        assert (result.state, result.problem) == (CopyState.SHARED, CopyProblem.DISK_FULL)
        assert not list(small.glob("*/*/"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_missing_program_is_named(packed, monkeypatch):
    monkeypatch.setenv("PATH", str(packed.disk))
    result = ensure(packed)
    assert result.problem == CopyProblem.MISSING_PROGRAM
    assert says(result.detail, CopyMessage.NO_PROGRAM, programs="tar and no flock")


def test_a_variable_of_the_node_is_put_in(packed, monkeypatch):
    monkeypatch.setenv("LOCAL_DISK", str(packed.disk))
    result = ensure_copy(packed.manifest_path, "$LOCAL_DISK/copies")
    assert result.folder.startswith(f"{packed.disk}/copies/")
    monkeypatch.delenv("LOCAL_DISK")
    result = ensure_copy(packed.manifest_path, "$LOCAL_DISK/copies")
    assert (result.problem, result.state) == (CopyProblem.NO_FOLDER, CopyState.SHARED)


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [("lustre", "rw", CopyProblem.SHARED_FOLDER), ("ext4", "rw,noexec", CopyProblem.NO_PROGRAMS)],
)
def test_a_folder_of_the_wrong_kind_is_named(packed, monkeypatch, kind, options, problem):
    mount = node_copy.mount_of(packed.disk)
    monkeypatch.setattr(node_copy, "mount_of", lambda _: replace(mount, kind=kind, options=options))
    assert ensure(packed).problem == problem


def test_a_link_that_somebody_else_may_turn_is_not_followed(packed, tmp_path):
    """Anybody can create a link in /tmp that is named like the folder for this user."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    copies_folder(str(packed.disk)).symlink_to(target)
    result = ensure(packed)
    assert result.problem == CopyProblem.NO_FOLDER
    root = copies_folder(str(packed.disk))
    assert result.detail == CopyMessage.FOLDER_IS_A_LINK.fill(root=root)
    assert not list(target.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_not_used(packed):
    root = copies_folder(str(packed.disk))
    root.mkdir()
    os.chown(root, 65_534, 65_534)
    result = ensure(packed)
    assert result.problem == CopyProblem.NO_FOLDER
    assert result.detail == CopyMessage.FOLDER_OF_SOMEBODY_ELSE.fill(root=root)


def test_what_failed_is_not_tried_by_each_rank_again(packed, monkeypatch):
    monkeypatch.setenv("RUNBOOK_JOB", "slurm-7")
    content = packed.archive.read_bytes()
    damage(packed.archive)
    first = ensure(packed)
    packed.archive.write_bytes(content)
    assert ensure(packed).detail == first.detail
    monkeypatch.setenv("RUNBOOK_JOB", "slurm-8")
    assert ensure(packed).state is CopyState.UNPACKED


@pytest.fixture
def comparisons(monkeypatch):
    """Records each time the shared environment is compared with what was packed."""
    monkeypatch.setenv("RUNBOOK_JOB", "slurm-7")
    seen = []
    compare = node_copy.shared_is_unchanged
    monkeypatch.setattr(
        node_copy, "shared_is_unchanged", lambda manifest: seen.append(1) or compare(manifest)
    )
    return seen


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_shared_environment_is_compared_once_for_all_ranks_of_a_node(
    packed, comparisons, is_changed
):
    damage(packed.archive)
    if is_changed:
        (packed.packages / "answers.py").write_text("ANSWER = 43\n")
    state = CopyState.REFUSED if is_changed else CopyState.SHARED
    results = [ensure(packed) for _ in range(3)]
    assert {result.state for result in results} == {state}
    assert {result.problem for result in results} == {CopyProblem.DAMAGED}
    assert len(comparisons) == 1


def test_ranks_that_start_at_once_compare_once(packed, monkeypatch):
    damage(packed.archive)
    seen = []

    def compare_slowly(_):
        seen.append(1)
        time.sleep(0.5)
        return True

    monkeypatch.setattr(node_copy, "shared_is_unchanged", compare_slowly)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: ensure(packed), range(4)))
    assert {result.state for result in results} == {CopyState.SHARED}
    assert len(seen) == 1


def test_the_comparison_is_made_again_by_another_job_and_after_a_while(
    packed, comparisons, monkeypatch
):
    damage(packed.archive)
    ensure(packed)
    monkeypatch.setenv("RUNBOOK_JOB", "slurm-8")
    ensure(packed)
    assert len(comparisons) == 2
    (note,) = packed.disk.glob("*/*.failed")
    old = time.time() - failure_note.FAILURE_SECONDS - 1
    os.utime(note, (old, old))
    ensure(packed)
    assert len(comparisons) == 3


def test_it_is_compared_once_where_no_folder_can_be_made_too(packed, comparisons, notes_in_memory):
    packed.disk.rmdir()
    packed.disk.write_text("no folder can be made here")
    results = [ensure(packed) for _ in range(3)]
    assert {result.problem for result in results} == {CopyProblem.NO_FOLDER}
    assert {result.state for result in results} == {CopyState.SHARED}
    assert len(comparisons) == 1
    assert list(notes_in_memory.glob("*/*.failed"))
    node_copy.forget_failures(packed.manifest)
    assert not list(notes_in_memory.glob("*/*.failed"))


def test_ranks_that_cannot_keep_a_note_each_compare(packed, comparisons, monkeypatch):
    monkeypatch.setattr(node_copy, "MEMORY_FOLDER", "/proc")
    packed.disk.rmdir()
    packed.disk.write_text("no folder can be made here")
    assert {ensure(packed).state for _ in range(2)} == {CopyState.SHARED}
    assert len(comparisons) == 2


def test_a_copy_in_use_is_not_removed(packed):
    copy = Path(ensure(packed).folder)
    with in_use(copy):
        assert not remove_copy(copy)
        assert (copy / "ready").exists()
    assert remove_copy(copy)
    assert not copy.exists()


def test_a_copy_that_nobody_has_used_for_a_day_makes_room(packed):
    old = Path(ensure(packed).folder)
    (packed.packages / "answers.py").write_text("ANSWER = 43\n")
    packed.manifest = packed.pack()
    ensure(packed)
    assert old.exists(), "it was used a moment ago"
    os.utime(old / "ready", (0, 0))
    (packed.packages / "answers.py").write_text("ANSWER = 44\n")
    packed.manifest = packed.pack()
    ensure(packed)
    assert not old.exists()


def test_an_unpacking_that_was_killed_is_done_again(packed):
    root = copies_folder(str(packed.disk))
    part = root / f"{packed.manifest.name}.part"
    (part / "environment").mkdir(parents=True)
    (part / "environment" / "half").write_text("half")
    copy = Path(ensure(packed).folder)
    assert not (copy / "environment" / "half").exists()


def test_an_interpreter_that_does_not_start_is_found_at_once(tmp_path):
    packed = Packed(tmp_path)
    program = packed.environment / "bin" / "python3"
    minor = ".".join(packed.manifest.python_version.split(".")[:2])
    for path in (program, program.with_name("python"), program.with_name(f"python{minor}")):
        path.unlink(missing_ok=True)
        path.write_text("#!/bin/sh\nexit 3\n")
        path.chmod(0o755)
    packed.manifest = packed.pack()
    result = ensure(packed)
    assert result.problem == CopyProblem.DOES_NOT_RUN
    assert says(result.detail, CopyMessage.DOES_NOT_RUN, exit_code=3)
