"""What a node says about its Python, its packages' sources and the libraries of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.node_checks import installation, libraries
from runbook.node_checks.torch_child import look_at_torch


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A checkout on the path of imports, which is what an editable installation is."""
    folder = tmp_path / "checkout" / "flash_attn"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def checksum() -> str:
    """The check sum of the checkout, as a node reports it."""
    source = installation.look_at_sources()["flash-attn"]
    assert isinstance(source, dict)
    return str(source["checksum"])


def test_a_change_of_the_same_length_changes_the_check_sum_of_a_checkout(package):
    before = checksum()
    (package / "__init__.py").write_text("VALUE = 2\n")
    assert checksum() != before


def test_compiled_files_and_other_names_change_nothing(package):
    before = checksum()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    (package / "notes.txt").write_text("x")
    assert checksum() == before


def test_a_check_sum_does_not_depend_on_the_folder_but_on_the_files_names(package):
    before = checksum()
    package.parent.rename(package.parents[1] / "moved")
    sys.path[0] = str(package.parents[1] / "moved")
    assert checksum() == before
    moved = package.parents[1] / "moved" / "flash_attn"
    (moved / "__init__.py").rename(moved / "other.py")
    assert checksum() != before


def test_an_installed_package_is_compared_by_names_and_sizes(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "flash_attn"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    before = checksum()
    (folder / "__init__.py").write_text("VALUE = 2\n")
    assert checksum() == before
    (folder / "__init__.py").write_text("VALUE = 11\n")
    assert checksum() != before


def test_packages_after_the_deadline_are_left_out(monkeypatch):
    monkeypatch.setattr(installation, "SOURCES_SECONDS", -1.0)
    assert installation.look_at_sources() == {}


def test_every_package_that_is_here_has_a_check_sum():
    assert {"gpt3-runbook", "torch", "megatron-core"} <= set(installation.look_at_sources())


def test_another_python_and_its_place_on_the_path_are_reported(tmp_path, monkeypatch):
    (tmp_path / "python").symlink_to("/usr/bin/python3")
    own_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{tmp_path}:{own_folder}")
    facts = installation.look_at_programs()
    programs = facts["programs"]
    assert isinstance(programs, dict)
    assert facts["own_place"] == 1
    assert (programs["python"]["place"], programs["python"]["is_own"]) == (0, False)
    assert (programs["python3"]["place"], programs["python3"]["is_own"]) == (1, True)


def test_a_script_that_starts_the_same_python_is_the_same(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    programs = installation.look_at_programs()["programs"]
    assert isinstance(programs, dict) and programs["python"]["is_own"]


def compiled_library(path: Path, content: str) -> Path:
    """A library of C with this text in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(f'const char text[] = "\\0{content}";\n')
    subprocess.run(["gcc", "-shared", "-o", str(path), str(source)], check=True)
    return path


@pytest.mark.parametrize(
    ("name", "content", "version"),
    [
        ("libstdc++.so.6", r"GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4.28", "3.4.30"),
        ("libnccl.so.2", "NCCL version 2.21.5+cuda12.4", "2.21.5"),
        ("libcudart.so.12.4.127", "", "12.4.127"),
        ("libcudart.so.12", "", ""),
        ("libgomp.so.1", "", ""),
    ],
)
def test_the_version_of_a_library_stands_in_it_or_in_its_name(tmp_path, name, content, version):
    assert libraries.library_version(str(compiled_library(tmp_path / name, content))) == version


def test_the_version_of_a_wheels_library_is_that_of_the_wheel(tmp_path):
    library = compiled_library(tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12", "")
    (tmp_path / "nvidia_cuda_runtime_cu12-12.4.127.dist-info").mkdir()
    assert libraries.library_version(str(library)) == "12.4.127"


def test_a_copy_of_the_same_library_replaces_nothing(tmp_path):
    own = compiled_library(tmp_path / "own" / "libgomp.so.1", "x")
    copied = tmp_path / "copied" / "libgomp.so.1"
    copied.parent.mkdir()
    copied.write_bytes(own.read_bytes())
    loaded = {"libgomp": str(copied)}
    assert libraries.substitutions(loaded, {"libgomp": str(own)}) == {}
    copied.write_bytes(own.read_bytes() + b"\0")
    assert set(libraries.substitutions(loaded, {"libgomp": str(own)})) == {"libgomp"}


@pytest.mark.training
def test_torch_reports_a_library_that_ld_library_path_replaces(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    plain = look_at_torch("cpu", 120)
    assert "substituted" not in plain
    loaded = plain["libraries"]
    assert isinstance(loaded, dict)
    own = Path(loaded["libc10"])
    (tmp_path / own.name).write_bytes(own.read_bytes() + b"\0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    substituted = look_at_torch("cpu", 120)["substituted"]
    assert isinstance(substituted, dict)
    assert {name: row["other_path"] for name, row in substituted.items()} == {"libc10": str(own)}
    assert os.path.realpath(substituted["libc10"]["path"]) == str(tmp_path / own.name)
