"""Values without a default are all listed together, or marked in capitals on request."""

from pathlib import Path

import pytest
from suite.messages import containing, has_rule, problem_of

from runbook.core.errors import ParamsError
from runbook.params import load, run_names
from runbook.params.messages import ParamsMessage
from runbook.params.settings import missing_values, require_values, with_placeholders

CLONE = Path(__file__).parents[2]
NEEDS = {
    "local": [],
    "lumi-13b": ["jobs.account", "jobs.stage"],
    "azure-175b": ["jobs.stage"],
    "polaris-25b": ["jobs.account", "jobs.stage"],
    "slurm-oscar": ["jobs.stage", "jobs.image"],
    "aws-pile-175b": ["data.bucket"],
}


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_each_site_names_what_it_needs(name):
    assert list(missing_values(load(name, project=CLONE))) == NEEDS[name]


def test_all_that_is_missing_is_listed_at_once():
    with pytest.raises(ParamsError) as caught:
        require_values(load("polaris-25b", project=CLONE))
    account = problem_of(caught.value, "jobs.account")
    assert account.where == ParamsMessage.REQUIRED_BY.fill(site="polaris")
    assert has_rule(account, ParamsMessage.REQUIRED_VALUE, meaning=containing("ALCF"))
    stage = problem_of(caught.value, "jobs.stage")
    assert stage.where == account.where
    assert has_rule(
        stage, ParamsMessage.REQUIRED_VALUE, remedy=containing("--set jobs.stage=VALUE")
    )
    assert caught.value.exit_code == 2


def test_given_values_reach_the_jobs_and_the_sites_paths():
    settings = load(
        "lumi-13b", set_words=["jobs.account=mine", "jobs.stage=/scratch/a b/"], project=CLONE
    )
    require_values(settings)
    assert settings.job("04-training").account == "mine"
    assert settings.site.paths["checkpoints"] == "/scratch/a b/checkpoints"
    assert settings.site.container.mounts == ["/scratch/a b"]
    assert (
        settings.site.frameworks["megatron-deepspeed"].folder == "/scratch/a b/Megatron-DeepSpeed"
    )


def test_a_phases_own_account_wins():
    words = ["jobs.account=mine", "jobs.training.account=yours"]
    settings = load("lumi-13b", set_words=words, project=CLONE)
    assert (settings.job("03-smoke-test").account, settings.job("04-training").account) == (
        "mine",
        "yours",
    )


def test_an_image_that_is_named_is_really_used():
    settings = load("azure-175b", set_words=["jobs.image=/mnt/nvme/pytorch.sqsh"], project=CLONE)
    assert settings.site.container.image == "/mnt/nvme/pytorch.sqsh"


def test_placeholders_mark_only_what_is_missing():
    settings = with_placeholders(
        load("lumi-13b", set_words=["jobs.stage=/scratch/x"], project=CLONE)
    )
    assert (settings.run.jobs.account, settings.run.jobs.stage) == (
        "GIVE_JOBS_ACCOUNT",
        "/scratch/x",
    )
    assert missing_values(settings) == {}


def test_another_starter_is_taken_for_the_run():
    settings = load("aws-pile-175b", set_words=["jobs.launcher=torchrun"], project=CLONE)
    assert settings.site.launcher == "torchrun"
    assert settings.job("04-training").tasks_per_node == 1


@pytest.mark.parametrize("name", [name for name in run_names(CLONE) if name != "local"])
def test_no_ones_account_bucket_or_home_stands_in_a_file(name):
    site = load(name, project=CLONE).site.site
    texts = [
        (CLONE / "params" / f"{name}.yaml").read_text(),
        (CLONE / "params" / "sites" / f"{site}.yaml").read_text(),
    ]
    for text in texts:
        for word in ("s3://f", "111122223333", "159553542841", "/users/", "/home/", "datascience"):
            assert word not in text
