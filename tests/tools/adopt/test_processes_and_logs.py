"""A running training process, a queued job and a log: adopt reads each of them as it reads a script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from suite.messages import containing, refuses

from runbook.cli.messages import CliMessage
from runbook.cli.program import cli
from runbook.core.errors import JobError, ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.submitted_script import submitted_script
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt_job, adopt_process
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.processes_and_logs import is_log, script_of_log, script_of_process
from runbook.tools.adopt.proof import OptionVerdict

OPTIONS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --train-iters 10 --lr 1e-4 --bf16"
)
LOG = """[rank0]: using world size: 16, data-parallel size: 8
[default0]:------------------------ arguments ------------------------
[default0]:  adam_beta2 ...................................... 0.95
[default0]:  add_bias_linear ................................. False
[default0]:  attention_dropout ............................... 0.0
[default0]:  bf16 ............................................ True
[default0]:  data_path ....................................... ['/data/my_text_document']
[default0]:  global_batch_size ............................... 256
[default0]:  hidden_dropout .................................. 0.0
[default0]:  hidden_size ..................................... 768
[default0]:  log_params_norm ................................. False
[default0]:  lr .............................................. 0.0001
[default0]:  micro_batch_size ................................ 4
[default0]:  normalization ................................... LayerNorm
[default0]:  num_attention_heads ............................. 12
[default0]:  num_layers ...................................... 12
[default0]:  optimizer ....................................... sgd
[default0]:  seq_length ...................................... 2048
[default0]:  tensor_model_parallel_size ...................... 2
[default0]:  train_iters ..................................... 77
[default0]:  world_size ...................................... 16
[default0]:-------------------- end of arguments ---------------------
"""


def values(report: AdoptReport) -> dict[str, object]:
    return {carried.key: carried.value for carried in report.adopted.findings.carried.values()}


@pytest.fixture
def process(tmp_path):
    """Start a waiting Python, named like a training program, with its options and job variables."""
    script = tmp_path / "pretrain_gpt.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    (tmp_path / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 3}))
    words = [
        sys.executable,
        str(script),
        *OPTIONS.split(),
        "--deepspeed",
        "--deepspeed_config",
        "ds.json",
    ]
    environment = {
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "NCCL_IB_HCA": "mlx5",
        "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
        "OTHER": "of nobody's business",
    }
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == b"up\n"
        yield running.pid
        running.communicate(b"")


def test_a_running_process_becomes_a_run_file_and_keeps_its_secrets(process, tmp_path):
    report = adopt_process(process, tmp_path / "mine.yaml")
    carried = values(report)
    assert (carried["training.iterations"], carried["training.precision"]) == (10, "bf16")
    assert (carried["jobs.training.nodes"], carried["jobs.training.devices_per_node"]) == (2, 4)
    assert carried["training.micro_batch"] == 3
    assert any(remark.text == "NCCL_IB_HCA=mlx5" for remark in report.adopted.findings.leftovers)
    everything = report.as_text() + report.adopted.text + json.dumps(report.as_dict())
    assert "hf_AbCd" not in everything and "business" not in everything
    assert f"process {process}: --train-iters" in report.adopted.text


def test_a_process_that_is_not_there_is_said(tmp_path):
    with refuses(ParamsError, AdoptMessage.NO_SUCH_PROCESS, number=7):
        script_of_process(7, tmp_path)


def test_a_log_with_megatrons_arguments_becomes_a_run_file(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LOG)
    report = adopt_files([path], tmp_path / "mine.yaml")
    carried = values(report)
    wanted = {
        "training.iterations": 77,
        "parallel.tensor": 2,
        "training.dropout": 0.0,
        "data.folder": "/data/my_text_document",
        "jobs.training.nodes": 2,
        "training.adam_beta2": 0.95,
    }
    assert {key: carried.get(key) for key in wanted} == wanted
    verdicts = {row.option: row.verdict for row in report.proof}
    assert verdicts["--optimizer"] is OptionVerdict.DROPPED
    # mpt-70b has layer norms and no biases
    assert verdicts["--disable-bias-linear"] is OptionVerdict.SAME
    assert "model: mpt-70b" in report.adopted.text
    assert OptionVerdict.UNACCOUNTED not in verdicts.values()
    (iterations,) = re.findall(r"^ *iterations: 77 +# (.+)$", report.adopted.text, re.MULTILINE)
    place, _, option = iterations.partition(": ")
    assert (place.split(), option) == (["line", "20"], "--train-iters")


def test_a_fused_loss_of_a_log_is_dropped_where_our_trainer_runs(tmp_path):
    end = "[default0]:-------------------- end"
    fused = "cross_entropy_loss_fusion: True\ncross_entropy_fusion_impl: te\n"
    lines = [f"[default0]:  {line.replace(': ', ' .......... ')}\n" for line in fused.splitlines()]
    (tmp_path / "train.log").write_text(LOG.replace(end, "".join(lines) + end))
    report = adopt_files([tmp_path / "train.log"], tmp_path / "mine.yaml")
    assert values(report)["training.framework"] == "runbook"
    assert "training.loss_fusion" not in values(report)
    rows = {row.option: row for row in report.proof}
    for option in ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"):
        assert rows[option].verdict is OptionVerdict.DROPPED


def test_a_job_of_a_queue_is_adopted_by_its_number(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    script = f"#!/bin/bash\\n#SBATCH --nodes=3\\nsrun torchrun pretrain_gpt.py {OPTIONS}\\n"
    scontrol = programs / "scontrol"
    scontrol.write_text(
        f'#!/bin/bash\ncase "$*" in "write batch_script 4242 -") printf \'{script}\' ;; '
        "*) echo 'job script retrieval failed: Invalid job id specified' >&2; exit 1 ;; esac\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    report = adopt_job("4242", tmp_path / "mine.yaml")
    assert values(report)["jobs.training.nodes"] == 3
    with refuses(
        JobError, JobMessage.SLURM_HAS_NO_SCRIPT, reason=containing("Invalid job id specified")
    ):
        submitted_script("7")


def test_a_job_of_pbs_is_the_file_that_was_submitted(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    script = "#PBS -l select=2\n"
    (tmp_path / "job.pbs").write_text(script)
    job = {"Submit_arguments": "-A lab job.pbs", "Variable_List": {"PBS_O_WORKDIR": str(tmp_path)}}
    qstat = programs / "qstat"
    qstat.write_text(f"#!/bin/bash\nprintf %s '{json.dumps({'Jobs': {'7.server': job}})}'\n")
    qstat.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))  # hides this machine's own scontrol
    assert submitted_script("7") == ("job.pbs", script)


def test_one_source_at_a_time():
    result = CliRunner().invoke(cli, ["adopt", "--pid", "1", "--job", "2"])
    assert result.exit_code == 2
    assert CliMessage.ONE_SOURCE.fill() in result.output
    assert CliRunner().invoke(cli, ["adopt"]).exit_code == 2


def test_long_words_of_a_log_are_read_in_linear_time():
    edge = "-" * 40_000
    began = time.process_time()
    assert not is_log(edge)
    script_of_log(f"----- arguments -----\n{'a' * 40_000}\n----- end of arguments -----\n", "log")
    assert time.process_time() - began < 1
