"""What is packed, and when it counts as changed."""

from __future__ import annotations

import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from packed_environment.conftest import ask
from suite.messages import refuses

from runbook.packed_environment import contents
from runbook.packed_environment.archive import PackError, checksum
from runbook.packed_environment.interpreter import parse_answer
from runbook.packed_environment.manifest import ManifestError, parse_manifest
from runbook.packed_environment.messages import CopyMessage
from runbook.packed_environment.pack import find_sources
from runbook.packed_environment.relocation import moved_script


def now(packed):
    return contents.current_fingerprint(find_sources(packed.interpreter, packed.package))


def test_the_manifest_is_read_back_as_it_was_written(packed):
    assert parse_manifest(packed.manifest_path.read_text()) == packed.manifest
    assert packed.manifest.sha256 == checksum(packed.archive)
    assert packed.manifest.archive_bytes == packed.archive.stat().st_size


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"parts": [], "outside": []}'])
def test_a_damaged_manifest_is_refused(text):
    with pytest.raises(ManifestError):
        parse_manifest(text)


def test_an_unchanged_environment_has_the_same_fingerprint(packed):
    assert now(packed) == packed.manifest.fingerprint


@pytest.mark.parametrize("change", ["edited", "added", "removed", "package"])
def test_every_change_is_noticed(packed, change):
    module = packed.packages / "answers.py"
    if change == "edited":
        module.write_text("ANSWER = 43\n")
    elif change == "added":
        (packed.packages / "more.py").write_text("")
    elif change == "removed":
        module.unlink()
    else:
        (packed.package / "runbook" / "__init__.py").write_text("# changed\n")
    assert now(packed) != packed.manifest.fingerprint


def test_what_python_compiles_by_itself_is_no_change(packed):
    compiled = packed.packages / "__pycache__"
    compiled.mkdir()
    (compiled / "answers.cpython-311.pyc").write_bytes(b"compiled")
    assert now(packed) == packed.manifest.fingerprint


def test_packing_twice_gives_the_same_archive(packed):
    assert packed.pack().sha256 == packed.manifest.sha256


def test_two_archives_are_kept_for_jobs_that_wait(packed):
    for number in range(3):
        (packed.packages / "answers.py").write_text(f"ANSWER = {number}\n")
        newest = packed.pack()
    archives = list(packed.folder.glob("environment-*.tar"))
    assert len(archives) == 2
    assert Path(newest.archive) in archives


def test_links_and_times_survive(packed):
    with tarfile.open(packed.archive) as archive:
        members = {member.name: member for member in archive}
    assert members["environment/bin/python3"].issym()
    module = packed.packages / "answers.py"
    name = f"environment/{module.relative_to(packed.environment)}"
    assert members[name].mtime == int(module.stat().st_mtime)
    assert "package/runbook/__init__.py" in members


def test_a_module_without_a_compiled_file_is_counted(packed):
    assert packed.manifest.uncompiled == 2
    compiled = packed.packages / "__pycache__"
    compiled.mkdir()
    (compiled / "answers.cpython-311.pyc").write_bytes(b"compiled")
    assert packed.pack().uncompiled == 1


def test_a_folder_that_is_not_packed_is_named(packed, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    search_path = (*packed.interpreter.search_path, str(elsewhere))
    interpreter = replace(packed.interpreter, search_path=search_path)
    assert str(elsewhere) in interpreter.outside([str(packed.environment)])
    assert str(packed.packages) not in interpreter.outside([str(packed.environment)])


def test_the_systems_own_interpreter_is_refused():
    interpreter = ask(Path(sys.executable))
    system = replace(interpreter, prefix="/usr", base_prefix="/usr", executable="/usr/bin/python3")
    with refuses(PackError, CopyMessage.INTERPRETER_OF_THE_SYSTEM, executable="/usr/bin/python3"):
        find_sources(system, Path("/project"))


def test_caches_and_other_environments_of_conda_are_left_out(tmp_path):
    for name in ("conda-meta", "pkgs", "envs", "lib"):
        (tmp_path / name).mkdir()
    interpreter = ask(Path(sys.executable))
    conda = replace(interpreter, prefix=str(tmp_path), base_prefix=str(tmp_path))
    (environment, _) = find_sources(conda, Path("/project"))
    names = [entry.path for entry in contents.list_entries([environment])]
    assert names == ["conda-meta", "lib"]


def test_set_up_commands_may_print():
    line = (
        'runbook {"executable": "/e/bin/python", "prefix": "/e", "base_prefix": "/e", "base_executable": "/e/bin/python",'
        ' "version": "3.11.7", "standard_library": "/e/lib", "headers": "/e/include", "search_path": ["/e/lib"]}'
    )
    assert parse_answer(f"Loading conda\n{line}\nbye\n").prefix == "/e"


@pytest.mark.parametrize(
    "head",
    [
        b"#!/old/venv/bin/python3.11\n",
        b"#!/old/venv/bin/python -I\n",
        b"#!/bin/sh\n'''exec' \"/old with spaces/venv/bin/python3\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_scripts_start_the_python_next_to_them(head):
    moved = moved_script(head + b"import sys\n")
    assert b"/old" not in moved
    assert moved.endswith(b"import sys\n")
    assert (b" -I" in moved) == (b" -I" in head)


@pytest.mark.parametrize("content", [b"#!/bin/bash\necho\n", b"\x7fELF", b""])
def test_other_programs_stay_as_they_are(content):
    assert moved_script(content) is None
