"""Causes made likely by how a slow training run is set up, and figures from other people's runs."""

from __future__ import annotations

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


def _named(text: str) -> list[str]:
    """Return the names of the causes that a text mentions."""
    return [part.name for part in signs(text, reached=1.0)]


def _suspected(text: str) -> list[str]:
    """Name the causes that a text shows signs of, most likely first."""
    return [suspect.part.name for suspect in ranked_suspects(text, {}) if suspect.has_sign]


def _first_causes(text: str, models) -> list[str]:
    """Return the first causes of a whole answer."""
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    return explained.as_dict()["first_causes"]


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("8 GPUs with PCIe", "communication"),
        ("adding a second GPU makes it slower", "communication"),
        ("on 1 node 9 tokens/s, but only 7 tokens/s with 2 nodes", "network"),
        ("iteration time increases linearly", "growing steps"),
        ("the step time keeps increasing every epoch", "growing steps"),
        ("the dispatch takes 40 % of a step", "token dispatch"),
        ("DeepSpeedCPUAdam takes 10 s", "offload"),
        ("the text is tokenized in the collate function", "data wait"),
        ("there is no pretokenized dataset", "data wait"),
        ("data_load_time has spikes", "data wait"),
        ("torch.cuda.empty_cache() between batches", "memory"),
        ("bf16 is 4 times slower than fp32", "precision"),
        ("bfloat16 runs at half the speed of fp16", "precision"),
        ("it selects a suboptimal attention kernel", "kernels"),
        ("after the upgrade to ROCm 10 it takes longer", "software version"),
        ("a performance regression: throughput fell by 9 %", "software version"),
        ("OMP_NUM_THREADS is not set", "host"),
        ("every process creates a thread for each core", "host"),
        ("CPU threads are oversubscribed", "host"),
        ("[GC rank3] gen2: 713.5ms collected", "garbage collection"),
        ("gc.collect() in every iteration", "garbage collection"),
        ("flash-attn is only 2-3% faster", "flash attention"),
        ("each sample is padded to 16k", "padding"),
        ("147 of 383 TFLOP/s on an MI250X", "FLOPs convention"),
        ("checkpoint saving takes 2.9 hours", "saves"),
        ("extremely slow checkpoint saving", "saves"),
        ("one GPU is always slower than the others", "stragglers"),
        ("bitsandbytes was compiled without GPU support", "no device"),
        ("it falls back to the CPU", "no device"),
        ("lustre sees frequent file-open operations", "data wait"),
        ("mfu 11 % on 8 4090, a figure tailored to H100", "FLOPs convention"),
        ("mfu 8 % on RTX 8000, divided by the peak of the A100", "FLOPs convention"),
    ],
)
def test_a_cause_in_other_words_is_named(text, cause):
    assert _named(text) == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "8 GPUs with PCIe hosts and NVLink",
        "adding a second GPU makes it faster",
        "checkpoint saving takes 0 hours",
        "a GPU that is not slower than the others",
        "CUDA is available",
        "it never falls back to the CPU",
        "files on lustre are opened once",
        "only 8 GPUs on 2 nodes",
        "only 4 samples per GPU on 2 nodes",
        "iteration time increases linearly with the number of layers",
        "the router sends most tokens to four experts",
        "the dispatch takes 0 s",
        "cpu_adam ............... [NO] ....... [OKAY]",
        "DeepSpeedCPUAdam: false",
        "a pretokenized dataset",
        "we preprocess nothing",
        "bf16 is as fast as fp16",
        "it selects a fused kernel",
        "we updated the dataset",
        "a newer version exists",
        "no performance regression in throughput",
        "OMP_NUM_THREADS=1",
        "one thread per core",
        "[GC] Initial GC collection took 0.00 seconds",
        "gc.collect every 1000 steps",
        "flash-attn is 40 % faster",
        "the vocabulary is padded to 50304",
        "MI250X: 147 of 191.5 TFLOP/s",
        "mfu 41 % of the peak of the H100, on 8 H100",
    ],
)
def test_words_of_a_healthy_training_name_no_cause(text):
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        ("it is slow on 4 nodes", ["network"]),
        ("NNODES=2, throughput is low", ["network"]),
        ("GPU utilization oscillates between 60 and 100 %", ["data wait", "host"]),
        ("mixtral is slow", ["token dispatch"]),
        ("two RTX 4090 are slow", ["communication"]),
        ("FSDP is slow", ["communication", "unequal work"]),
        ("slow on a P100", ["precision"]),
    ],
)
def test_a_slow_training_has_the_suspects_of_its_set_up(text, causes):
    assert _suspected(text) == causes


