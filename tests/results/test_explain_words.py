"""Words with which engineers name the cause of slow steps, and words that only look like it."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.measured import measured_parts
from runbook.tools.speed.signs import distinct_lines, signs


def _causes(text: str) -> list[str]:
    """Return the names of the causes that a text's words name."""
    return [part.name for part in signs(text, reached=1.0)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("the network is a plain 1 GbE", "network"),
        ("two nodes over AWS EFA, and it is slow", "network"),
        ("our nodes are spread over several switches", "network"),
        ("RoCE was congested by another job", "network"),
        ("gradients are reduced after every micro-batch", "communication"),
        ("DDP synchronizes gradients on each backward", "communication"),
        ("with 2 GPUs the speed is the same", "communication"),
        ("four A100 are slower than one", "communication"),
        ("the cards are PCIe", "communication"),
        ("the communication overhead is large", "communication"),
        ("our dataset sits on NFS", "data wait"),
        ("tokenization happens on the fly", "data wait"),
        ("reading the shards is slow", "data wait"),
        ("somebody changed num_workers to 0", "data wait"),
        ("it freezes after every 8 workers", "data wait"),
        ("all ranks are bound to the same core", "host"),
        ("srun --cpus-per-task=1", "host"),
        ("only one core is busy", "host"),
        ("the loss is read with .item() in every step", "host"),
        ("FSDP with cpu_offload", "offload"),
        ("states are swapped to NVMe", "offload"),
        ("dynamo recompiles the model for each length", "compilation"),
        ("there are 12 graph breaks", "compilation"),
        ("the profile is full of cudaMalloc", "memory"),
        ("3 pytorch allocator cache flushes since last step", "memory"),
        ("two thirds of the tokens are padding", "padding"),
        ("texts are padded to the maximum length", "padding"),
        ("mixed precision is off", "precision"),
        ("fp16 is not faster", "precision"),
        ("we run bf16 on V100", "precision"),
        ("fused kernels are not installed", "kernels"),
        ("the time to save a checkpoint is long", "saves"),
        ("we evaluate every 20 steps", "evaluation"),
        ("evaluation every 20 steps", "evaluation"),
        ("garbage collection stalls one rank", "garbage collection"),
        ("the step has a large bubble", "pipeline bubble"),
        ("the bubble takes 30 %", "pipeline bubble"),
        ("validation takes 40 s", "evaluation"),
        ("there are periodic dips in throughput", "garbage collection"),
        ("one of the 16 GPUs is hot", "stragglers"),
        ("HW Thermal Slowdown : Active", "stragglers"),
        ("a few nodes are slower", "stragglers"),
        ("throughput drops steadily", "growing steps"),
        ("160 % MFU", "FLOPs convention"),
        ("training on two GPU nodes is slower", "network"),
        ("eth0 has 1000Mb/s", "network"),
        ("with two machines we see no linear speedup", "network"),
        ("the GPUs are idle between epochs", "data wait"),
        ("after each epoch it waits", "data wait"),
        ("the MFU is relative to the TF32 peak", "FLOPs convention"),
        ("pipeline parallelism is slower", "pipeline bubble"),
        ("tensor parallelism over 16 makes it slow", "layout"),
        ("the MoE is slower than a dense model", "token dispatch"),
        ("GPU utilization drops to 0 and rises again", "data wait"),
        ("normal with 1-6 cards, slow with 8 cards", "stragglers"),
        ("after a restart the speed recovers", "growing steps"),
        ("the first steps are slow with torch.compile", "compilation"),
    ],
)
def test_a_cause_in_other_words_is_named(text, cause):
    assert _causes(text) == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "8 H100 with NVLink and 8x 400 Gb/s InfiniBand",
        "the network is fine",
        "nodes are under one switch",
        "gradients are reduced once a step",
        "two GPUs are faster than one",
        "the loader is not slow",
        "num_workers: 8",
        "we tokenized everything before training",
        "the dataset has 300 B tokens",
        "each rank has 8 cores of its own",
        "the loss is read every 100 steps",
        "CPU offload is off",
        "cpu_offload: false",
        "compiled once, without recompilation",
        "no graph breaks",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "documents are packed, without padding",
        "pad_to_max_length: false",
        "mixed precision is on",
        "bf16 is faster than fp32",
        "V100 with fp16",
        "fused kernels are installed",
        "saves take little",
        "evaluation every 1000 steps",
        "eval_interval: 50",
        "garbage collection every 100 steps",
        "OverSubscribe=OK NumNodes=2",
        "recompile Apex for this CUDA",
        "matrices, attention, pipeline bubble, optimizer",
        "the loss has periodic loss spikes",
        "all 16 GPUs run at the same clock",
        "SW Power Cap : Not Active",
        "HW Slowdown : Not Active",
        "throughput stays equal over time",
        "41 % MFU, 100 % of the GPUs used",
        "loss drops steadily",
        "the data pipeline is fast",
        "pipeline parallelism over 4 stages",
        "tensor parallelism is fast",
        "utilization is 100 %",
        "normal with 8 cards",
        "the MFU is relative to the bf16 peak",
    ],
)
def test_words_of_a_healthy_training_name_no_cause(text):
    assert _causes(text) == []


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("8 H100, TFLOPS=33", "reached.tflops", "33"),
        ("TFLOPs/GPU: 120.5", "reached.tflops", "120.5"),
        ("wps is only around 200", "reached.tokens_per_second", "200"),
        ("tps: 2,793", "reached.tokens_per_second", "2793"),
        ("pipe-parallel-size=4", "pp", "4"),
        ("--per_device_train_batch_size 2", "micro_batch", "2"),
        ("train_configs/llama3_70b.toml", "model", "70b"),
    ],
)
def test_figures_are_read_as_programs_print_them(text, name, value):
    assert read_facts(text, {})[name] == value


