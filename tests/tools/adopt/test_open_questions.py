"""Whatever a script leaves open becomes a question in a valid run file, not a refusal."""

from __future__ import annotations

import pytest

from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.findings import TOKENIZER_MARK
from runbook.tools.adopt.proof import OptionVerdict

SHAPE = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
LLAMA = (
    "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights"
)
STEPS = "--micro-batch-size 2 --global-batch-size 64 --train-iters 100 --lr 1e-4 --lr-warmup-iters 10 --bf16"
BARE = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} {STEPS}"

CASES = {
    "a Llama without its tokenizer": (
        f"{BARE} {LLAMA} --tokenizer-type Llama2Tokenizer",
        "data.tokenizer",
    ),
    "a tokenizer of the hub": (
        f"{BARE} {LLAMA} --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta/llama",
        "data.tokenizer",
    ),
    "a layout larger than the nodes": (
        BARE.replace("torchrun", "torchrun --nnodes 1")
        + " --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4",
        "jobs.training.nodes",
    ),
    "a batch that the devices do not divide": (
        BARE.replace("--global-batch-size 64", "--global-batch-size 40"),
        "training.global_batch",
    ),
    "layers that the stages do not divide": (
        f"{BARE} --pipeline-model-parallel-size 8".replace("--num-layers 24", "--num-layers 20"),
        "parallel.pipeline",
    ),
    "no length": (
        BARE.replace("--train-iters 100", "").replace(
            "--lr-warmup-iters 10", "--lr-warmup-iters 5000"
        ),
        "training.iterations",
    ),
}


def adopted(folder, line: str) -> AdoptReport:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{line}\n")
    return adopt([script], folder / "mine.yaml")


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_known_is_a_question(case, tmp_path):
    line, key = CASES[case]
    report = adopted(tmp_path, line)
    assert report.check == "passes"
    assert key in report.adopted.required
    assert f"#   {key}: " in report.path.read_text()
    assert not [row for row in report.proof if row.verdict is OptionVerdict.UNACCOUNTED]


def test_a_file_of_a_tokenizer_is_taken_and_trained_with_by_our_own_trainer(tmp_path):
    options = "--tokenizer-type Llama2Tokenizer --tokenizer-model /models/llama/tokenizer.model"
    report = adopted(tmp_path, f"{BARE} {LLAMA} {options}")
    values = report.adopted.findings
    assert values.value("data.tokenizer") == "/models/llama/tokenizer.model" != TOKENIZER_MARK
    assert values.value("training.framework") == "runbook"
    assert "data.tokenizer" not in report.adopted.required


def test_a_llama_with_gpt_2_s_tokenizer_keeps_it(tmp_path):
    report = adopted(
        tmp_path, f"{BARE} {LLAMA} --tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m"
    )
    assert report.check == "passes"
    assert "data.tokenizer" not in report.adopted.findings.carried


def test_what_fits_nothing_stays_as_the_script_has_it(tmp_path):
    """If the run file is refused even with placeholders, the placeholders are withdrawn."""
    report = adopted(
        tmp_path, f"{BARE} --bf16 --fp8-format e4m3 --num-attention-heads 15 --global-batch-size 40"
    )
    assert report.check != "passes"
    assert report.adopted.findings.value("training.global_batch") == 40


@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun -n $NOWHERE --npernode 8 python",
        "mpirun -std-proc out --vcoordfile /v/file python",
    ],
)
def test_options_of_a_launcher_that_nobody_knows_hide_no_training(launcher, tmp_path):
    report = adopted(tmp_path, f"NOWHERE=\n{launcher} pretrain_gpt.py {SHAPE} {STEPS}")
    assert report.adopted.findings.value("training.shape.layers") or report.adopted.findings.value(
        "model"
    )
    assert report.adopted.launch is not None


def test_the_machine_s_python_by_its_full_path_is_a_launch(tmp_path):
    report = adopted(
        tmp_path, f"/usr/bin/python3 pretrain_gpt.py {SHAPE} {STEPS} --save-interval 0"
    )
    assert report.adopted.launch is not None
    assert report.check == "passes"