@pytest.mark.parametrize(
    "text",
    [
        "8 H100 on 4 nodes with FSDP",
        "it is not slow on 4 nodes",
        "the step is slow on one H100",
        "slow on one H100, its memory utilization is low",
    ],
)
def test_without_a_complaint_or_a_weak_spot_nothing_is_suspected(text):
    assert _suspected(text) == []


def test_suspects_fill_an_answer_and_no_more(models):
    text = "mixtral with FSDP is slow on 4 nodes of RTX 4090, GPUs are idle"
    assert len(_first_causes(text, models)) == LISTED_CAUSES
    assert _first_causes(f"{text}. num_workers=0", models)[0] == "data wait"
    named = f"{text}. num_workers=0. NCCL_P2P_DISABLE=1. detect_anomaly=True"
    assert not {"network", "token dispatch"} & set(_first_causes(named, models))


def test_a_suspect_comes_after_causes_with_evidence(models):
    text = "It is slow. llama 7B on 16 A100, 400 tokens/s, num_workers: 0"
    explained = explain(text, parse_lines([]), read_facts(text, {}), models)
    assert explained.parts[0].name == "data wait"
    suspected = [part for part in explained.parts if part.is_suspected]
    assert suspected
    assert list(explained.parts[-len(suspected) :]) == suspected
    assert all(part.seconds == 0 for part in suspected)


def test_devices_beyond_a_node_are_several_nodes():
    """16 devices of a kind with 8 per node need two nodes, although the text does not say so."""
    facts = {"accelerator": "A100", "n_accel": "16"}
    assert ranked_suspects("it is slow", facts)[0].part.name == "network"
    assert ranked_suspects("it is slow", facts | {"n_accel": "8"})[0].part.name == "data wait"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("We run on 64 H100. NVIDIA reports 50 % MFU on 1024 H100", "n_accel", "64"),
        ("We train with TP 8 and PP 8. The table has TP 4 and PP 2", "tp", "8"),
        ("We run on 64 H100. NVIDIA reports 50 % MFU", "expected.mfu", "50"),
        ("The paper reports 180 TFLOP/s. We get 120 TFLOP/s", "reached.tflops", "120"),
        ("The paper used 16 A100", "n_accel", "16"),
        ("We report 50 % MFU on 64 H100", "reached.mfu", "50"),
        ("We train 7B. The blog has 13B", "expected.model", "13B"),
        ("Megatron-LM reports 120 TFLOP/s on 64 A100.", "reached.tflops", "120"),
        ("64 A100. The log reports 120 TFLOP/s", "reached.tflops", "120"),
        ("The trainer reports 38 % MFU on 64 H100", "reached.mfu", "38"),
        ("120 TFLOP/s on 64 A100, as reported in the log", "reached.tflops", "120"),
        ("120 TFLOP/s reported by Megatron on 64 A100", "reached.tflops", "120"),
    ],
)
def test_figures_of_other_people_are_not_ours(text, name, value):
    assert read_facts(text, {})[name] == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("data_time per batch is 0.217 s", 0.217),
        ("data load time: 250.0 ms", 0.25),
        ("Time 2.412 (2.911) Data 2.003 (2.411)", 2.003),
    ],
)
def test_a_long_wait_for_data_is_named_without_a_step_time(text, seconds):
    _, parts = measured_parts(text, parse_lines([]), {})
    assert parts == [
        GapPart(
            "data wait",
            pytest.approx(seconds),
            parts[0].evidence,
            parts[0].remedy,
            is_printed=True,
        )
    ]


def test_a_short_wait_for_data_is_not_named_by_itself():
    _, parts = measured_parts("data_time: 0.004", parse_lines([]), {})
    assert [part.is_printed for part in parts] == [False]


@pytest.mark.parametrize(("last", "grows"), [(202.4, True), (95.0, False)])
def test_three_steps_show_strong_growth(last, grows):
    lines = [
        f" iteration {n:8}/     600 | elapsed time per iteration (ms): {seconds * 1000} | lm loss: 2.1 |"
        for n, seconds in ((10, 84.6), (15, 90.5), (20, last))
    ]
    _, parts = measured_parts("\n".join(lines), parse_lines(lines), {})
    assert ("growing steps" in {part.name for part in parts}) == grows


