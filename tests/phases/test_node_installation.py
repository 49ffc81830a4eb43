"""What a node reports about its Python, where its packages come from, and the torch libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.node_checks import installation, libraries, packages, torch_child
from runbook.node_checks.program_output import run_program
from runbook.node_checks.torch_child import look_at_torch


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Create a checkout on the import path, as an editable installation does."""
    folder = tmp_path / "checkout" / "flash_attn"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def checksum() -> str:
    """Return the checksum of the checkout, as a node reports it."""
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


def test_a_library_that_was_cut_short_is_reported_and_a_whole_or_a_stripped_one_is_not(package):
    library = gcc_library(package / "whole.so")
    (package / "stripped.so").write_bytes(library.read_bytes())
    subprocess.run(["strip", str(package / "stripped.so")], check=True)
    (package / "script.so").write_text("INPUT(libother.so.1)\n")
    assert cut_libraries() == []
    (package / "cut.so").write_bytes(library.read_bytes()[:-1])
    (package / "empty.so").write_bytes(b"")
    assert cut_libraries() == ["cut.so", "empty.so"]


def gcc_library(path: Path) -> Path:
    """Compile a small library."""
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(argv, input=b"int value(void) { return 1; }\n", check=True)
    return path


def cut_libraries() -> list[str]:
    """Return the cut libraries of the checkout, as a node reports them."""
    source = installation.look_at_sources()["flash-attn"]
    assert isinstance(source, dict)
    return list(source["cut_libraries"])


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


def test_a_compiled_extension_is_compared_by_its_size(package):
    (package / "helpers.so").write_bytes(b"built here")
    before = checksum()
    (package / "helpers.so").write_bytes(b"another_one")
    other_size = checksum()
    (package / "helpers.so").write_bytes(b"built there"[:10])
    assert other_size != before == checksum()


@pytest.mark.parametrize("name", [".#layers.py", "gone.py"])
def test_a_link_that_leads_nowhere_is_no_source(package, name):
    before = checksum()
    (package / name).symlink_to("me@login1.4711:1700000000")
    assert checksum() == before


def test_a_copy_that_a_notebook_keeps_is_no_source(package):
    before = checksum()
    (package / ".ipynb_checkpoints").mkdir()
    (package / ".ipynb_checkpoints" / "layers-checkpoint.py").write_text("VALUE = 1\n")
    assert checksum() == before


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


PYTHON_2 = """#!/bin/sh
# CPython 2.7 knows no -I: its words, and its exit code.
for option in "$@"; do
  case $option in
    -I) echo "Unknown option: -I" >&2; exit 2 ;;
    -c) printf '/usr\\n2.7.5\\n'; exit 0 ;;
  esac
done
"""


def program_on_path(script: str, tmp_path: Path, monkeypatch) -> dict[str, object]:
    """Return the message about a `python` that precedes this one on PATH."""
    path = tmp_path / "python"
    path.write_text(script)
    path.chmod(0o755)
    own_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{tmp_path}:{own_folder}:/usr/bin:/bin")
    programs = installation.look_at_programs()["programs"]
    assert isinstance(programs, dict)
    program = programs["python"]
    assert program.pop("path") == str(path)
    assert program.pop("place") == 0
    assert isinstance(program, dict)
    return program


def test_a_python_2_in_front_is_another_one(tmp_path, monkeypatch):
    program = program_on_path(PYTHON_2, tmp_path, monkeypatch)
    assert program == {"version": "2.7.5", "ended": "well", "is_own": False}


@pytest.mark.parametrize(
    "script",
    ["#!/bin/sh\nexit 1\n", "#!/nowhere/python\n", "#!/bin/sh\necho hello\n"],
    ids=["exit code", "no interpreter", "no Python"],
)
def test_a_python_that_does_not_start_is_not_the_own_one(tmp_path, monkeypatch, script):
    program = program_on_path(script, tmp_path, monkeypatch)
    assert program == {"version": "", "ended": "failed", "is_own": False}


