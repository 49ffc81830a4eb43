"""Words that engineers use for the cause of slow steps, and words that only look like them."""

from __future__ import annotations

import time

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.measured import measured_parts
from runbook.tools.speed.signs import distinct_lines, signs


def _causes(text: str) -> list[str]:
    """Return the names of the causes that a text mentions."""
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
        ("cpu_offloading: True", "offload"),
        ("cpu_offload_optimizer=True", "offload"),
        ("TransformerConfig(cpu_offloading=True, cpu_offloading_num_layers=4)", "offload"),
        ("FSDP with CPUOffload(offload_params=True)", "offload"),
        ("we use ZeRO-Infinity", "offload"),
        ("bf16 on a GTX 1080", "precision"),
        ("bf16 on eight 1080 Ti", "precision"),
        ("our V100 train in bf16", "precision"),
        ("fp16 is not faster than fp32", "precision"),
        ("num_workers: 8\nnum_workers: 0", "data wait"),
        ("utilization: 95 %\nutilization: 0 %", "data wait"),
        ("GPU utilization jumps between 97 % and 0 %", "data wait"),
        ("GPU utilization drops from 97 % to 0", "data wait"),
        ("our dataset, which has 3 TB, is on NFS", "data wait"),
        ("--cpus-per-task=8\n--cpus-per-task=1", "host"),
        ("all ranks are pinned to the same 8 cores", "host"),
        ("MFU 41 %\nMFU 160 %", "FLOPs convention"),
        ("GPU 0 throttled", "stragglers"),
        ("rank 0 recompiles", "compilation"),
        ("30 recompiles", "compilation"),
        ("recompiles: 0.5 each step", "compilation"),
        ("the cards are PCIe, without NVLink", "communication"),
        ("the network is 1 GbE instead of InfiniBand", "network"),
        ("nodes have 1 GbE: NCCL does not find InfiniBand", "network"),
        ("the job runs across several dragonfly groups", "network"),
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
        "cpu_offloading: False",
        "cpu_offload_optimizer=False",
        "TransformerConfig(cpu_offloading=False, cpu_offloading_num_layers=0, "
        "cpu_offloading_activations=True)",
        "CPUOffload(offload_params=False)",
        "cpu offload not used",
        "CPU offload: never",
        "ZeRO-Infinity is not used",
        "Swap is off, checkpoints go to NVMe",
        "bf16 on 8 H100 with a global batch of 1080 sequences",
        "bf16, 8 H100, a step takes 1050 ms",
        "A V100 baseline exists; we now train in bf16 on H100",
        "bf16 on H100 is faster than on V100",
        "fp16 is not faster than bf16 here",
        "There is no padding",
        "the share of padding is 0 %",
        "documents are packed instead of padding",
        "0 graph breaks, 0 recompiles",
        "Recompiles: 0",
        "Allocation retries 0",
        "fragmentation of memory is 0",
        "GPU util 97 %, ecc errors 0 %",
        "utilization is 99 % and swap usage is 0 %",
        "tokens live on local NVMe, home on nfs",
        "loading data takes 2 s, and the learning rate is limited",
        "read the data once; loss fluctuates",
        "Each rank is pinned to 8 CPU cores",
        "All cards are PCIe Gen5 host attached with NVLink",
        "no NVLink problems",
        "The cluster is a dragonfly with 200 Gb/s Slingshot",
        "Management is by 1 GbE, training by 8x400G InfiniBand",
        "InfiniBand is fine, and the loss falls slowly",
        "tensor parallel 8; the loss is slowly falling",
        "with tensor parallelism the loss is slowly falling",
        "garbage collection takes 0 s",
        "throttling: none",
        "0 GPUs throttled",
        "the bubble takes 0 %",
        "a checkpoint takes 0 s",
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
    """If a text states no micro-batch, the model assumes one, which must not be named as a cause."""
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
        ("NVIDIA reports 180 TFLOP/s on 1024 A100. Our 64 A100 reach 120", "64"),
        ("A blog has 128 A100. 64 A100 reach 120 TFLOP/s", "64"),
        ("8 GPUs; 1 GPU fails", "8"),
        ("8 GPUs; 1 GPU gets hot", "8"),
        ("64 H100. 16 GPUs run slower", "64"),
    ],
)
def test_some_of_the_devices_are_not_all_of_them(text, devices):
    assert read_facts(text, {})["n_accel"] == devices


