"""`init --model`: the values of a published training run, each with its source, in a complete run
file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suite.messages import says

from runbook import params
from runbook.cli.messages import CliMessage
from runbook.params.catalogues import read_models
from runbook.planning.advice import GPT3_LEARNING_RATES
from runbook.tools.site_setup.published_trainings import RECIPES, find_recipe


@pytest.mark.parametrize("model", RECIPES)
def test_a_recipe_is_a_whole_run_file_and_each_of_its_values_has_a_source(runbook, project, model):
    said = runbook("init", ".", "--model", model)
    assert (said.code, said.err) == (0, "")
    path = project / "params" / f"{model}.yaml"
    settings = params.load(model)
    recipe = RECIPES[model]
    for row in recipe.values:
        assert settings.value(f"training.{row.key}") == row.value, row.key
        assert f"  {row.key}: " in path.read_text() and row.source
    section = path.read_text().partition("training:\n")[2].partition("\njobs:")[0]
    values = [line for line in section.splitlines() if not line.startswith("  precision")]
    assert all(re.search(r"  # \S+", line) for line in values if line)


def test_gpt3_rates_are_the_papers_that_the_plan_warns_by():
    models = read_models(Path.cwd())
    rates = [value for _, value in GPT3_LEARNING_RATES]
    names = ["125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b"]
    found = []
    for name in names:
        values = {row.key: row.value for row in RECIPES[name].values}
        found.append(values["learning_rate"])
        assert values["global_batch"] == models.get(name).training["global_batch"]
    assert found == rates


def test_a_recipe_for_a_site_of_yours_is_named_after_both_and_never_replaced(runbook, project):
    flags = ("--scheduler", "slurm", "--device", "A100-40GB", "--devices-per-node", 4)
    said = runbook("init", ".", "--site", "oak", *flags, "--cores-per-node", 64, "--model", "1.3b")
    assert said.code == 0, said
    path = project / "params" / "oak-1.3b.yaml"
    assert "site: oak\n" in path.read_text()
    path.write_text("mine")
    again = runbook("init", ".", "--site", "oak", "--model", "1.3b")
    assert says(again.out, CliMessage.KEPT)
    assert path.read_text() == "mine"


def test_an_unknown_recipe_names_those_that_there_are(runbook, project):
    said = runbook("init", ".", "--model", "gpt-5")
    assert said.code == 2
    assert "llama-3-8b" in said.err
    assert find_recipe("LLAMA-3-8B").model == "llama-3-8b"
