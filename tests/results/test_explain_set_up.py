"""Causes that lie in a training's set-up or its measurement, and causes that are usual for a kind of training."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.measured import measured_parts
from runbook.tools.speed.signs import signs
from runbook.tools.speed.suspects import LISTED_CAUSES, suspects
from runbook.tools.speed.usual_causes import usual_causes


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


def _named(text: str) -> list[str]:
    """Return the names of the causes that a text's words name."""
    return [part.name for part in signs(text, reached=1.0)]


def _usual(text: str, *named: str) -> list[str]:
    """Return the names of the causes that are usual for a text's kind of training."""
    return [part.name for part in usual_causes(text, {}, named)]


def _first_causes(text: str, models) -> list[str]:
    """Return the first causes of a whole answer."""
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
        ("training is slow", ["data wait", "no device", "host"]),
        ("training is slow, the power draw is 300 W", ["data wait", "host", "micro-batch"]),
        ("slow with more GPUs", ["communication", "DataParallel", "data wait"]),
        ("slow with DDP", ["communication", "data wait", "no device"]),
        ("slow on multiple nodes", ["network", "data wait", "no device"]),
        ("slow compared to the paper", ["unequal work", "data wait", "no device"]),
        ("the MFU is low", ["FLOPs convention", "data wait", "host"]),
        ("slow on a 3080ti GPU", ["data wait", "no device", "host"]),
    ],
)
def test_a_complaint_has_the_causes_that_are_usual_for_its_kind_of_training(text, causes):
    assert _usual(text) == causes


def test_a_newer_device_that_is_slower_may_be_faulty_or_lack_its_software():
    text = "the H100 is slower than the A800, 8 GPUs"
    assert [part.name for part in suspects(text, {}, [])] == ["software version", "stragglers"]
    healthy = "the H100 is faster than the A800, 8 GPUs"
    assert [*suspects(healthy, {}, [])] == []


def test_usual_causes_fill_an_answer_and_no_more():
    assert _usual("training is slow", "saves", "host") == ["data wait"]
    assert len(_usual("slow with more GPUs on multiple nodes")) == LISTED_CAUSES
    assert _usual("training is slow", "saves", "host", "network") == []


def test_a_question_about_speed_has_usual_causes():
    assert _usual("why is one T4 faster?") == ["data wait", "no device", "host"]
    assert _usual("one T4 is faster.") == []
    assert _usual("where is the log?") == []


def test_usual_causes_take_no_time_and_are_suspected():
    parts = [*usual_causes("training is slow", {}, [])]
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
    assert "unequal work" in [part.name for part in suspects(text, {}, [])]
    healthy = "multi-GPU is faster. batch size 280 on 1 and on 8 GPUs."
    assert "unequal work" not in [part.name for part in suspects(healthy, {}, [])]


@pytest.mark.parametrize("figure", ["53k", "53K", "53,000"])
def test_thousands_of_tokens_are_read_however_they_are_written(figure):
    facts = read_facts(f"{figure} tok/s on 8 H100", {})
    assert float(facts["reached.tokens_per_second"]) == 53000


def test_the_times_that_iterations_took_are_step_times():
    lines = [f"2024-01-01 05:5{n}: Iteration took {30 + n}.5 s." for n in range(6)]
    steady, _ = measured_parts("\n".join(lines), parse_lines([]), {})
    assert steady > 0
