"""Hostile scripts that only use features of bash: nothing reaches the machine, the run file or the
terminal.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.tools.adopt.adopt_scripts import AdoptReport
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.launches import launches_of
from runbook.tools.adopt.sandbox_trace import follow

TRAIN = (
    "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --train-iters 10 --lr 1e-4 --bf16"
)
DEEDS = {
    "paths that climb, and links": """
ln -s {outside} link; echo owned > link/OWNED
echo owned > "./$(printf '../%.0s' {{1..20}}){outside}/OWNED"
cd -P /tmp/../../..; mkdir -p ".{outside}"; touch ".{outside}/OWNED" "/proc/self/root{outside}/OWNED"
cd "$OLDPWD" """,
    "process substitution": """
tee >(cat > {outside}/OWNED) < <(cat {outside}/secret) > /dev/null
export NCCL_SECRET=$(cat <(cat {outside}/secret)) """,
    "a file that every bash reads": """
printf 'touch {outside}/OWNED\\ncat {outside}/secret >&199\\n' > /tmp/evil
BASH_ENV=/tmp/evil ENV=/tmp/evil bash -c true
export BASH_ENV=/tmp/evil """,
    "other separators": """
export IFS='/-= '; set -f
export GLOBIGNORE='*' """,
    "printf -v": """
printf -v 'PATH' '%s' /tmp/evil:/usr/bin
printf -v 'a[$(touch {outside}/OWNED)]' x
printf -v PS4 '$(touch {outside}/OWNED)'; printf -v BASH_XTRACEFD 1 """,
    "traps": """
set -T
trap 'touch {outside}/OWNED; LEAK=$(cat {outside}/secret)' DEBUG RETURN ERR
trap 'cat {outside}/secret >&199; touch {outside}/OWNED' EXIT """,
    "a coprocess": """
coproc EVIL {{ while read -r line; do touch {outside}/OWNED; cat {outside}/secret; done; }}
echo go >&"${{EVIL[1]}}"; read -r -t 1 LEAK <&"${{EVIL[0]}}"; export LEAK """,
    "bash's own network": """
exec 5<>/dev/tcp/127.0.0.1/{port} && echo owned >&5
cat < /dev/tcp/localhost/{port}; echo owned > /dev/udp/127.0.0.1/{port} """,
    "control characters from a here-string": """
read -r NAME <<< $'\\e]0;owned\\a\\x9b31m\\u202eowned\\b\\x7f'
export NCCL_NAME="$NAME"; TRAIN_MORE="--own-name $NAME" """,
    "escapes in names": """
export NCCL_COLOUR=$'\\e[2J\\e[31mowned'
$'/tmp/\\e[31mevil\\e[0m' --x
module load $'cuda\\e[1A\\rowned'
mkdir -p $'\\e[2Jowned' && cd $'\\e[2Jowned' && cd .. """,
    "a library before all others": """
printf 'not a library' > /tmp/evil.so
export LD_PRELOAD=/tmp/evil.so LD_AUDIT=/tmp/evil.so PYTHONSTARTUP={outside}/evil.py PYTHONPATH=/tmp GCONV_PATH=/tmp
python3 -c 'open("{outside}/OWNED", "w")' """,
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Create a user's folder with a secret. Every script knows its path."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("the-secret-word")
    folder.chmod(0o777)
    return folder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Open a port on this machine that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def is_quiet(listener: socket.socket) -> bool:
    """Return whether nobody has connected."""
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


def written(deed: str, outside: Path, listener: socket.socket) -> str:
    """Return a hostile command with the folder and the port that it attacks."""
    return deed.format(outside=outside, port=listener.getsockname()[1])


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_hostile_script_reaches_nothing_and_is_still_understood(deed, outside, listener):
    text = f"#!/bin/bash\n{written(deed, outside, listener)}\ntorchrun {TRAIN} $TRAIN_MORE\n"
    script = follow([("job.sh", text)], {}, lambda commands: bool(launches_of(commands)))
    assert {path.name for path in outside.iterdir()} == {"secret"}
    assert is_quiet(listener)
    assert "the-secret-word" not in repr(script)
    arguments = [word.text for word in launches_of(script.commands)[-1].arguments]
    assert arguments[: len(TRAIN.split()) - 1] == TRAIN.split()[1:]


@pytest.fixture
def report(outside: Path, listener: socket.socket, tmp_path: Path) -> AdoptReport:
    """Return the report about a script with control characters wherever it can name something."""
    requests = "#SBATCH --job-name=\033[31mowned\n#SBATCH --comment=\u202eowned\n#OAR -n \033[2J\n"
    names = ("control characters from a here-string", "escapes in names", "process substitution")
    deeds = "\n".join(written(DEEDS[name], outside, listener) for name in names)
    script = tmp_path / "job.sh"
    own = "--own-name $'\\e[2Jowned' --tensorboard-dir $'\\x9b2J/owned' $'\\e[31m' --save /a$'\\r\\n'b"
    script.write_text(f"#!/bin/bash\n{requests}{deeds}\ntorchrun {TRAIN} $TRAIN_MORE {own}\n")
    return adopt_files([script], tmp_path / "mine.yaml")


def test_nothing_of_a_hostile_script_reaches_the_run_file_or_the_terminal(report, outside):
    assert {path.name for path in outside.iterdir()} == {"secret"}
    texts = (report.as_text(), report.path.read_text(), report.site_block, report.model_entry)
    for text in texts:
        assert "the-secret-word" not in text
        assert all(letter.isprintable() or letter == "\n" for letter in text)