@pytest.mark.parametrize(
    "text",
    [
        "After upgrading to PyTorch 2.4 it is 20 % faster.",
        "Since upgrading CUDA, everything works well.",
        "The latest NeMo release fixed the slow loader.",
        "empty_cache is never called between batches.",
        "torch.cuda.empty_cache() is called only after the evaluation.",
        "MoE router overhead is under 10 % of a step.",
        "The CPU is not oversubscribed.",
        "CUDA is not available on the login node",
        "No GPUs are available in the queue today",
        "On 4 nodes it is only 2 % slower per GPU than on one",
        "MFU is 41% of the H100 peak on 8 H100; an A100 had 50 %",
        "MFU 45 %, divided by the peak of H100, on 8 H200",
        "cpu_adam: not compatible",
    ],
)
def test_a_healthy_sentence_names_no_cause(text):
    assert _named(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "The loss decreases slowly on 4 nodes",
        "The learning rate drops on 4 nodes",
        "The loss is unstable on 8 nodes",
        "We see low variance of the step time on 32 nodes",
        "The job waits in the queue on 8 nodes",
    ],
)
def test_words_about_the_loss_or_the_queue_are_no_complaint(text):
    assert _suspected(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow: GPU utilization is low compared with a dense model", "token dispatch"),
        ("training Mamba is much slower than a Transformer", "kernels"),
        ("a larger batch size makes training slower", "memory"),
        ("with batch size 64 and recompute, the throughput drops to 46 samples/s", "memory"),
        (
            "training on 2 GPUs is slow: one has high utilization and the other almost none",
            "DataParallel",
        ),
    ],
)
def test_a_set_up_points_to_a_cause(text, cause, models):
    assert cause in _first_causes(text, models)


@pytest.mark.parametrize(
    "busy", ["GPU utilization is 100 %", "all GPUs are at 99 %", "the cards are constantly at 97 %"]
)
def test_devices_that_are_always_at_work_do_not_wait_for_data(busy):
    slow = "training on 8 GPUs is slow"
    ranked = [suspect.part.name for suspect in ranked_suspects(f"{slow}; {busy}", {})]
    unchanged = [suspect.part.name for suspect in ranked_suspects(slow, {})]
    assert unchanged.index("data wait") < LISTED_CAUSES
    assert ranked.index("data wait") >= LISTED_CAUSES


def test_other_words_about_batches_and_devices_point_to_no_cause():
    for text in (
        "a larger batch makes training faster, but it is still slow",
        "training is slow: one GPU is at 40 %, and both have the same load",
        "training is slow with a batch size of 64 and 8 GPUs",
    ):
        suspected = _suspected(text)
        assert "memory" not in suspected
        assert "DataParallel" not in suspected[:1]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow: LoRA takes longer than full fine-tuning", "adapters"),
        ("peft does not accelerate the training of roberta", "adapters"),
        ("slow: per_device_train_batch_size 1, gradient_accumulation_steps 32", "micro-batch"),
        ("it is slow although the VRAM is not full", "micro-batch"),
        ("low utilization: 0.84 %", "micro-batch"),
        ("it is slower since torch 1.12.0, with torch 1.11.0 it took half the time", "precision"),
        ("the profile of the slow steps has many CUDA free calls", "memory"),
        ("speed drops. RAM: 13.5/32 GB, swap: 22/24 GB", "memory"),
        ("training is not improved by a better GPU, it is slow", "host"),
        ("kernels are launch-bound", "host"),
        ("the GPU is slow and the CPU is at 100 %", "host"),
        ("it is slow on 4 GPUs, GPU utilization is 40 %", "DataParallel"),
        ("run_mlm.py is slow on 2 GPUs", "DataParallel"),
        ("a regression of the throughput", "software version"),
        (
            "PyTorch version (GPU?): 2.3.0 is slow, PyTorch version (GPU?): 2.0.1 is not",
            "software version",
        ),
        ("bert was slow with transformers 2.5.0 versus 2.3.0", "software version"),
        ("stage 3 is the slowest", "communication"),
        ("optimizer_allgather is slow", "communication"),
        ("the RL stage takes 2 hours", "generation"),
        ("attn_implementation is ignored", "flash attention"),
        ("each epoch took longer: batches are sorted by length", "padding"),
    ],
)
def test_more_words_of_public_threads_are_signs(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    "text",
    [
        "we train LoRA adapters on 8 GPUs",
        "batch_size 1 and gradient_accumulation_steps 32",
        "we use torch 1.11.0 and torch 1.12.0",
        "the CPU is at 100 %",
        "the swap is empty, swap: 0",
    ],
)
def test_a_set_up_alone_is_no_complaint(text):
    assert _suspected(text) == []


