"""`--json`: the fields in docs/json.md, for every command that prints a table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from runbook import params
from runbook.cli.commands import COMMANDS, load_command
from runbook.core.checks import Check
from runbook.phases import open_phase as phases
from runbook.phases import phase_end
from runbook.records.messages import RecordMessage
from runbook.runs.run_folder import RUNS_VARIABLE

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
CHECK = {"name", "verdict", "value", "rule", "remedy"}


@pytest.fixture
def made(project: Path, monkeypatch) -> Path:
    """Create a run with one finished phase, without executing anything."""
    monkeypatch.setenv(RUNS_VARIABLE, str(project / "runs"))
    settings = params.load("local", set_words=["model=tiny"])
    open_phase = phases.open_run_phase(settings, "01-environment")
    open_phase.session.check(Check("cores", "pass", "2 cores", "one for each process"))
    phase_end.plain_end(open_phase.phase)(open_phase)
    return open_phase.folder


def documented(command: str) -> set[str]:
    """Return the code words in the row for a command."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{command}`"))
    return set(re.findall(r"`([^`]+)`", row))


def usage_of(command: str) -> str:
    """Return a command with its arguments, as the page spells it."""
    arguments = [
        parameter.make_metavar(click.Context(load_command(command)))
        for parameter in load_command(command).params
        if isinstance(parameter, click.Argument)
    ]
    return " ".join([command, *arguments])


def answer(said, code=0):
    assert said.code == code, said
    return json.loads(said.out)


def test_status_of_all_and_of_one(runbook, made):
    (run,) = answer(runbook("status", "--json"))["runs"]
    assert set(run) <= documented("status")
    assert (run["run"], run["state"]) == (
        "local",
        RecordMessage.STATES_DONE.fill(done=1, phases=7),
    )
    one = answer(runbook("status", "local", "--json"))
    assert set(one["phases"][0]) <= documented("status RUN")
    assert [phase["state"] for phase in one["phases"]].count("done") == 1
    more = {"phases", "jobs", "expected_loss", "near_copies", "fewer_replicas"}
    assert set(one) == set(run) | more
    assert set(one) - set(run) <= documented("status RUN")


def test_check_and_why(runbook):
    content = answer(runbook("check", "local", "--json"))
    assert content["run"] == "local"
    assert CHECK <= set(content["checks"][0]) <= documented("check RUN")
    assert documented("check RUN") >= CHECK
    words = ("why", "local", "training.iterations", "--json", "--set", "training.iterations=7")
    (value,) = answer(runbook(*words))["values"]
    assert value["value"] == 7
    assert value["layers"][0]["value"] == 7
    assert len(value["layers"]) > 1
    keys = set(value) | set(value["layers"][0])
    assert keys <= documented(usage_of("why"))


def test_verify_names_a_changed_file_and_exits_1(runbook, made):
    assert answer(runbook("verify", "local", "--json"))["findings"] == []
    record = made / "records" / "01-environment.json"
    record.write_text(record.read_text().replace("2 cores", "9 cores"))
    content = answer(runbook("verify", "local", "--json"), code=1)
    assert record.name in {Path(finding["file"]).name for finding in content["findings"]}
    assert set(content) | set(content["findings"][0]) <= documented("verify RUN")


def test_every_command_with_the_option_is_on_the_page_and_no_other():
    with_option = set()
    for name in COMMANDS:
        command = load_command(name)
        for sub_name, sub in {"": command, **getattr(command, "commands", {})}.items():
            if any("--json" in option.opts for option in sub.params):
                with_option.add(f"{name} {sub_name}".strip())
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    named = {
        re.sub(r" [^a-z].*", "", word) for row in rows for word in re.findall("`([^`]+)`", row)
    }
    assert named == with_option
