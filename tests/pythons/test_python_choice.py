"""The supported Python versions, and which ones are found and run."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import find_python
import pytest
from packaging.specifiers import SpecifierSet
from python_choice import chosen_versions, summary

CLONE = Path(__file__).parents[2]
OTHERS = [(3, 12), (3, 13)]


def commit(text):
    return lambda: f"{text}\n"


def test_a_commit_decides_which_python_ci_runs_and_always_the_same():
    assert chosen_versions("rotate", OTHERS, commit("0000000a")) == [(3, 12)]
    assert chosen_versions("rotate", OTHERS, commit("0000000b")) == [(3, 13)]


def test_all_or_one_python_can_be_asked_for():
    assert chosen_versions("all", OTHERS, commit("")) == OTHERS
    assert chosen_versions("3.13", OTHERS, commit("")) == [(3, 13)]
    with pytest.raises(ValueError) as refused:
        chosen_versions("3.14", OTHERS, commit(""))
    wish, _, choices = str(refused.value).partition(": ")
    assert wish == "PYTHONS=3.14"
    assert re.findall(r"\b(all|rotate|3\.\d+)\b", choices) == ["all", "rotate", "3.12", "3.13"]


def test_the_log_says_which_python_was_not_run():
    text = summary((3, 11), OTHERS, [(3, 13)])
    run, compared, not_run = text.split("; ")
    assert run.split(": ") == ["Pythons run", "3.13"]
    assert compared.endswith(" with 3.11")
    assert not_run.split(": ") == ["not run", "3.12"]


def test_the_supported_pythons_are_those_of_the_package():
    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    accepted = SpecifierSet(project["requires-python"])
    versions = [(3, minor) for minor in range(6, 30) if f"3.{minor}" in accepted]
    assert tuple(versions) == find_python.SUPPORTED


def interpreter(folder, version, name):
    """Write a program that responds like Python in that version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {version.replace('.', ' ')}\necho {path}\n")
    path.chmod(0o755)
    return str(path)


def broken(folder, name):
    """Write a command as pyenv puts it on PATH for a version that is not selected."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\necho command not found >&2\nexit 127\n")
    (folder / name).chmod(0o755)


def test_interpreters_are_found_on_path_and_in_pyenvs_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    broken(tmp_path / "bin", "python3.12")
    in_pyenv = interpreter(tmp_path / "pyenv/versions/3.12.1/bin", "3.12", "python3.12")
    on_path = interpreter(tmp_path / "bin", "3.13", "python3.13")
    assert find_python.find_interpreters() == {(3, 12): in_pyenv, (3, 13): on_path}


def test_another_python_is_refused_with_what_to_type():
    text = find_python.refusal(
        (3, 10, 13), {(3, 12): "/opt/python3.12", (3, 13): "/opt/python3.13"}
    )
    assert text == (
        "This is Python 3.10.13; 3.11, 3.12 and 3.13 work. Found here: 3.12 (/opt/python3.12), "
        "3.13 (/opt/python3.13). Type: make setup PYTHON=/opt/python3.12"
    )
    assert "None of them was found" in find_python.refusal((3, 14, 0), {})
    assert find_python.refusal((3, 13, 0), {}) == ""


def test_an_old_python_can_read_the_program_that_refuses_it():
    ast.parse((CLONE / "tools" / "find_python.py").read_text(), feature_version=(3, 6))


def test_this_python_is_accepted():
    program = [sys.executable, str(CLONE / "tools" / "find_python.py")]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ})
    assert (done.returncode, done.stderr) == (0, "")
