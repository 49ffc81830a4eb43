"""Causes in how a training run is set up or measured, and causes common to a kind of training run."""

from __future__ import annotations

import math

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.measured import measured_parts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.signs import signs
from runbook.tools.speed.suspects import LISTED_CAUSES, ranked_suspects
from runbook.tools.speed.usual_causes import TrainingKind, log_shares, setting_of


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


def _named(text: str) -> list[str]:
    """Return the names of the causes that a text mentions."""
    return [part.name for part in signs(text, reached=1.0)]


def _usual(text: str) -> list[str]:
    """Name the most likely causes for the kind of training run described in a text."""
    return [suspect.part.name for suspect in ranked_suspects(text, {})][:LISTED_CAUSES]


def _first_causes(text: str, models) -> list[str]:
    """Return the first causes of a complete answer."""
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    return explained.as_dict()["first_causes"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("model = nn.DataParallel(model)", "DataParallel"),
        ("we wrap the model in DataParallel", "DataParallel"),
        ("Trainer(strategy='dp')", "DataParallel"),
        ("the example uses only DP", "DataParallel"),
        ("load with device_map='auto'", "layout"),
        ("only one GPU works at a given time", "layout"),
        ("detect_anomaly=True", "debug option"),
        ("torch.autograd.set_detect_anomaly(True)", "debug option"),
        ("we train with anomaly detection", "debug option"),
        ("NaN detection is turned on", "debug option"),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "debug option"),
        ("enabling checkpoint debug makes it crawl", "debug option"),
        ("the profiler is on", "debug option"),
        ("torch.use_deterministic_algorithms(True)", "debug option"),
        ("a larger batch size makes a step slower", "unequal work"),
        ("training is slower when I set batch size to 4 compared with 1", "unequal work"),
        ("it prints source tokens/s, the paper has target tokens/s", "unequal work"),
        ("throughput keeps increasing in the first hour", "warm-up"),
        ("the first 5 steps are slow", "warm-up"),
        ("DDP is slower than a single GPU", "communication"),
        ("find_unused_parameters=True", "communication"),
        ("Our suggested max number of worker in current system is 4", "host"),
        ("the CPU is being used", "no device"),
        ("the GPU is not used", "no device"),
        ("another job is running on the same GPU", "slow steps"),
        ("other users train on this node", "slow steps"),
        ("mfu: 337.59", "FLOPs convention"),
        ("a wrong MFU", "FLOPs convention"),
        ("every micro-step runs the full gradient reduction", "communication"),
        ("it is using shared GPU memory", "memory"),
        ("the time of an update is continuously growing", "growing steps"),
        ("a slowdown from 1.6 to 1.7.1", "software version"),
    ],
)
def test_the_words_of_a_set_up_name_its_cause(text, cause):
    assert _named(text) == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "DistributedDataParallel(model)",
        "torch.nn.parallel.DistributedDataParallel with 8 ranks",
        "FullyShardedDataParallel wraps each block",
        "we use DDP instead of DataParallel",
        "Trainer(strategy='ddp')",
        "tensor, DP and pipeline",
        "device_map={'': rank}",
        "every GPU works at all times",
        "training is slower with dropout, batch size 4",
        "detect_anomaly=False",
        "set_detect_anomaly(False)",
        "anomaly detection is off",
        "there is no NaN detection",
        "TORCH_DISTRIBUTED_DEBUG=INFO",
        "NCCL_DEBUG=WARN",
        "the profiler is off",
        "use_deterministic_algorithms(False)",
        "a larger batch size makes the loss drop",
        "a larger batch size gives more tokens/s",
        "throughput is steady",
        "the first steps write a checkpoint",
        "DDP is faster than a single GPU",
        "find_unused_parameters=False",
        "the CPU is idle",
        "the GPU is used by every rank",
        "no other jobs are running on this node",
        "mfu: 41.2",
        "mfu 512 GPUs",
        "no wrong MFU",
        "the last micro-step runs the gradient reduction",
        "kernels use shared memory",
        "the time of an update is steady",
        "the slower steps fall from 5.1 to 3.2 s",
        "an upgrade from 1.6 to 1.7.1",
    ],
)
def test_the_words_of_a_healthy_set_up_name_no_cause(text):
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("training is slow", ["data wait", "no device", "unequal work"]),
        ("training is slow, nvidia-smi shows 9 GB", ["data wait", "unequal work", "host"]),
        ("slow with more GPUs", ["unequal work", "communication", "data wait"]),
        ("slow with DDP", ["unequal work", "communication", "data wait"]),
        ("slow on multiple nodes", ["network", "communication", "unequal work"]),
        ("slow compared to the paper", ["data wait", "unequal work", "no device"]),
        ("the MFU is low", ["FLOPs convention", "data wait", "unequal work"]),
        ("slow on a 3080ti GPU", ["data wait", "no device", "unequal work"]),
        ("our GPT is slow", ["unequal work", "micro-batch", "recompute"]),
        ("slow images", ["data wait", "no device", "unequal work"]),
    ],
)
def test_a_complaint_has_the_causes_that_are_usual_for_its_kind_of_training(text, causes):
    assert _usual(text) == causes


def test_a_newer_device_that_is_slower_may_be_faulty_or_lack_its_software():
    text = "the H100 is slower than the A800, 8 GPUs"
    assert _usual(text)[0] == "stragglers"
    assert "software version" in [
        suspect.part.name for suspect in ranked_suspects(text, {}) if suspect.has_sign
    ]
    assert _usual("the H100 is faster than the A800, 8 GPUs") == []


