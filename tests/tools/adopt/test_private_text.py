"""What `runbook adopt` does not reveal: the caller's environment, secrets next to a script, and
control characters.
"""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from runbook.cli.program import cli
from runbook.core.visible_text import find_hidden
from runbook.tools.adopt.adopt_scripts import is_secret_file
from runbook.tools.adopt.launches import launches_of
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.sandbox_trace import follow

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
TRAIN = "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --train-iters 10 --lr 1e-4"


def test_the_callers_environment_is_in_no_file_of_proc(monkeypatch):
    monkeypatch.setenv("OWN_TOKEN", "a-secret-of-the-caller")
    script = (
        "SEEN=$(cat /proc/[0-9]*/environ /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n')\n"
        f'torchrun {TRAIN} --save "$SEEN"\n'
    )
    seen = follow([("job.sh", script)], {}, lambda commands: bool(launches_of(commands)))
    assert "PATH=" in repr(seen), "the script did read environments"
    assert "a-secret-of-the-caller" not in repr(seen)


def adopt_in(tmp_path: Path, script: str) -> tuple[str, str]:
    """Return the report and the run file."""
    path = tmp_path / "job.sh"
    path.write_text(script)
    out = tmp_path / "mine.yaml"
    result = CliRunner().invoke(cli, ["adopt", str(path), "--out", str(out)])
    assert result.exit_code in (0, 1), result.output
    return result.output, out.read_text()


def test_no_secret_next_to_the_script_or_in_it_reaches_the_run_file(tmp_path):
    files = {
        "token": TOKEN,
        "wandb.txt": "0123456789abcdef0123456789abcdef01234567",
        "credentials.json": json.dumps({"key": "plain words"}),
        "cluster.env": f"export HF_TOKEN={TOKEN}\nexport WANDB_API_KEY=0123456789abcdef0123\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report, run_file = adopt_in(
        tmp_path,
        f"source cluster.env\nexport OTHER={TOKEN}\n"
        "A=$(cat token wandb.txt credentials.json 2>/dev/null)\n"
        f'torchrun {TRAIN} --save "/data/$HF_TOKEN$WANDB_API_KEY$A" --load "/data/$OTHER"\n',
    )
    for said in (report, run_file):
        for secret in (TOKEN, "0123456789abcdef0123", "plain words"):
            assert secret not in said
    for name in ("token", "wandb.txt", "credentials.json"):
        reason = AdoptMessage.LOOKS_LIKE_A_SECRET.fill()
        outside = AdoptMessage.OUTSIDE_SANDBOX.fill(name=name, reason=reason)
        assert outside in " ".join(report.split())


def test_steering_characters_of_a_script_reach_neither_report_nor_run_file(tmp_path):
    report, run_file = adopt_in(
        tmp_path,
        "T=$(printf '/data/\\033]0;owned\\007\\302\\233\\342\\200\\256x')\n"
        "export NCCL_X=$T\n#SBATCH --partition=\u202eevil\x1b]0;p\x07\n"
        f'torchrun {TRAIN} --save "$T" --data-path "$T"\n',
    )
    assert "owned" in report + run_file
    assert not find_hidden(report) and not find_hidden(run_file)


def test_files_that_are_started_or_only_named_alike_are_copied():
    assert not any(
        is_secret_file(name, "text with words")
        for name in ("count_tokens.py", "tokenizer.json", "keyboard.txt", "env.conf", "hosts")
    )
    assert all(
        is_secret_file(name, "x")
        for name in ("hf_token", "id_rsa", "api-key.txt", "my.secrets.yaml", "netrc", "TOKEN.txt")
    )