@pytest.mark.parametrize(
    ("text", "suspected"),
    [
        ("llama 70B on 32 H200, 200 tokens/s", True),
        ("llama 70B on 32 H200, 1200 tokens/s", False),
        ("llama 7B on 8 H200, 2000 tokens/s", False),
        ("llama 70B on 32 H200, 200 tokens/s, num_workers: 0", False),
    ],
)
def test_the_network_of_several_nodes_is_suspected_if_nothing_else_is_named(
    models, text, suspected
):
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    assert ("network" in {part.name for part in explained.parts}) == suspected


def test_a_step_with_several_micro_batches_does_not_compare_with_a_reported_one():
    text = "we have 560 ms per step, the readme reports 150 ms per step, grad accum 5"
    assert _causes(text) == ["gradient accumulation"]
    assert _causes(text.replace("grad accum 5", "8 A100")) == []
    assert _causes(text.replace("the readme reports", "yesterday")) == []


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ("", set()),
        (", micro batch 1", {"micro-batch"}),
        (", TP 8", {"layout"}),
        (", PP 8, TP 1, GBS 8", {"layout", "pipeline bubble"}),
    ],
)
def test_an_assumed_layout_or_batch_is_never_blamed(models, words, blamed):
    """Without a stated micro-batch, the model assumes one; it is then no cause."""
    text = f"Llama 7B on 8 H100{words}"
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    causes = {part.name for part in explained.parts}
    assert causes & {"micro-batch", "layout", "pipeline bubble"} == blamed


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("64 H100. 2 GPUs run slower", "64"),
        ("128 H100. 3 GPUs are hot", "128"),
        ("8 GPUs are used", "8"),
        ("7B on one H100", "1"),
        ("with a single A100", "1"),
        ("64 H100, slower than on one H100", "64"),
        ("2 nodes of 8 A100. 1 GPU fails", "16"),
    ],
)
def test_some_of_the_devices_are_not_all_of_them(text, devices):
    assert read_facts(text, {})["n_accel"] == devices


@pytest.mark.parametrize("text", ["using one GPU per node", "one GPU is slower"])
def test_a_single_device_in_passing_is_no_count(text):
    assert "n_accel" not in read_facts(text, {})


def test_the_words_of_a_long_log_are_read_once():
    """Patterns read each kind of line once, however many steps a log has."""
    steps = [
        f" iteration {n} | elapsed time (ms): 94{n % 90}.4 | lm loss: 2.1 |" for n in range(999)
    ]
    text = "\n".join(["num_workers: 0", *steps, "one of the 16 GPUs is hot"])
    assert len(distinct_lines(text).splitlines()) < 12
    assert sorted(_causes(text)) == ["data wait", "stragglers"]


def _printed(label: str, times: list[float]) -> str:
    return "\n".join(f"{label} {seconds:.4f}" for seconds in times)


def test_times_of_an_unknown_training_loop_are_read():
    steady, parts = measured_parts(
        _printed("Iteration duration:", [0.008, 0.05, 0.008, 0.008, 0.008, 0.008]),
        parse_lines([]),
        {},
    )
    assert steady == pytest.approx(0.008)
    assert [part.name for part in parts] == ["slow steps"]
    assert parts[0].seconds == pytest.approx(0.042 / 6)


def test_a_short_excerpt_whose_steps_always_take_longer_grows():
    steady, parts = measured_parts(
        _printed("step time:", [0.5, 0.55, 0.6, 0.62, 0.64]), parse_lines([]), {}
    )
    assert steady == 0.5
    assert [part.name for part in parts] == ["growing steps"]


def test_four_lines_of_an_unknown_loop_are_too_few():
    text = _printed("step time:", [0.5, 0.5, 0.9, 0.5])
    assert measured_parts(text, parse_lines([]), {}) == (0.0, [])


def test_the_wait_for_data_of_other_loops_is_read():
    _, parts = measured_parts("time (ms) | batch_input: 3281.20", parse_lines([]), {})
    assert [(part.name, part.seconds) for part in parts] == [("data wait", pytest.approx(3.2812))]
    _, parts = measured_parts("Time 0.470 (1.206) Data 0.076 (0.004) Loss 3.2", parse_lines([]), {})
    assert [(part.name, part.seconds) for part in parts] == [("data wait", 0.076)]
