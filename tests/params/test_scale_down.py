"""A run file for a cluster on a small machine: only what is impossible there changes, and each
change is reported.
"""

import shutil
from pathlib import Path

import pytest

from runbook.params import load, run_names
from runbook.params.messages import ParamsMessage, ScaleDownReason
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


def change(value: object, reason: str) -> str:
    """Return the message about a value that the local site cannot use."""
    return ParamsMessage.SCALED_DOWN.fill(value=value, site="local", reason=reason)


def test_each_change_says_what_was_asked_and_why():
    told = load("azure-175b", set_words=["site=local", "model=tiny"], project=CLONE).scaled_down()
    framework = ScaleDownReason.NO_SUCH_FRAMEWORK.fill(framework="megatron-lm")
    over_2_devices = ScaleDownReason.MODEL_OVER_DEVICES.fill(devices=2)
    no_more_nodes = ScaleDownReason.NO_MORE_NODES.fill()
    assert told == {
        "data.dataset": change("slimpajama", ScaleDownReason.CORPUS_IS_HERE.fill()),
        "data.drop_sources": change(
            "RedPajamaBook", ScaleDownReason.SOURCES_OF_THE_OTHER_TEXT.fill()
        ),
        "data.held_out": change(15, ScaleDownReason.CORPUS_HAS_FEW_FILES.fill()),
        "jobs.smoke.nodes": change(2, no_more_nodes),
        "jobs.training.nodes": change(16, no_more_nodes),
        "parallel.pipeline": change(16, over_2_devices),
        "parallel.tensor": change(8, over_2_devices),
        "training.framework": change("megatron-lm", framework),
        "training.precision": change("fp16", ScaleDownReason.NO_FP16_ON_A_CPU.fill()),
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["parallel.tensor=1"], ScaleDownReason.ONE_TENSOR_RANK),
        (["training.engine=deepspeed"], ScaleDownReason.NO_SEQUENCE_UNDER_DEEPSPEED),
    ],
)
def test_a_sequence_is_cut_only_where_tensor_ranks_are_left_for_it(words, reason):
    settings = load("azure-175b", set_words=["site=local", "model=tiny", *words], project=CLONE)
    assert not settings.run.parallel.sequence
    assert settings.scaled_down()["parallel.sequence"] == change(True, reason.fill())


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
    divides = ScaleDownReason.DIVIDES_BY.fill(step=2)
    assert settings.scaled_down()["training.global_batch"] == change(1, divides)


def test_the_local_run_itself_is_refused_where_it_does_not_fit():
    settings = load("local", set_words=["parallel.tensor=8", "site=local"], project=CLONE)
    assert settings.run.parallel.tensor == 8
    assert settings.scaled_down() == {}