def test_a_network_that_is_ruled_out_is_not_the_first_suspect():
    slow = "ZeRO stage 3 is slow on 16 nodes."
    assert _suspected(slow)[0] == "network"
    ruled_out = f"{slow} It does not seem to be related to network bandwidth."
    assert _suspected(ruled_out)[0] == "communication"


def test_the_title_of_a_pasted_issue_is_read():
    title = "# Performance degradation on recent versions of the trainer"
    assert "software version" in _suspected(title)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow. Swap: 0B used, RAM 40/512 GB", "memory"),
        ("training is slow, the RAM is not full", "memory"),
        ("training is slow, gpu free memory is 30 GB", "memory"),
        ("training is slow; requirements: torch>=1.10, installed torch 2.1", "precision"),
        ("slow in bf16: torch 1.11.0 was fast, torch 1.12 takes twice as long", "precision"),
        (
            "training is slow. Setting OMP_NUM_THREADS environment variable for each process to be "
            "1 in default, to avoid your system being overloaded",
            "host",
        ),
        ("training is slow, we set OMP_NUM_THREADS=16", "host"),
        ("training is slow, CPU utilization: 3 %", "micro-batch"),
    ],
)
def test_ordinary_words_of_a_set_up_are_no_sign(text, cause):
    assert cause not in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow, swap: 3 GB", "memory"),
        ("training is slow, fp16: false, torch 1.11.0 was fast, torch 1.12 is not", "precision"),
        ("training is slow, OMP_NUM_THREADS=1", "host"),
        ("training is slow, GPU utilization: 3 %", "micro-batch"),
    ],
)
def test_the_same_words_with_telling_values_are_signs(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow since the release of last week", "software version"),
        ("slow with version 4.5.1, version 4.4.2 was fast", "software version"),
        ("training is slow: LoRA is slower than training the whole network", "adapters"),
        ("training is slow: our peft run is slower than the base", "adapters"),
        ("training with LoRA takes 4 hours an epoch and is slower than all weights", "adapters"),
        ("training is slow on my laptop", "memory"),
        ("training is slow with 6 GB of VRAM", "memory"),
    ],
)
def test_a_release_adapters_and_a_small_device_are_signs(text, cause):
    assert cause in _suspected(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("training is slow since Monday", "software version"),
        ("slow with version 4.5.1 on both machines (version 4.5.1)", "software version"),
        ("training is slow: QLoRA is slower than LoRA", "adapters"),
        ("training is slow with 80 GB of VRAM", "memory"),
        ("training is slow, a checkpoint has 6 GB", "memory"),
        ("training is slow: adapter tuning is longer than our LoRA run", "adapters"),
    ],
)
def test_a_day_two_kinds_of_adapters_and_a_large_device_are_none(text, cause):
    assert cause not in _suspected(text)


@pytest.mark.parametrize("greeting", ["Hello author", "Hello, author", "Dear author", "Hi, author"])
def test_a_greeting_is_no_comparison(greeting):
    assert "unequal work" not in _suspected(f"{greeting}, training is slow")


def test_figures_of_the_author_are_a_comparison():
    assert "unequal work" in _suspected("training is slow, the author needs 2 hours")


def _rank(text: str, cause: str) -> int:
    return [suspect.part.name for suspect in ranked_suspects(text, {})].index(cause)


@pytest.mark.parametrize("used", ["CUDA has been used", "it is using CUDA", "CUDA is enabled"])
def test_cuda_that_is_used_clears_the_missing_device(used):
    slow = "training is slow"
    assert _rank(f"{slow}; {used}", "no device") > _rank(slow, "no device")


def test_cuda_that_is_not_used_clears_nothing():
    slow = "training is slow"
    assert _rank(f"{slow}; we are not using CUDA", "no device") <= _rank(slow, "no device")


def test_a_contraction_rules_the_network_out():
    slow = "ZeRO stage 3 is slow on 16 nodes."
    assert _suspected(f"{slow} It isn't related to the network.")[0] == "communication"
    assert _suspected(f"{slow} It isn't related to the loss.")[0] == "network"


def test_a_contraction_says_that_more_devices_do_not_help():
    assert "unequal work" in _suspected("training is slow, it doesn't scale with 4 GPUs")
    assert "unequal work" not in _suspected("training is slow, it doesn't fail with 4 GPUs")
