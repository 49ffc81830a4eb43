"""The proof: the command in a run file keeps, changes or drops each script option, or adds one."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from runbook.cli.program import cli
from runbook.params.schema.entries import Model
from runbook.params.yaml12 import read_mapping
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.option_importance import Importance
from runbook.tools.adopt.proof import OptionVerdict

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --signal=B
#SBATCH --gres-flags=enforce-binding
module load cuda/12.4
export NCCL_IB_HCA=mlx5
srun torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
  --micro-batch-size 4 --global-batch-size 512 --train-samples 1000100 --lr 2e-4 --min-lr 2e-5 --lr 3e-4 \\
  --lr-warmup-fraction 0.01 --hidden-dropout 0.0 --attention-dropout 0.1 --ffn-hidden-size 8192 --bf16 \\
  --swiglu --optimizer adam --tensorboard-dir /tb --log-params-norm --num-workers 4 --split 949,50,1 \\
  --save /ckpt --data-path /data/my_text_document
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> AdoptReport:
    folder = tmp_path_factory.mktemp("proof")
    script = folder / "job.sh"
    script.write_text(SCRIPT)
    return adopt([script], folder / "mine.yaml")


def verdicts(report: AdoptReport) -> dict[str, tuple[OptionVerdict, str, str]]:
    return {row.option: (row.verdict, row.script, row.rendered) for row in report.proof}


def test_every_option_of_the_script_has_a_verdict_with_both_values_and_a_reason(report):
    rows = verdicts(report)
    assert report.check == "passes"
    assert rows["--num-layers"] == (OptionVerdict.SAME, "24", "24")
    assert rows["--ffn-hidden-size"][0] is OptionVerdict.SAME  # 4 x hidden, which render leaves out
    assert rows["--lr-warmup-fraction"][0] is OptionVerdict.SAME  # each in its own unit
    assert rows["--train-samples"] == (OptionVerdict.CHANGED, "1000100", "999936")
    assert rows["--attention-dropout"] == (OptionVerdict.CHANGED, "0.1", "0.0")
    assert rows["--save"][0] is OptionVerdict.DROPPED  # without --save-interval, nothing is saved
    assert rows["--optimizer"] == (OptionVerdict.DROPPED, "adam", "")
    assert rows["--swiglu"][0] is OptionVerdict.CHANGED
    assert rows["--clip-grad"] == (OptionVerdict.ADDED, "", "1.0")
    for row in report.proof:
        assert row.why or row.verdict is OptionVerdict.SAME, row
    given = {word for word in SCRIPT.split() if word.startswith("--")} - {
        "--nproc_per_node",
        "--nnodes",
    }
    assert given - {"--nodes=2", "--signal=B", "--gres-flags=enforce-binding"} <= set(rows)


def test_an_option_that_is_given_twice_counts_once(report):
    rates = [row for row in report.proof if row.option == "--lr"]
    assert {(row.verdict, row.script) for row in rates} == {
        (OptionVerdict.SAME, "3e-4"),
        (OptionVerdict.DROPPED, "2e-4"),
    }


def test_options_are_ranked_by_what_they_change(report):
    importance = {row.option: row.importance for row in report.proof}
    assert importance["--swiglu"] is importance["--optimizer"] is Importance.TRAINING
    assert importance["--num-workers"] is importance["--save"] is Importance.SITE
    assert importance["--log-params-norm"] is importance["--tensorboard-dir"] is Importance.LOGGING
    text = report.as_text()
    assert (
        text.index(Importance.TRAINING)
        < text.index(Importance.SITE)
        < text.index(f": {Importance.LOGGING}")
    )


def test_what_no_run_file_holds_is_ready_to_paste(report):
    block = read_mapping(report.site_block, "the block").values
    assert block["environment"] == {"adopted": {"NCCL_IB_HCA": "mlx5"}}
    assert block["modules"] == ["cuda/12.4"]
    assert block["directives"] == {"gres-flags": "enforce-binding"}
    assert block["frameworks"]["megatron-lm"]["options"]["num-workers"] == 4
    entry = read_mapping(report.model_entry, "the entry").values
    model = Model.model_validate(entry["mine"])
    assert (model.activation, model.layers, model.tied_embeddings) == ("swiglu", 24, True)


def test_a_run_file_never_passes_while_an_option_is_lost(tmp_path, monkeypatch):
    take = Findings.leave_to_site

    def forget(findings: Findings, line: int, text: str, *more: str) -> None:
        if not text.startswith("--optimizer"):
            take(findings, line, text, *more)

    monkeypatch.setattr(Findings, "leave_to_site", forget)
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    lossy = adopt([script], tmp_path / "mine.yaml")
    assert lossy.check == AdoptMessage.OPTIONS_LOST.fill(number=1, options="--optimizer")
    assert "passes. Next" not in lossy.as_text()
    assert lossy.as_dict()["check"] == lossy.check


def test_the_command_prints_the_proof_and_has_it_as_json(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    words = ["adopt", str(script), "--out", str(tmp_path / "mine.yaml"), "--json"]
    result = json.loads(CliRunner().invoke(cli, words).stdout)
    row = next(row for row in result["proof"] if row["option"] == "--optimizer")
    assert (row["verdict"], row["rank"], row["place"]) == (
        "dropped",
        Importance.TRAINING,
        "line 11",
    )
    assert result["site_block"] and result["model_entry"]


def test_entries_of_deepspeeds_file_are_proven_too(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        "cat > ds.json <<EOF\n"
        '{"train_batch_size": 64, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5}, "fp16": {"enabled": true}}\n'
        "EOF\n"
        "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config ds.json --num-layers 12 --hidden-size 768 "
        "--num-attention-heads 12 --global-batch-size 64 --train-iters 10 --lr 1e-4 --fp16\n"
    )
    rows = verdicts(adopt([script], tmp_path / "mine.yaml"))
    assert rows["deepspeed_config train_batch_size"][0] is OptionVerdict.SAME
    assert rows["deepspeed_config zero_optimization.stage"][0] is OptionVerdict.SAME
    assert rows["deepspeed_config zero_optimization.reduce_bucket_size"][0] in (
        OptionVerdict.DROPPED,
        OptionVerdict.CHANGED,
    )
