"""`runbook nodes` adds, shows and forgives bad nodes."""

from __future__ import annotations

import json

from suite.messages import says

from runbook import params
from runbook.cli.messages import CliMessage


def test_a_node_is_added_with_a_reason_shown_and_forgiven(runbook):
    added = runbook(
        "nodes", "azure-175b", "--add", "ccw-hpc-7", "--because", "ECC errors", "--json"
    )
    (row,) = json.loads(added.out)
    assert (row["node"], row["found by"], row["evidence"]) == ("ccw-hpc-7", "person", "ECC errors")
    assert "ccw-hpc-7" in runbook("nodes", "azure-175b").out
    assert json.loads(runbook("nodes", "azure-175b", "--forgive", "all", "--json").out) == []
    assert says(runbook("nodes", "azure-175b").out, CliMessage.NO_BAD_NODE, site="azure")


def test_a_runs_folder_is_named_to_nodes_as_it_is_to_status(runbook, project):
    settings = params.load("azure-175b", set_words=["as=quick"])
    folder = project / "runs" / settings.name
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(settings.as_yaml())
    said = runbook("nodes", "azure-175b--quick")
    assert (said.code, says(said.out, CliMessage.NO_BAD_NODE, site="azure")) == (0, True), said.err


def test_a_site_that_is_one_machine_refuses_a_bad_node_instead_of_ignoring_it(runbook):
    said = runbook("nodes", "local", "--add", "n1", "--because", "ECC errors")
    assert (said.code, said.out) == (2, "")
    assert says(said.err, CliMessage.ONE_NODE_ALONE, site="local")


def test_the_age_of_a_new_entry_is_in_whole_seconds(runbook):
    runbook("nodes", "azure-175b", "--add", "n1", "--because", "ECC errors")
    (row,) = json.loads(runbook("nodes", "azure-175b", "--json").out)
    assert "." not in row["age"]


def test_a_node_without_a_reason_is_wrong_usage(runbook):
    assert runbook("nodes", "azure-175b", "--add", "n1").code == 2