def test_two_programs_that_hang_take_no_longer_than_one(tmp_path, monkeypatch):
    for name in installation.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\nexec /bin/sleep 600\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation, "PROGRAMS_SECONDS", 3.0)
    deadlines = []
    ask_program = installation._ask_program

    def ask(path: str, deadline: float) -> installation.ProgramAnswer:
        deadlines.append(deadline)
        return ask_program(path, deadline)

    monkeypatch.setattr(installation, "_ask_program", ask)
    programs = installation.look_at_programs()["programs"]
    assert deadlines == [deadlines[0]] * 2, "both end at the same moment"
    assert isinstance(programs, dict)
    assert {name: program["ended"] for name, program in programs.items()} == {
        "python": "hung",
        "python3": "hung",
    }


def compiled_library(path: Path, content: str) -> Path:
    """Compile a C library that contains this text."""
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


LOADED = '{"libraries": {"libc10": "%s"}}'
CHILD = """
import sys, time
time.sleep(600 * ("--only-libraries" in sys.argv and %d))
print('%s')
"""


def look_with_child(tmp_path: Path, monkeypatch, *, hangs: bool) -> dict:
    """Return a node's answer if the child that has no LD_LIBRARY_PATH hangs, or does not."""
    library = tmp_path / "libc10.so"
    library.write_bytes(b"\0")
    (tmp_path / "second_child.py").write_text(CHILD % (hangs, LOADED % library))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(torch_child, "CHILD", "second_child")
    return look_at_torch("cpu", 300.0)


def test_the_first_answer_counts_where_no_time_is_left_for_the_second(tmp_path, monkeypatch):
    limits = []

    def run_with_limit(argv, seconds, environment):
        limits.append(seconds)
        return run_program(argv, seconds if len(limits) == 1 else 1.0, environment)

    monkeypatch.setattr(torch_child, "run_program", run_with_limit)
    facts = look_with_child(tmp_path, monkeypatch, hangs=True)
    assert (facts["ended"], facts["libraries_compared"]) == ("well", False)
    assert facts["substituted"] == {}
    first, second = limits
    assert second < first == 300.0, "the second has what the first left"


def test_the_second_answer_counts_if_it_comes_in_time(tmp_path, monkeypatch):
    facts = look_with_child(tmp_path, monkeypatch, hangs=False)
    assert (facts["ended"], facts["libraries_compared"]) == ("well", True)


@pytest.mark.training
def test_a_libstdcxx_without_a_version_that_torch_needs_is_named_by_the_import(
    tmp_path, monkeypatch
):
    own = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    if not own.exists():
        pytest.skip("needs Debian's libstdc++")
    content = own.read_bytes()
    assert b"GLIBCXX_3.4.22\0" in content
    (tmp_path / own.name).write_bytes(content.replace(b"GLIBCXX_3.4.22\0", b"GLIBCXX_3.4.0a\0"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    facts = look_at_torch("cpu", 120)
    assert facts["ended"] == "failed"
    assert "libstdc++" in str(facts["words"])
    assert "GLIBCXX_3.4.22" in str(facts["words"])


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


def test_a_package_in_front_of_the_environments_own_is_named_with_both_versions(
    tmp_path, monkeypatch
):
    folders = {name: tmp_path / name for name in ("environment", "project", "system")}
    for folder, version in zip(folders.values(), ("2.4.6", "1.26.4", "1.21.0"), strict=True):
        information = folder / f"numpy-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Name: numpy\nVersion: {version}\n")
    monkeypatch.setattr(sys, "prefix", str(folders["environment"]))

    def replaced(*names: str) -> dict[str, str]:
        monkeypatch.setattr(sys, "path", [str(folders[name]) for name in names])
        return packages.replaced_packages()

    text = f"1.26.4 in {folders['project']} replaces 2.4.6"
    assert replaced("project", "environment", "system") == {"numpy": text}
    assert replaced("environment", "project", "system") == {}
    assert replaced("project", "system") == {}
