"""Causes whose subject a complaint mentions, and figures for several numbers of devices."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.scaling import poor_scaling
from runbook.tools.speed.signs import signs
from runbook.tools.speed.suspects import LISTED_CAUSES, ranked_suspects
from runbook.tools.speed.topics import complains, topics_of_complaints


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


def _named(text: str) -> list[str]:
    """Return the names of the causes that a text mentions."""
    return [part.name for part in signs(text, reached=1.0)]


def _suspected(text: str) -> list[str]:
    """Name the causes that a text shows signs of, most likely first."""
    return [suspect.part.name for suspect in ranked_suspects(text, {}) if suspect.has_sign]


def _first_causes(text: str, models) -> list[str]:
    """Return the first causes of a complete answer."""
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    return explained.as_dict()["first_causes"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("it pauses when a checkpoint is written", "saves"),
        ("writing the state blocks us. it is saved to disk", "saves"),
        ("the eval loop is so long", "evaluation"),
        ("we waste half of each batch on variable lengths", "padding"),
        ("torch.compile is slow here", "compilation"),
        ("offloading costs 30 %", "offload"),
        ("recomputation is a big perf impact", "recompute"),
        ("the experts are slow", "token dispatch"),
        ("a pipeline parallel run is inefficient", "pipeline bubble"),
        ("sdpa is slow", "flash attention"),
        ("throughput is low, is it the interconnect?", "network"),
        ("too much time is lost: all_gather is a bottleneck", "communication"),
        ("it degrades, the allocator is busy", "memory"),
        ("30 GB of memory are unused, can we speed up the training?", "micro-batch"),
        ("the GPUs wait, our shards are on lustre", "data wait"),
        ("logging has a large overhead", "host"),
        ("autocast is not faster", "precision"),
        ("quantized weights take forever", "kernels"),
        ("it is slow, the clocks are at 900 MHz", "stragglers"),
        ("some steps are poor", "slow steps"),
        ("throughput degrades after a while", "growing steps"),
        ("an older container was faster, the new version is bad", "software version"),
        ("our MFU is low, is the formula wrong?", "FLOPs convention"),
        ("it takes forever on the CPU", "no device"),
        ("wandb is slowing the run down", "host"),
        ("checkpointing comes at a cost to training speed", "recompute"),
        (
            "we use 30 of the memory, much less than 80 GB; would a larger batch size help?",
            "micro-batch",
        ),
        ("the GPU utilization is very low", "micro-batch"),
        ("GPU utilization remains around 30-40 %", "micro-batch"),
        ("the GPU is at maybe 40 % usage", "host"),
        ("it is slow with batch=1", "micro-batch"),
        ("it is slow on multiple servers", "network"),
        ("it is slow. we have one server. its files are elsewhere", "data wait"),
        ("it gets stuck every 50 steps", "data wait"),
        ("streaming from the hub is slow", "data wait"),
        ("the I/O is a bottleneck", "data wait"),
        ("the GIL slows it down", "host"),
        ("it is slow, the CPU quota is 4", "host"),
        ("it is slower in docker", "host"),
        ("it is slow, memory is swapped", "memory"),
        ("cudnn picks a slow algorithm", "kernels"),
        ("slow since the last commits", "software version"),
        ("compute capability 12 is slow", "software version"),
        ("times went from 2 to 16 hours with a nightly build", "software version"),
        ("can we improve the speed of the data loader?", "data wait"),
        ("by time.time() the backward is slow", "timing"),
        ("gradient_accumulation_steps makes it slow", "gradient accumulation"),
        ("sync batch norm is slow", "communication"),
        ("slow when other jobs are there", "slow steps"),
        ("generating sample images is so slow", "evaluation"),
    ],
)
def test_the_subject_of_a_complaint_is_suspected(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    "text",
    [
        "we write a checkpoint every 1000 steps",
        "evaluation takes 2 % of the time",
        "documents are packed, no token is padding",
        "torch.compile made it 30 % faster",
        "the shards are on local NVMe",
        "it used to be slow because of the loader",
        "the loader was slow until we moved the shards; since then the GPUs are busy",
        "is it normal that the loss jumps after loading a checkpoint?",
        "a lower learning rate with a larger batch size",
        "the accuracy is bad after evaluation",
        "the loss drops after each checkpoint",
        "it is not slow, although a checkpoint is written",
        "it is slow. we do not run any evaluation.",
        "GPU utilization is 98 %, and the loader has 8 workers",
        "GPU utilization 97-100 %, kernels are fused",
        "the model is bad at long context; do we need packing?",
        "we pause the run at night and resume from the last checkpoint",
        "the tokenizer is slow to load, but training runs at full speed",
        "streaming from the hub keeps all GPUs busy",
        "we train in docker with a CPU quota of 96",
        "by time.time() a step takes 0.5 s",
    ],
)
def test_without_a_complaint_about_speed_no_subject_is_suspected(text):
    assert _suspected(text) == []


def test_options_and_log_lines_are_no_subject_of_a_complaint():
    text = "it is slow\n--eval_steps 100 --save_steps 500\nnum_workers: 4\n2024-01-01 INFO loader"
    assert topics_of_complaints(text) == []


def test_the_nearest_subject_comes_first():
    text = "we have 8 nodes with infiniband. the loader is slow. checkpoints are small. moe. nothing else. padding."
    topics = topics_of_complaints(text)
    assert [(topic.cause, topic.distance) for topic in topics] == [
        ("data wait", 0),
        ("saves", 1),
        ("network", 1),
        ("token dispatch", 2),
    ]


def test_subjects_fill_an_answer_and_no_more(models):
    text = "the loader, logging, eval, checkpoints, the network and padding are slow"
    assert len(_first_causes(text, models)) == LISTED_CAUSES
    named = f"{text}. num_workers=0. NCCL_P2P_DISABLE=1. detect_anomaly=True"
    assert not {"evaluation", "padding"} & set(_first_causes(named, models))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("steps take forever", True),
        ("there is a long pause", True),
        ("a pause of 4 minutes", True),
        ("the run is stuck", True),
        ("8 GB are unused", True),
        ("scaling efficiency is only 73 %", True),
        ("it is no longer slow", False),
        ("everything is fast", False),
    ],
)
def test_complaints_are_told_from_praise(text, complaint):
    assert complains(text) == complaint


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("1 GPU: 0.5 s/it. 4 GPUs: 2.3 s/it", ["communication"]),
        ("An epoch takes 50 s with 1 GPU. With 2 GPUs it takes 51 s.", ["communication"]),
        ("one node: 36 min; two nodes: 1 h 45 min", ["network"]),
        ("2 nodes reach 41 % MFU and 8 nodes reach 22 % MFU", ["network"]),
        ("on 1 node we have 900 tokens/s per GPU, on 4 nodes 300 tokens/s per GPU", ["network"]),
        ("nnodes=1: 210 samples/s. nnodes=2: 190 samples/s", ["network"]),
        (
            "single worker with 4 GPUs: 150 img/sec per GPU\n2 workers: 40~50 img/sec per GPU",
            ["network"],
        ),
    ],
)
def test_figures_for_more_devices_show_a_loss(text, causes):
    assert [part.name for part in poor_scaling(text, 1.0)] == causes


@pytest.mark.parametrize(
    "text",
    [
        "1 GPU: 0.50 s/it. 4 GPUs: 0.52 s/it",
        "An epoch takes 80 min on 1 GPU and 11 min on 8 GPUs.",
        "1 node: 41 % MFU. 16 nodes: 39 % MFU",
        "1 GPU has 52 tokens/s, 8 GPUs have 400 tokens/s",
        "on 4 nodes a step takes 0.5 s",
        "a step takes 2 s on 8 GPUs, a save takes 40 s on 8 GPUs",
        "forward 1 s, backward 2 s, optimizer 0.1 s on 8 GPUs",
    ],
)
def test_figures_of_a_training_that_scales_show_none(text):
    assert [*poor_scaling(text, 1.0)] == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("NCCL went over TCP sockets", "network"),
        ("libibverbs.so was missing in the image", "network"),
        ("as the number of nodes grows, throughput per GPU falls", "network"),
        ("there is a gap and it pauses between two epochs", "data wait"),
        ("the workers are recreated at the start of each epoch", "data wait"),
        ("the GPUs idle because of CPU overhead", "host"),
        ("each rank has only one CPU core", "host"),
        ("only 3 of our 16 cores are busy", "host"),
        ("calling .item() synchronizes the host with the device", "host"),
        ("torch.cuda.is_available() returns False", "no device"),
        ("warning: you are running training on a CPU", "no device"),
        ("num cuda malloc retries: 12", "memory"),
        ("a third of the time is hipFree", "memory"),
        ("padding everything to max_seq_len", "padding"),
        ("we waste most of our compute on padding", "padding"),
        ("the V100 does not support bf16", "precision"),
        ("Break Reason 12: inline in skipfiles", "compilation"),
        ("4-bit weights train slower than 16-bit ones", "kernels"),
        ("some epochs are very slow", "slow steps"),
        ("nvidia-smi shows nothing; another process appears on our GPU for a minute", "slow steps"),
        ("it slows down by two seconds per epoch", "growing steps"),
        ("we spend a third of the steps doing evals", "evaluation"),
        ("evals every 50 iterations", "evaluation"),
        ("the power draw is low, the utilization is 100 %", "communication"),
        ("utilization is 100 % with hardly any power", "communication"),
        ("the servers use NFS to share the data", "data wait"),
        ("calling empty_cache() increases the step time", "memory"),
        ("the peak is hard-coded to 989 TFLOP/s", "FLOPs convention"),
        ("the MFU is misleading on this device", "FLOPs convention"),
        ("the form sets loader_n_workers to 0", "data wait"),
        ("it is slower than with release 2.1", "software version"),
        ("the new driver is slower than the old one", "software version"),
        ("each epoch takes increasingly longer", "growing steps"),
        ("in epoch 20 the iter time suddenly became a minute", "growing steps"),
        ("python train.py --num-workers 0 --gpus 1", "data wait"),
        ("the sums are not overlapping with the backward pass", "communication"),
        ("the time of an epoch grows almost linearly to 60 s", "growing steps"),
    ],
)
def test_a_cause_in_further_words_is_named(text, cause):
    assert _named(text) == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "the TCP port is 29500",
        "the number of nodes is 8",
        "CPU overhead is negligible",
        "launch overhead is under 2 %",
        "each rank has 14 CPU cores",
        "torch.cuda.is_available() returns True",
        "no cuda malloc retries",
        "the loss grows almost linearly",
        "4-bit weights train as fast as 16-bit ones",
        "H100 does support bf16",
        "the shards were copied from NFS to local NVMe",
        "the power draw is 690 W, the utilization is 100 %",
        "empty_cache is never called",
        "Can DeepSpeedCPUAdam replace torch.optim.Adam?",
        "the MFU is 41 %",
    ],
)
def test_further_words_of_a_healthy_training_name_no_cause(text):
    assert _named(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "no regression after the update to PyTorch 2.6",
        "After the update to PyTorch 2.6 there is no regression.",
        "Since the upgrade throughput is unchanged.",
        "After upgrading to ROCm 6 nothing changed.",
        "After we upgraded the driver, the speed stayed the same.",
        "After upgrading NCCL, scaling is as good as before.",
        "Throughput did not regress after the upgrade.",
    ],
)
def test_a_change_of_software_that_did_no_harm_is_no_cause(text):
    assert _named(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "After upgrading to PyTorch 2.6, with no changes of our own, it is twice as slow.",
        "Since the upgrade throughput dropped by 20 %, although nothing else changed.",
    ],
)
def test_a_change_of_software_that_did_harm_is_a_cause(text):
    assert _named(text) == ["software version"]


def test_the_network_is_suspected_only_for_a_stated_number_of_devices(models):
    """An assumed number of devices is no reason to suspect the links between them."""
    slow = "llama 70B on H200, 200 tokens/s"
    assert "network" not in _first_causes(slow, models)
    assert "network" in _first_causes(slow.replace("on H200", "on 32 H200"), models)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("four GPUs didn't make it faster, our loader is the same", "data wait"),
        ("an epoch takes 300+ hours with our loader", "data wait"),
        ("training takes almost a year, the shards are on nfs", "data wait"),
        ("taking 3 weeks with the loader that we have", "data wait"),
        ("it takes five times as long when the loader has images", "data wait"),
        ("the time per step increases while a checkpoint is written", "saves"),
        ("it slows down per epoch", "growing steps"),
    ],
)
def test_long_times_and_contractions_are_complaints(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("the loader didn't change", "data wait"),
        ("our shards are from last year, we load them every week", "data wait"),
        ("four times as many workers as GPUs read our shards", "data wait"),
        ("training is slow, an epoch needs 3 hours per epoch", "growing steps"),
        ("training is slow with the same dataset", "data wait"),
        ("training is slow with the dataset you provide", "data wait"),
    ],
)
def test_words_that_resemble_them_are_none(text, cause):
    assert cause not in _suspected(text)


def test_a_suspicion_far_from_the_complaint_counts():
    slow = "Training is slow. We have 8 GPUs. Thanks to all of you. This is our first run."
    assert "data wait" not in _suspected(f"{slow} The loader is ours.")
    assert _suspected(f"{slow} I suspect the loader.")[0] == "data wait"
    assert _suspected(f"{slow} Maybe it's the loader.")[0] == "data wait"


@pytest.mark.parametrize(
    "text",
    [
        "The loss is slow to fall. I suspect the loader.",
        "Our devices are busy. I think the loader is well made.",
        "Training is slow. We have 8 GPUs. Thanks to all of you. I suspect that the loss of a shard lowers accuracy.",
    ],
)
def test_a_suspicion_about_something_else_does_not_count(text):
    assert "data wait" not in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training hangs for long in run_eval(), it is so slow", "evaluation"),
        ("save_state(model) is slow", "saves"),
        ("the speed falls when our shards are read", "data wait"),
        ("we expected it to be twice as fast with our loader", "data wait"),
        ("we expected a speed-up from more workers", "data wait"),
    ],
)
def test_names_of_functions_and_unmet_expectations_are_read(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow, retrieval() is called", "evaluation"),
        ("the loss falls when our shards are read", "data wait"),
        ("as expected, it is faster with our loader", "data wait"),
    ],
)
def test_parts_of_words_and_met_expectations_are_not(text, cause):
    assert cause not in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training slows down linearly", "growing steps"),
        ("the throughput drops steadily", "growing steps"),
        ("there is no GPU utilization", "no device"),
        ("I do not see any GPU usage", "no device"),
        ("causal-conv1d: not installed", "kernels"),
        ("xformers is missing", "kernels"),
    ],
)
def test_a_cause_in_still_other_words_is_named(text, cause):
    assert cause in _named(text)


@pytest.mark.parametrize(
    "text",
    [
        "training slows down linearly with the number of layers",
        "there is no GPU utilization problem",
        "GPU utilization is 97 %",
        "causal-conv1d is installed",
        "xformers 0.0.29 was found; nothing is missing",
    ],
)
def test_still_other_words_of_a_healthy_training_name_no_cause(text):
    assert not {"growing steps", "no device", "kernels"} & set(_named(text))
