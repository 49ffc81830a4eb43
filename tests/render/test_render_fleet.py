"""Machines in a rented cluster are started and stopped by name, and the script waits for them."""

import json
import os

import pytest
from sites import GOLDEN, settings_of
from suite.messages import containing, says

from runbook.core import shell
from runbook.jobs.messages import SetupLine
from runbook.jobs.render.preparation import FLEET, preparation_files

PCLUSTER = """\
#!/bin/bash
printf '%s|' "$@" >>"$LOG"; echo >>"$LOG"
mapfile -t states <"$STATES"
[ "$1" = update-compute-fleet ] && exit 0
printf '{\n  "status": "%s"\n}\n' "${states[0]}"
if ((${#states[@]} > 1)); then printf '%s\n' "${states[@]:1}" >"$STATES"; fi
[ "${states[0]}" != UNREACHABLE ]
"""
"""A stand-in that answers with these states in order, and then repeats the last."""


@pytest.fixture
def fleet(tmp_path):
    """Return a function that runs fleet.sh for the AWS site, with a stand-in for pcluster and a
    clock that skips 15 seconds at a time.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pcluster").write_text(PCLUSTER)
    (programs / "pcluster").chmod(0o755)
    script = tmp_path / FLEET
    script.write_text(preparation_files(settings_of("aws-pile-175b"))[FLEET])
    (tmp_path / "clock").write_text("sleep() { SECONDS=$((SECONDS + $1)); }\n")

    def run(*words, states=("RUNNING",)):
        (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
        (tmp_path / "log").write_text("")
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "BASH_ENV": str(tmp_path / "clock"),
        }
        environment |= {"LOG": str(tmp_path / "log"), "STATES": str(tmp_path / "states")}
        said = shell.run(["bash", str(script), *words], env=environment, check=False)
        return said, [line.split("|")[:-1] for line in (tmp_path / "log").read_text().splitlines()]

    return run


def test_the_script_is_the_expected_one_word_for_word():
    expected = (GOLDEN / "aws" / "01-environment" / FLEET).read_text(encoding="utf-8")
    assert preparation_files(settings_of("aws-pile-175b"))[FLEET] == expected
    assert FLEET not in preparation_files(settings_of("azure-175b"))


def test_start_waits_until_the_machines_run(fleet):
    said, asked = fleet(
        "start", "my cluster", "us-east-1", states=("STOPPED", "UNREACHABLE", "STARTING", "RUNNING")
    )
    named = ["--cluster-name", "my cluster", "--region", "us-east-1"]
    assert asked == [
        ["update-compute-fleet", *named, "--status", "START_REQUESTED"],
        *[["describe-compute-fleet", *named]] * 4,
    ]
    reached = SetupLine.CLUSTER_SAYS.fill(cluster="my cluster", status='"RUNNING"')
    assert (said.exit_code, said.out) == (0, f"{reached}\n")


def test_stop_waits_until_they_do_not(fleet):
    said, asked = fleet("stop", "c", "r", states=("RUNNING", "STOPPING", "STOPPED"))
    assert asked[0][-2:] == ["--status", "STOP_REQUESTED"] and len(asked) == 4
    reached = SetupLine.CLUSTER_SAYS.fill(cluster="c", status='"STOPPED"')
    assert (said.exit_code, said.out) == (0, f"{reached}\n")


def test_machines_that_do_not_come_end_the_waiting_with_what_was_said(fleet):
    said, asked = fleet("start", "c", "r", states=("PROTECTED",))
    assert said.exit_code == 1 and len(asked) == 1 + 30 * 4
    values = {"cluster": "c", "status": '"RUNNING"', "minutes": 30}
    answer = containing('{\n  "status": "PROTECTED"')
    assert says(said.err, SetupLine.CLUSTER_TIMED_OUT, **values, answer=answer)


def test_status_is_the_answer_itself_and_an_unknown_word_is_refused(fleet):
    said, _ = fleet("status", "c", "r", states=("STOPPED",))
    assert (said.exit_code, json.loads(said.out)) == (0, {"status": "STOPPED"})
    said, asked = fleet("halt", "c", "r")
    refusal = SetupLine.NO_FLEET_COMMAND.fill(command="halt", commands="start, stop, status")
    assert (said.exit_code, said.err, asked) == (2, f"{refusal}\n", [])