def test_the_shares_of_a_setting_add_up_to_one():
    for setting in TrainingKind:
        assert sum(map(math.exp, log_shares(setting).values())) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("slow on two nodes of 8 gpus", TrainingKind.NODES),
        ("bert on 8 gpus", TrainingKind.DEVICES),
        ("bert on one gpu", TrainingKind.TEXT),
        ("a resnet on one gpu", TrainingKind.ANY),
    ],
)
def test_the_setting_with_the_most_devices_decides(text, setting):
    assert setting_of(text, {}) is setting


def test_a_cause_is_likelier_where_more_threads_accepted_it():
    """More nodes point to the network, and a single device points to the data loader."""
    nodes = log_shares(TrainingKind.NODES)
    one_device = log_shares(TrainingKind.ANY)
    assert math.exp(nodes["network"]) > 0.5 > 0.1 > math.exp(nodes["data wait"])
    assert math.exp(one_device["data wait"]) > 0.3 > 0.02 > math.exp(one_device["network"])


@pytest.mark.parametrize(
    "text",
    [
        "Why is one T4 faster?",
        "An epoch takes 9 hours. Is this normal?",
        "How long does it take to train this model?",
        "The training needs 3 days. I wonder what the problem is",
        "I get 560 ms per iteration, does that sound reasonable?",
    ],
)
def test_a_question_about_speed_has_usual_causes(text):
    assert len(_usual(text)) == LISTED_CAUSES


@pytest.mark.parametrize(
    "text",
    [
        "one T4 is faster.",
        "where is the log?",
        "What is a step?",
        "An epoch takes 9 hours, as planned.",
        "How many tokens were trained in the 7B model?",
        "Is the effective batch size 8 times the 3584 tokens?",
        "Why does the loss rise after 3 hours of training?",
    ],
)
def test_a_question_about_another_subject_has_none(text):
    assert _usual(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("GRPO is slow", "generation"),
        ("slow with gradient_accumulation_steps=32", "gradient accumulation"),
        ("it is slow with torch==1.11 and fast with torch==1.12", "software version"),
        ("slow on a TPU", "compilation"),
        ("QLoRA is slow", "kernels"),
        ("gradient checkpointing, and it is slow", "recompute"),
        ("why is a small GPT slow?", "host"),
        ("we use flash attention; a step is slow", "flash attention"),
        ("is it slower than fairseq?", "unequal work"),
        ("the GPU is underutilized", "micro-batch"),
        ("slow; nvidia-smi has 316 / 12036 MB", "micro-batch"),
        ("slow on an MI300X", "software version"),
    ],
)
def test_a_sign_of_the_set_up_raises_its_cause(text, cause):
    assert cause in [suspect.part.name for suspect in ranked_suspects(text, {}) if suspect.has_sign]


def test_a_step_that_takes_the_planned_time_is_compared_with_other_work():
    text = "it is slow on two GPUs"
    as_planned = [suspect.part.name for suspect in ranked_suspects(text, {}, slowdown=1.1)]
    assert as_planned[0] == "unequal work"
    alone = "it is slow"
    assert ranked_suspects(alone, {}, slowdown=1.1)[0].part.name == "unequal work"
    assert ranked_suspects(alone, {}, slowdown=2.0)[0].part.name == "data wait"


def test_a_parts_symptom_raises_the_causes_of_its_effect():
    symptom = GapPart(
        "slow steps",
        0.0,
        "it says so",
        "",
        is_printed=True,
        same_effect=("saves",),
    )
    ranked = ranked_suspects("it is slow", {}, [symptom])
    names = [suspect.part.name for suspect in ranked]
    assert ranked[0].part is symptom
    assert names.index("saves") < names.index("software version")


def test_suspects_take_no_time():
    parts = [suspect.part for suspect in ranked_suspects("training is slow", {})]
    assert parts
    assert all(part.is_suspected and part.seconds == 0 for part in parts)


def test_no_usual_cause_stands_beside_a_cause_that_the_text_names(models):
    assert _first_causes("training is slow; num_workers=0", models) == ["data wait"]
    assert len(_first_causes("training is slow", models)) == LISTED_CAUSES


@pytest.mark.parametrize(
    "text",
    [
        "It reaches 46,000 tokens/s and 40 % MFU.",
        "Llama 3 8B on 64 H100: 9,800 tokens/s per GPU, MFU 41 %, loss 2.31.",
        "Two nodes are as fast per GPU as one node.",
        "Throughput on 8 GPUs is 7.9 times that of one GPU.",
        "We train a 7B model on 256 A100 with ZeRO 1; a step takes 8.1 s, as planned.",
        "GPU utilization is 98 % and the loader has 8 workers per rank.",
        "The memory does not increase. There is no difference between the losses of FSDP and DDP.",
    ],
)
def test_figures_without_a_complaint_have_no_cause(text, models):
    assert _first_causes(text, models) == []


def test_more_devices_without_gain_may_have_a_larger_batch():
    text = "multi-GPU is not faster. batch size 280 on 1 and on 8 GPUs."
    assert "unequal work" in _usual(text)
    assert _usual("multi-GPU is faster. batch size 280 on 1 and on 8 GPUs.") == []


@pytest.mark.parametrize("figure", ["53k", "53K", "53,000"])
def test_thousands_of_tokens_are_read_however_they_are_written(figure):
    facts = read_facts(f"{figure} tok/s on 8 H100", {})
    assert float(facts["reached.tokens_per_second"]) == 53000


def test_the_times_that_iterations_took_are_step_times():
    lines = [f"2024-01-01 05:5{n}: Iteration took {30 + n}.5 s." for n in range(6)]
    steady, _ = measured_parts("\n".join(lines), parse_lines([]), {})
    assert steady > 0
