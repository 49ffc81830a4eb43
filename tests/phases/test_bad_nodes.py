"""Nodes that are known to be bad: recorded with evidence, excluded from the next job, expired and
forgiven.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, says
from toy_run import PROJECT

from runbook import params
from runbook.jobs.render.slurm_scripts import SlurmScripts
from runbook.next_job.attempts import blamed_nodes
from runbook.phases.job_control.ended_jobs import nodes_with_alarms
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers
from runbook.phases.p01_environment.preflight.placed_check import PlacedRule, PreflightCheck
from runbook.phases.p01_environment.preflight.run_preflight import (
    PreflightResult,
    RungResult,
    _report_bad_nodes,
)
from runbook.plan_file.bad_node_lifetimes import FoundBy
from runbook.results.failures.finder import find_cause, find_failures
from runbook.runs.bad_nodes import (
    Exclusion,
    bad_nodes_file,
    choose_exclusion,
    forgive_nodes,
    read_bad_nodes,
    report_bad_nodes,
    without_bad_nodes,
)
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import RUNS_VARIABLE


@pytest.fixture
def settings(tmp_path: Path, monkeypatch) -> params.Settings:
    """Return the settings of a run on a Slurm site with sixteen nodes."""
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    loaded = params.load("azure-175b", set_words=["jobs.stage=/lustre"], project=PROJECT)
    hardware = loaded.site.hardware.model_copy(update={"nodes": 16})
    return replace(loaded, site=loaded.site.model_copy(update={"hardware": hardware}))


def nodes_of(settings: params.Settings, now: float | None = None) -> list[str]:
    entries = read_bad_nodes(bad_nodes_file(settings), now or time.time())
    return [entry.node for entry in entries]


def test_a_bad_node_is_left_out_of_the_next_job_until_it_is_forgiven(settings):
    report_bad_nodes(settings, ["n3", "n7"], FoundBy.FAILURE, "Xid 79", "04-training")
    changed, exclusion = without_bad_nodes(settings, nodes_wanted=8)
    lines = SlurmScripts().directives(changed, "04-training", changed.job("04-training"))
    assert "#SBATCH --exclude=n3,n7" in lines
    assert (
        says(exclusion.as_text(), RunMessage.LEFT_OUT, nodes=containing("n3 (failure,"))
        and "Xid 79" in exclusion.as_text()
    )
    assert forgive_nodes(bad_nodes_file(settings), ["n3", "n9"]) == ["n3"]
    assert nodes_of(settings) == ["n7"]
    report_bad_nodes(settings, ["n3"], FoundBy.PREFLIGHT, "slow core", "")
    assert nodes_of(settings) == ["n7", "n3"], "what is found after it was forgiven counts again"
    assert forgive_nodes(bad_nodes_file(settings), []) == ["n3", "n7"]
    assert without_bad_nodes(settings, 8) == (settings, exclusion.__class__())


def test_an_entry_expires(settings):
    (entry,) = report_bad_nodes(settings, ["n1"], FoundBy.SLOW_RANK, "1.8 times", "04-training")
    assert nodes_of(settings, entry.expires - 1) == ["n1"]
    assert nodes_of(settings, entry.expires + 1) == []


def test_no_node_is_left_out_where_too_few_would_stay_or_the_queue_cannot(settings):
    entries = report_bad_nodes(settings, ["n1"], FoundBy.FAILURE, "Xid 79", "")
    exclusion = choose_exclusion(settings, entries, nodes_wanted=16)
    assert not exclusion.left_out and says(
        exclusion.as_text(), RunMessage.NODES_NEEDED, wanted=16, total=16
    )
    pbs = replace(settings, site=settings.site.model_copy(update={"scheduler": "pbs"}))
    assert says(choose_exclusion(pbs, entries, 2).as_text(), RunMessage.PBS_LEAVES_OUT_NO_NODE)


def test_a_site_of_one_machine_keeps_none(settings):
    local = replace(settings, site=settings.site.model_copy(update={"scheduler": "local"}))
    assert report_bad_nodes(local, ["n1"], FoundBy.FAILURE, "Xid 79", "") == []


def test_entries_of_a_site_that_had_a_queue_leave_out_no_node_of_one_machine(settings):
    report_bad_nodes(settings, ["n1"], FoundBy.FAILURE, "Xid 79", "")
    local = replace(settings, site=settings.site.model_copy(update={"scheduler": "local"}))
    assert nodes_of(local) == ["n1"]
    assert without_bad_nodes(local, 1) == (local, Exclusion())


def test_a_failure_that_another_node_would_not_have_names_the_node_of_its_line():
    lines = ["n7: NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."]
    cause = find_cause(find_failures(lines))
    assert cause is not None and cause.host == "n7"
    assert blamed_nodes(cause, ["n6", "n7"]) == ("n7",)
    assert blamed_nodes(cause, ["n1", "n2"]) == (), "a host that is not a node of the job"


def test_a_slow_or_wrong_rank_names_its_node():
    slow = "2.1 s, the others 1.0 s"
    corrupt = "4 of 4"
    events = [
        {"event": "submitted", "job": "04-training"},
        {"event": "alarm", "kind": "slow rank", "rank": 11, "evidence": slow},
        {"event": "alarm", "kind": "spike", "rank": 0},
        {"event": "alarm", "kind": "persistent corruption", "rank": 17, "evidence": corrupt},
        {"event": "alarm", "kind": "transient corruption", "rank": 18, "evidence": "1 of 4"},
    ]
    assert nodes_with_alarms(events, "04-training", ["n1", "n2", "n3"], 8) == {
        "n2": (FoundBy.SLOW_RANK, slow),
        "n3": (FoundBy.CORRUPTION, corrupt),
    }
    assert set(nodes_with_alarms(events, "04-training", ["n1", "n2"], 8)) == {"n2"}
    # The nodes are those of the last attempt, and so are the alarms that name one.
    attempt = {"event": "attempt_began", "job": "04-training"}
    both = [events[0], attempt, *events[1:], attempt]
    assert nodes_with_alarms(both, "04-training", ["n1", "n2", "n3"], 8) == {}


def test_a_check_that_blames_some_nodes_is_kept_and_one_that_blames_all_is_not(settings):
    rule = PlacedRule(PreflightCheck.SLOW_CORE, "a rule", "a remedy")
    locked = PlacedRule(PreflightCheck.LOCKED_MEMORY, "a rule", "a remedy")
    both = locked.broken("64 KiB", ["n1", "n2"])
    slow = rule.broken("core 3", ["n2"])
    # Users can end their own program immediately.
    program = PlacedRule(PreflightCheck.FOREIGN_PROGRAMS, "a rule").broken("process 7", ["n1"])
    rung = RungResult("hosts", (slow, both, program), 1.0)
    answers = JobAnswers(("n1", "n2"))
    _report_bad_nodes(settings, PreflightResult((rung,)), answers, "01-environment-preflight")
    (entry,) = read_bad_nodes(bad_nodes_file(settings), time.time())
    assert (entry.node, entry.evidence) == ("n2", f"{slow.name}: {slow.value}")
    assert entry.found_by is FoundBy.PREFLIGHT