@pytest.mark.parametrize("text", ["using one GPU per node", "one GPU is slower"])
def test_a_single_device_in_passing_is_no_count(text):
    assert "n_accel" not in read_facts(text, {})


def test_the_words_of_a_long_log_are_read_once():
    """Patterns process each kind of line once, however many steps a log has."""
    steps = [
        f" iteration {n} | elapsed time (ms): 94{n % 90}.4 | lm loss: 2.1 |" for n in range(999)
    ]
    text = "\n".join(["num_workers: 0", *steps, "one of the 16 GPUs is hot"])
    assert len(distinct_lines(text).splitlines()) < 12
    assert sorted(_causes(text)) == ["data wait", "stragglers"]


def test_a_denial_is_read_only_close_to_its_cause():
    """Read a line of several megabytes that denies a cause in every sentence, in seconds."""

    def seconds_for(num_denials: int) -> float:
        text = "there are no stragglers, " * num_denials
        began = time.process_time()
        assert _causes(text) == []
        assert _causes(text + "one rank is slow") == ["stragglers"]
        return time.process_time() - began

    # If the time grew with the square of the length, it would be 16 times as long.
    assert seconds_for(4000) < 10 * seconds_for(1000)


def test_lines_that_differ_in_many_zeros_are_few():
    """A list of zeros and ones may be different in every log line."""
    lines = [f"tokens of experts: {' '.join(f'{number:010b}')}" for number in range(999)]
    assert len(distinct_lines("\n".join(lines)).splitlines()) < 12


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


@pytest.mark.parametrize(
    "text",
    [
        "forward time: 0.10 s\noptimizer time: 0.12 s\nallreduce time: 0.30 s\n"
        "backward time: 0.40 s\nstep time: 1.00 s",
        _printed("load time:", [30.0] * 5),
        _printed("forward step time:", [0.1] * 5),
        _printed("time:", [1732789000.1] * 5),
        _printed("step 3 | forward time:", [0.1] * 5),
        _printed("step time:", [0.5] * 3) + "\n" + _printed("batch time:", [0.1] * 3),
    ],
    ids=["parts", "loads", "forward", "dates", "part in a step's line", "two timers"],
)
def test_other_timers_are_no_steps(text):
    assert measured_parts(text, parse_lines([]), {}) == (0.0, [])


@pytest.mark.parametrize(
    "label",
    [
        "time:",
        "Step Time:",
        "iter_time =",
        "step 7 | loss 2.1 | time:",
        "Epoch: [0][10/500]\tbatch time",
    ],
)
def test_the_step_times_of_many_loops_are_read(label):
    assert measured_parts(_printed(label, [0.5] * 5), parse_lines([]), {}) == (0.5, [])


def test_the_form_of_the_imagenet_example_is_read():
    line = "Epoch: [0][10/500]\tTime 0.500 (0.700)\tLoss 2.3"
    assert measured_parts("\n".join([line] * 5), parse_lines([]), {}) == (0.5, [])


def test_the_time_of_a_whole_step_comes_before_that_of_its_batches():
    text = _printed("batch time:", [0.1] * 40) + "\n" + _printed("step time:", [0.5] * 5)
    assert measured_parts(text, parse_lines([]), {}) == (0.5, [])


def test_the_wait_for_data_of_other_loops_is_read():
    _, parts = measured_parts("time (ms) | batch_input: 3281.20", parse_lines([]), {})
    assert [(part.name, part.seconds) for part in parts] == [("data wait", pytest.approx(3.2812))]
    _, parts = measured_parts("Time 0.470 (1.206) Data 0.076 (0.004) Loss 3.2", parse_lines([]), {})
    assert [(part.name, part.seconds) for part in parts] == [("data wait", 0.076)]


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("2 nodes of 4 A100 are slow", "4"),
        ("torchrun --nproc_per_node 4 --nnodes 8 train.py", "4"),
        ("#SBATCH --gpus-per-node=4", "4"),
        ("8 A100 are slow", None),
    ],
)
def test_the_number_of_devices_in_a_node_is_read(text, devices):
    assert read_facts(text, {}).get("devices_per_node") == devices
