"""Commands in a run file: shown by check, plan and doctor, and started only if this user has
allowed them.
"""

from __future__ import annotations

import subprocess

import pytest
from suite.messages import says

from runbook import params
from runbook.phases.run_checks import check_text, run_checks
from runbook.phases.run_plan import load_plan, plan_text
from runbook.plan_file.allowed_commands import allowed_commands_file, how_to_allow, is_allowed
from runbook.runs.consent import command_checks, commands_table
from runbook.runs.messages import RunMessage

COMMAND = "mail -s 'an alarm' ada@example.org"
SET = (f"training.alarm_command={COMMAND}",)


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "my config"))


def test_a_command_is_allowed_word_for_word_and_the_printed_way_to_allow_it_works():
    assert not is_allowed(COMMAND)
    for command in (COMMAND, "echo $(date) `x` > a"):
        subprocess.run(["bash", "-c", how_to_allow(command)], check=True)
        assert is_allowed(command)
    assert not is_allowed(f"{COMMAND}; rm -rf x")
    assert not is_allowed("") and not is_allowed("mail")
    allowed_commands_file().write_bytes(b"\xff\n")
    assert not is_allowed(COMMAND)


def test_check_and_plan_show_the_command_and_who_gave_it():
    (check,) = command_checks(params.load("local", set_words=SET))
    assert (check.name, check.verdict) == ("training.alarm_command", "warn")
    assert COMMAND in check.value and "command line" in check.value
    assert how_to_allow(COMMAND) in check.remedy
    assert "training.alarm_command" in check_text(*run_checks("local", SET))
    settings, plan = load_plan("local", SET)
    assert says(plan_text(settings, plan), RunMessage.COMMANDS_TO_START)
    subprocess.run(["bash", "-c", how_to_allow(COMMAND)], check=True)
    (check,) = command_checks(settings)
    assert check.verdict == "pass"
    assert commands_table(settings)[0].rows[0]["allowed"] == "yes"


def test_a_run_without_a_command_shows_none():
    settings = params.load("local")
    assert command_checks(settings) == [] and commands_table(settings) == []
