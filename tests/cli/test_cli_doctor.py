"""doctor: one row per check, with its rule and remedy, and the exit code of the worst result."""

from __future__ import annotations

import json

import pytest

from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment import doctor

KEYS = {"name", "status", "message", "rule", "remedy", "verdict", "value"}
SOFTWARE = {"torch": "2.13.0", "megatron-core": "0.16.1", "deepspeed": None, "numpy": "2.4.6"}


@pytest.fixture
def asked(monkeypatch):
    """Return the report that the trainer's Python gives in these tests. A test may change it."""
    answer = {
        "python": "3.11.2",
        "packages": dict(SOFTWARE),
        "errors": {},
        "torch": {"devices": []},
    }
    monkeypatch.setattr(doctor, "probe_alone", lambda: [answer])
    return answer


def rows_of(said) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(said.out)}


def test_a_machine_that_has_everything_is_well(runbook, asked):
    said = runbook("doctor", "--json")
    rows = rows_of(said)
    assert said.code == 0
    assert all(row.keys() == KEYS for row in rows.values())
    assert {row["verdict"] for row in rows.values()} <= {"pass", "warn"}
    assert all(
        (row["status"], row["message"]) == (row["verdict"], row["value"]) for row in rows.values()
    )
    assert {"python", "software", "GPUs", "cores", "memory", "disk", "run folder"} <= set(rows)
    versions = dict(word.split() for word in rows["software"]["value"].split(", "))
    assert versions == {name: version for name, version in SOFTWARE.items() if version}
    assert rows["GPUs"]["rule"] == (PhaseMessage.SITE_HIDES_GPUS.fill())


def test_what_is_missing_fails_and_names_the_remedy(runbook, asked):
    asked["packages"]["megatron-core"] = None
    said = runbook("doctor", "--json")
    assert said.code == 1
    row = rows_of(said)["software"]
    assert (row["verdict"], row["value"]) == ("fail", "missing: megatron-core")
    assert row["remedy"] == PhaseMessage.MAKE_SETUP_INSTALLS.fill()
    table = runbook("doctor")
    assert table.code == 1
    assert "megatron-core" in table.out


def test_a_torch_that_cannot_be_imported_is_told_in_its_own_words(runbook, asked):
    error = "OSError: libcudart.so.12: cannot open shared object file"
    asked |= {
        "torch": None,
        "errors": {"torch": error},
    }
    said = runbook("doctor", "--json")
    assert said.code == 1
    assert rows_of(said)["software"]["value"] == error


def test_the_trainers_python_is_really_asked_though_we_are_a_rank_of_a_job_ourselves(monkeypatch):
    """Check that doctor imports torch in a single process, without waiting for other ranks.

    The torch version in the report comes from the imported package, not only from metadata.
    """
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
    }.items():
        monkeypatch.setenv(name, value)
    (found,) = doctor.probe_alone()
    assert (found["rank"], found["errors"], found["group"]["sum_is_right"]) == (0, {}, True)
    assert found["torch"]["version"].startswith(found["packages"]["torch"].partition("+")[0])
    assert found["packages"]["numpy"]


def test_outside_a_project_the_rest_is_still_told(runbook, asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = runbook("doctor", "--json")
    rows = rows_of(said)
    assert said.code == 1
    assert rows["project"]["verdict"] == "fail"
    assert rows["software"]["verdict"] == "pass"


def test_a_run_that_cannot_be_asked_from_here_says_what_is_unknown(runbook):
    """Check that doctor reports as unknown what it can only learn on the login node."""
    said = runbook("doctor", "lumi-13b", "--json", "--set", "jobs.environment.partition=dev-g")
    rows = rows_of(said)
    assert said.code == 1
    assert (rows["required values"]["status"], rows["required values"]["message"]) == (
        "fail",
        "jobs.account, jobs.stage",
    )
    assert rows["image"]["status"] == "unknown"
    assert {
        rows[name]["status"] for name in ("software", "GPUs", "all-reduce", "clocks", "writing")
    } == {"unknown"}
    assert all(row["remedy"] for row in rows.values() if row["status"] == "fail")
