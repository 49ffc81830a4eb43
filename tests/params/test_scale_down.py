"""A run file of a cluster on a small machine: only what cannot be there changes, and each change is told."""

import shutil
from pathlib import Path

import pytest

from runbook.params import load, run_names
from runbook.planning import make_plan

CLONE = Path(__file__).parents[2]
FIVE = [name for name in run_names(CLONE) if name not in ("local", "tour")]


@pytest.mark.parametrize("name", FIVE)
def test_every_documents_run_plans_here_with_a_small_model(name):
    settings = load(name, set_words=["site=local", "model=tiny"], project=CLONE)
    plan = make_plan(settings)
    assert {spec.parallel.world_size for spec in plan.phases.values()} == {2}
    assert settings.run.training.framework == "runbook"
    assert settings.run.data.dataset == "corpus"


@pytest.mark.parametrize("name", FIVE)
def test_nothing_changes_at_home(name):
    assert load(name, project=CLONE).scaled_down() == {}


def test_each_change_says_what_was_asked_and_why():
    told = load("azure-175b", set_words=["site=local", "model=tiny"], project=CLONE).scaled_down()
    assert told == {
        "data.dataset": "slimpajama does not fit site local: the text is not here; the shipped corpus is",
        "data.drop_sources": "RedPajamaBook does not fit site local: the sources are those of the other text",
        "data.held_out": "15 does not fit site local: the corpus has too few files; data.split cuts each",
        "jobs.smoke.nodes": "2 does not fit site local: it has no more nodes",
        "jobs.training.nodes": "16 does not fit site local: it has no more nodes",
        "parallel.pipeline": "16 does not fit site local: the model goes over 2 devices",
        "parallel.tensor": "8 does not fit site local: the model goes over 2 devices",
        "training.framework": "megatron-lm does not fit site local: it has no megatron-lm; our own trainer runs",
        "training.precision": "fp16 does not fit site local: torch has no fp16 training on a CPU",
    }


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["parallel.tensor=1"], "one tensor rank has the whole sequence"),
        (["training.engine=deepspeed"], "our own trainer cuts no sequence under DeepSpeed"),
    ],
)
def test_a_sequence_is_cut_only_where_tensor_ranks_are_left_for_it(words, why):
    settings = load("azure-175b", set_words=["site=local", "model=tiny", *words], project=CLONE)
    assert not settings.run.parallel.sequence
    assert settings.scaled_down()["parallel.sequence"] == f"True does not fit site local: {why}"


def test_the_queue_of_the_small_machine_itself_is_kept(tmp_path):
    shutil.copytree(CLONE / "params", tmp_path / "params")
    defaults = "defaults:\n  jobs:\n    smoke: {partition: workq}\n    training: {partition: workq, account: staff}\n"
    hardware = "hardware:\n  device: cpu\n  devices_per_node: 1\n  nodes: 2\n"
    text = f"site: small\ntitle: a small PBS\nscheduler: pbs\nlauncher: mpiexec\nrehearses: true\n{hardware}{defaults}"
    (tmp_path / "params" / "sites" / "small.yaml").write_text(text)
    words = ["site=small", "model=tiny", "jobs.data.nodes=1"]
    settings = load("polaris-25b", set_words=words, project=tmp_path)
    jobs = settings.run.jobs
    assert (jobs.smoke.partition, jobs.training.partition, jobs.training.account) == (
        "workq",
        "workq",
        "staff",
    )
    assert not any(key.endswith("partition") for key in settings.scaled_down())


def test_a_value_given_by_hand_is_kept_and_left_to_the_rules():
    words = ["site=local", "model=tiny", "parallel.tensor=4", "training.precision=fp16"]
    settings = load("azure-175b", set_words=words, project=CLONE)
    assert (settings.run.parallel.tensor, settings.run.training.precision) == (4, "fp16")
    assert not {"parallel.tensor", "training.precision"} & settings.scaled_down().keys()


def test_a_batch_that_does_not_divide_becomes_the_nearest_that_does():
    words = [
        "site=local",
        "model=tiny",
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "parallel.sequence=false",
    ]
    settings = load("polaris-25b", set_words=words, project=CLONE)
    assert settings.run.training.global_batch == 2
    assert (
        settings.scaled_down()["training.global_batch"]
        == "1 does not fit site local: it divides by 2"
    )


def test_the_local_run_itself_is_refused_where_it_does_not_fit():
    settings = load("local", set_words=["parallel.tensor=8", "site=local"], project=CLONE)
    assert settings.run.parallel.tensor == 8
    assert settings.scaled_down() == {}
