"""doctor: one row a question, with rule and remedy, and the exit code of the worst."""

from __future__ import annotations

import json

import pytest

from runbook.core.errors import ProgramError
from runbook.workflow.prerequisites import doctor

KEYS = {"name", "status", "message", "rule", "remedy", "verdict", "value"}
SOFTWARE = {"torch": "2.13.0", "megatron-core": "0.16.1", "numpy": "2.4.6", "cuda devices": 0}


@pytest.fixture
def asked(monkeypatch):
    """What the trainer's Python answers."""
    answer = dict(SOFTWARE)
    monkeypatch.setattr(doctor, "ask_software", lambda: answer)
    return answer


def rows_of(said) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(said.out)}


def test_a_machine_that_has_everything_is_well(runbook, asked):
    said = runbook("doctor", "--json")
    rows = rows_of(said)
    assert said.code == 0
    assert all(row.keys() == KEYS for row in rows.values())
    assert {row["verdict"] for row in rows.values()} <= {"pass", "warn"}
    assert all((row["status"], row["message"]) == (row["verdict"], row["value"]) for row in rows.values())
    assert {"python", "torch", "megatron-core", "numpy", "GPUs", "cores", "memory", "disk", "run folder"} <= set(rows)
    assert rows["GPUs"]["rule"] == (
        "site local computes on the CPU and hides them; site local-gpu takes those that torch sees, one a process"
    )


def test_what_is_missing_fails_and_names_the_remedy(runbook, asked):
    asked["megatron-core"] = None
    said = runbook("doctor", "--json")
    assert said.code == 1
    row = rows_of(said)["megatron-core"]
    assert (row["verdict"], row["value"]) == ("fail", "missing")
    assert row["remedy"] == "make setup installs what requirements.lock pins"
    table = runbook("doctor")
    assert table.code == 1
    assert "megatron-core" in table.out


def test_a_python_without_torch_is_told_in_its_own_words(runbook, monkeypatch):
    def no_torch():
        raise ProgramError("python -c ... ended with exit code 1\nModuleNotFoundError: No module named 'torch'")

    monkeypatch.setattr(doctor, "ask_software", no_torch)
    said = runbook("doctor", "--json")
    assert said.code == 1
    assert rows_of(said)["trainer"]["value"] == "ModuleNotFoundError: No module named 'torch'"


def test_the_trainers_python_is_really_asked():
    """One process that imports torch: versions are those that load, not those of a list."""
    found = doctor.ask_software()
    assert found["torch"]
    assert found["numpy"]


def test_outside_a_project_the_rest_is_still_told(runbook, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = runbook("doctor", "--json")
    rows = rows_of(said)
    assert said.code == 1
    assert rows["project"]["verdict"] == "fail"
    assert rows["torch"]["verdict"] == "pass"


def test_a_run_that_cannot_be_asked_from_here_says_what_is_unknown(runbook):
    """On a machine that is not the site's login node nothing is guessed."""
    said = runbook("doctor", "lumi-13b", "--json", "--set", "jobs.environment.partition=dev-g")
    rows = rows_of(said)
    assert said.code == 1
    assert (rows["required values"]["status"], rows["required values"]["message"]) == (
        "fail",
        "jobs.account, jobs.stage",
    )
    assert rows["image"]["status"] == "unknown"
    assert {rows[name]["status"] for name in ("software", "GPUs", "all-reduce", "clocks", "writing")} == {"unknown"}
    assert all(row["remedy"] for row in rows.values() if row["status"] == "fail")
