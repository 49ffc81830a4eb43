"""The sandbox for `runbook adopt`: scripts can reach nothing outside, and all bash syntax is
understood.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import tomllib
from pathlib import Path

import psutil
import pytest
from suite.messages import containing, refuses
from suite.programs import shellcheck

from runbook.core import processes, shell
from runbook.core.errors import ParamsError, ProgramError
from runbook.tools.adopt import sandbox
from runbook.tools.adopt.adopt_scripts import _files_beside
from runbook.tools.adopt.adopt_scripts import _read as read_script
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.adoption import adopt
from runbook.tools.adopt.launches import launches_of
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.sandbox_trace import _EVENT, LineNumbers, _read, follow
from runbook.tools.adopt.script import FOLDER, Script

PROJECT = Path(__file__).parents[3]
TRAIN = "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --train-iters 10 --lr 1e-4 --bf16"


def followed(script: str, beside: dict[str, str] | None = None) -> Script:
    return follow([("job.sh", script)], beside or {}, lambda commands: bool(launches_of(commands)))


def arguments(script: str, beside: dict[str, str] | None = None) -> list[str]:
    """Return the words after the training script in the last launch."""
    return [word.text for word in launches_of(followed(script, beside).commands)[-1].arguments]


HARMLESS = {
    "writes in the home folder": 'echo owned > "$HOME/OWNED"; echo owned > ~/.bashrc',
    "writes where the user's files are": "echo owned > {outside}/OWNED; mkdir -p {outside} && touch {outside}/OWNED",
    "deletes the user's files": "rm -rf {outside} /home /tmp/* ~ 2>/dev/null",
    "reads a secret": "LEAK=$(cat {outside}/secret) || true; export LEAK",
    "writes into the system": "touch /usr/bin/OWNED /bin/OWNED /etc/OWNED; echo root::0:0::/:/bin/sh > /usr/OWNED",
    "makes the system writable": "mount -o remount,rw /usr; mount -o remount,rw,bind /usr; touch /usr/OWNED",
    "makes namespaces of its own": "unshare -Urm bash -c 'mount -o remount,rw,bind /usr; touch /usr/OWNED'",
    "leaves through its old root": "cd /proc/1/root && touch OWNED; cd /old && touch OWNED; "
    "chroot /proc/1/root touch {outside}/OWNED",
    "makes a device": "mknod /dev/sda b 8 0; dd if=/dev/zero of=/dev/sda count=1; echo x > /dev/mem",
    "talks to the network": "exec 3<>/dev/tcp/127.0.0.1/{port}; echo owned >&3; exec 4<>/dev/tcp/10.0.0.1/{port}",
    "talks to the network in Python": "python3 -c 'from socket import *; create_connection((\"127.0.0.1\", {port}))'",
    "stops its parent and goes on": "kill -STOP $PPID; sleep 1",
    "signals its parent": "kill -9 $PPID; kill -TERM $PPID",
    "signals the test by its number": "kill -9 {pid}; kill -TERM {pid}",
    "tunes the kernel": "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; sysctl -w kernel.panic=1",
    "fills the disk": "head -c 300M /dev/zero > /big; for i in 1 2 3; do head -c 100M /dev/zero > /tmp/big$i; done",
    "lies in its trace": "printf "
    "'\\036starter\\037/x\\0371\\037\\037/\\0370\\034--lr\\0379\\037\\034\\034\\035\\n' >&199",
    "becomes somebody else": "su -c 'touch {outside}/OWNED'; sudo touch {outside}/OWNED; setpriv --reuid=1000 true",
    "prints without end into a file": "(while :; do echo x; done) > /tmp/log & sleep 1",
}
ENDLESS = {
    "signals everybody": "kill -KILL -1",
    "forks without end": "f() {{ f | f & }}; f",
    "loops without end": "while true; do :; done",
    "takes all memory": "a=x; while true; do a=$a$a; done",
    "prints without end into the trace": "while true; do echo {outside} >&199; done",
    "stops its parent": "kill -STOP $PPID; while :; do read -t 1 x < <(sleep 1); done",
    "ignores signals": "trap '' TERM INT HUP; while true; do read -t 1 x < <(sleep 1); done",
}


@pytest.fixture
def outside(tmp_path):
    """Create a folder of the user with a secret. Every script below knows its path."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("the secret")
    folder.chmod(0o777)
    return folder


@pytest.fixture
def listener():
    """Open a port on this machine, and note whether anybody connects to it."""
    called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        done = threading.Event()

        def wait() -> None:
            while not done.is_set():
                try:
                    server.accept()[0].close()
                    called.set()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=wait)
        thread.start()
        yield server.getsockname()[1], called
        done.set()
        thread.join()


def nothing_started_since(before):
    """Wait until no process runs that was not running before.

    Fewer are fine: one that an earlier test left behind may have ended.
    """
    return processes.wait_until(
        lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= before, 60
    )


@pytest.mark.parametrize("deed", HARMLESS.values(), ids=HARMLESS)
def test_a_hostile_script_reaches_nothing_and_is_still_understood(deed, outside, listener):
    port, called = listener
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    script = f"#!/bin/bash\n{deed.format(outside=outside, port=port, pid=os.getpid())}\ntorchrun {TRAIN}\n"
    found = followed(script)
    assert {path.name for path in outside.iterdir()} == {"secret"}
    assert not called.is_set()
    assert "the secret" not in repr(found)
    assert not any(
        Path(place, "OWNED").exists()
        for place in ("/usr", "/usr/bin", "/etc", "/bin", "/", Path.home())
    )
    assert "--train-iters" in [
        word.text for launch in launches_of(found.commands) for word in launch.arguments
    ]
    assert nothing_started_since(before)


def test_a_missing_program_is_never_written_outside_the_sandbox(outside):
    climb = f"{'../' * 12}{str(outside)[1:]}/owned/program --x"
    starts = ("", "/", "./", "x/../", "/x/../", "/usr/../", "/dev/../")
    calls = "\n".join(f"{start}{climb}" for start in starts)
    assert "--train-iters" in arguments(f"#!/bin/bash\n{calls}\ntorchrun {TRAIN}\n")
    assert {path.name for path in outside.iterdir()} == {"secret"}


@pytest.mark.parametrize(
    "absent",
    [
        "/../../up",
        "/a/../../../up",
        "//up",
        "/./a/./../up/",
        "/..",
        "/",
        "/a/../b/../../../..",
        "/" + "a" * 300,
        "/file/below",
        "/usr/x",
        "/proc/self/exe",
        "/dev/stdin",
        "/x/../lib/y",
        "/etc/alternatives/java",
    ],
)
def test_stubs_stay_below_the_root_of_the_stage(absent, tmp_path):
    stage = tmp_path / "stage"
    stage.mkdir()
    sandbox._stage(stage, {"job.sh": ""}, ["/file", absent])
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]
    assert {path.name for path in stage.iterdir()} == {"above", "adopt", "job", "mount", "root"}
    stubs = {
        path.relative_to(stage / "root") for path in stage.rglob("root/**/*") if path.is_file()
    }
    assert stubs <= {Path("file"), Path("up")}


def test_paths_that_the_sandbox_needs_itself_stop_no_script():
    reserved = "/proc/self/exe /lib/no/program /dev/stdin /old/program ./configs /trace /a /a/b"
    calls = "\n".join(reserved.split())
    script = f"#!/bin/bash\n{calls}\ntorchrun {TRAIN}\n"
    assert "--train-iters" in arguments(script, {"configs/a.sh": ""})


def test_a_program_in_a_folder_above_gets_its_stub():
    script = f"#!/bin/bash\n../../../../tools/start.sh python {TRAIN}\n"
    assert "/tools/start.sh" in followed(script).commands[0].words[0].text


@pytest.fixture
def short_limit(monkeypatch):
    """Give each job three seconds, however busy the machine is."""
    monkeypatch.setattr(sandbox, "SECONDS", 3)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("num_waiting", "seconds"), [(0.5, 10), (4.0, 10), (10.0, 25), (1000.0, 40)]
)
def test_a_job_has_more_time_where_other_programs_keep_the_processors_busy(
    num_waiting, seconds, monkeypatch
):
    monkeypatch.setattr(os, "getloadavg", lambda: (num_waiting, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert sandbox.time_limit() == seconds


@pytest.mark.parametrize("deed", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.usefixtures("short_limit")
def test_a_script_without_an_end_is_stopped_and_said_to_be(deed, outside):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    started = time.monotonic()
    raw = sandbox.run_job(
        {"job.sh": deed.format(outside=outside)}, ["bash", "job.sh"], FOLDER, ENVIRONMENT
    ).raw
    assert time.monotonic() - started < 600
    assert len(raw) <= sandbox.MOST_BYTES
    assert (
        "\036exit\0370\034" not in raw or "f | f" in deed
    )  # it failed or was stopped; a script that only forks just fails
    assert nothing_started_since(before)


ENVIRONMENT = {"PATH": "/adopt/bin:/usr/bin:/bin", "BASH_ENV": "/adopt/stubs/shell.sh"}


@pytest.mark.usefixtures("short_limit")
def test_a_training_that_was_started_before_an_endless_wait_is_found(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 8)  # enough for a slow machine to start a sandbox
    found = followed(f"torchrun {TRAIN} &\nwhile true; do sleep 60; done\n")
    (note,) = [note for note in found.notes if note.startswith("job.sh was stopped after 8 s")]
    # The limit may end either command of the loop
    assert note.endswith(("true in line 2", "sleep in line 2"))
    assert len(launches_of(found.commands)) == 1


def test_the_limit_that_a_note_names_is_the_one_that_was_applied(monkeypatch):
    limits = iter(range(5, 100))
    monkeypatch.setattr(sandbox, "time_limit", lambda: next(limits))
    script = followed(f"torchrun {TRAIN} &\nwhile true; do sleep 60; done\n")
    (note,) = [note for note in script.notes if note.startswith("job.sh was stopped after")]
    assert note.startswith("job.sh was stopped after 5 s")


CONSTRUCTS = {
    "bash -c with words of the script": (
        "export LAUNCHER='python -m torch.distributed.launch --nproc_per_node 8'\nexport ARGS='--num-layers 12 "
        "--hidden-size 768 --lr 1e-4 --train-iters 10'\nsrun -N 2 --ntasks-per-node=1 bash -c '$LAUNCHER --node_rank "
        "$SLURM_PROCID pretrain_gpt.py $ARGS'\n",
        {},
    ),
    "functions, arrays, arithmetic, case and here-documents": (
        "size() { case $1 in small) echo 12;; *) echo 24;; esac; }\nL=$(size small)\nOPTS=(--num-layers $((L)))\n"
        "read -r -d '' MORE <<EOF\n--hidden-size 768\nEOF\n"
        "for o in lr=1e-4 train-iters=10; do OPTS+=(--${o%%=*} ${o#*=}); done\n"
        'mpirun -np 8 --hostfile h -x PATH python pretrain_gpt.py "${OPTS[@]}" $MORE\n',
        {},
    ),
    "a script that is sourced, by another folder": (
        "cd /scratch/me/train && . ./config.sh\nexec srun --container-image=a.sqsh torchrun pretrain_gpt.py $OPTS\n",
        {
            "config.sh": "export OPTS='--num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10'\n"
        },
    ),
    "programs by their full path": (
        "/opt/conda/envs/x/bin/torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10\n",
        {},
    ),
    "a guard for files of its machine": (
        "set -euo pipefail\n[ -d /lustre/data ] || { echo no data; exit 1; }\nmodule purge\n"
        "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10\n",
        {},
    ),
    "a job that submits another": (
        "sbatch --nodes=4 <<'EOF'\n#!/bin/bash\n#SBATCH --gpus-per-node=8\n"
        "srun torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10\nEOF\n",
        {},
    ),
    "arguments of its own": (
        "torchrun --nnodes $2 pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10 --save $1\n",
        {},
    ),
    "containers inside each other": (
        "singularity exec --nv -B /data:/data image.sif bash -c 'docker run --gpus all -e A=1 img:1 numactl "
        "--membind 0 torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 --train-iters 10'\n",
        {},
    ),
    "a launcher written in Python": (
        "python launch.py\n",
        {
            "launch.py": "import subprocess\nsubprocess.run('deepspeed pretrain_gpt.py --num-layers 12 --hidden-size 768 "
            "--lr 1e-4 --train-iters 10'.split())\n"
        },
    ),
    "what its author left to fill in": (
        "DATA=<path to the data>\ndeepspeed pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 1e-4 "
        "--train-iters 10 --data-path $DATA\n",
        {},
    ),
}


@pytest.mark.parametrize(("script", "beside"), CONSTRUCTS.values(), ids=CONSTRUCTS)
def test_arguments_reach_us_as_they_reach_the_program(script, beside):
    found = arguments(script, beside)
    text = " ".join(found)
    for wanted in ("--num-layers 12", "--hidden-size 768", "--lr 1e-4", "--train-iters 10"):
        assert wanted in text


def test_nodes_come_from_the_queue_of_the_job_that_was_submitted():
    script, _ = CONSTRUCTS["a job that submits another"]
    found = followed(script)
    assert ("nodes", "4") in {(one.name, one.value) for one in found.directives}
    assert launches_of(found.commands)[-1].programs == ["srun", "torchrun"]


@pytest.mark.parametrize(
    ("module", "starter"),
    [("torch.distributed.run", "torchrun"), ("deepspeed.launcher.runner", "deepspeed")],
)
def test_a_starter_that_python_runs_as_a_module_starts_its_command(module, starter):
    rank = f"exec python3 -u {TRAIN}\n"
    job = f"srun --nodes=2 python3 -m {module} --no_python bash rank.sh\n"
    found = launches_of(followed(job, {"rank.sh": rank}).commands)[-1]
    assert found.programs[:2] == ["srun", starter]
    assert found.script.text == TRAIN.split()[0]


def test_the_file_of_a_pbs_jobs_nodes_is_there_from_the_first_run():
    script = f"#PBS -l select=3\nhosts=$(wc -l < $PBS_NODEFILE)\nmpiexec -n $hosts python {TRAIN} --tp $hosts\n"
    assert arguments(script)[-2:] == ["--tp", "3"]


def test_an_option_whose_value_is_missing_is_left_over_and_not_lost():
    found = adopt(
        [("job.sh", f"torchrun {TRAIN} --global-batch-size $(tail -n 1 batch.txt)\n")],
        "mine",
        PROJECT,
    )
    no_value = AdoptMessage.NO_VALUE.fill(key="training.global_batch")
    assert ("--global-batch-size", no_value) in {
        (one.text, one.why) for one in found.findings.leftovers
    }
    found = adopt([("job.sh", f"torchrun {TRAIN} --micro-batch-size $MICRO\n")], "mine", PROJECT)
    assert any(one.text == "--micro-batch-size $MICRO" for one in found.findings.leftovers)


def test_a_model_that_is_not_a_gpt_is_named():
    found = adopt(
        [("job.sh", f"torchrun {TRAIN.replace('gpt', 'mamba')} --num-experts 8\n")], "mine", PROJECT
    )
    assert {"pretrain_mamba.py", "--num-experts"} <= {one.text for one in found.findings.leftovers}


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("#SBATCH -p gpu_p5", "slurm"),
        ("wget https://s3.amazonaws.com/models/gpt2-vocab.json", "slurm"),
        ("export FI_EFA_USE_DEVICE_RDMA=1", "aws"),
    ],
)
def test_a_site_is_not_guessed_from_a_word_alone(name, site):
    assert (
        adopt(
            [("job.sh", f"#!/bin/bash\n{name}\nsrun torchrun {TRAIN}\n")], "mine", PROJECT
        ).findings.site.site
        == site
    )


def test_without_a_sandbox_nothing_is_run_and_the_remedy_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(
        sandbox.shutil, "which", lambda name: None if name == "unshare" else f"/usr/bin/{name}"
    )
    with refuses(
        ProgramError,
        AdoptMessage.NO_BUBBLEWRAP,
        absent="unshare",
        install=containing("`runbook adopt` runs the script in a sandbox"),
    ):
        followed(f"touch {tmp_path}/x; torchrun {TRAIN}")
    monkeypatch.undo()
    monkeypatch.setattr(sandbox, "_NAMESPACES", ("--no-such-namespace",))
    with refuses(ProgramError, AdoptMessage.NO_SANDBOX, reason=containing("no-such-namespace")):
        followed(f"touch {tmp_path}/x; torchrun {TRAIN}")
    assert list(tmp_path.iterdir()) == []


def test_stubs_are_shell_scripts_that_shellcheck_accepts():
    paths = sorted(str(path) for path in sandbox.STUBS.glob("*.sh"))
    said = shell.run(
        [
            shellcheck(),
            "--shell=bash",
            "--severity=warning",
            "--exclude=SC1091,SC2034,SC2154",
            *paths,
        ],
        check=False,
    )
    assert said.out == ""


def test_what_bash_cannot_read_is_an_error_of_the_script():
    with refuses(ParamsError, AdoptMessage.NO_TRAINING_STARTED, file_name="job.sh"):
        adopt([("job.sh", f'if true; then echo "\n{TRAIN}')], "mine", PROJECT)


def test_interrupting_leaves_no_process():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            sandbox_files = {
                "job.sh": "/usr/bin/sleep 8"
            }  # called by its path, so there is no stub and the trace does not fill up
            sandbox.run_job(sandbox_files, ["bash", "job.sh"], FOLDER, ENVIRONMENT)
    finally:
        timer.cancel()
    assert nothing_started_since(before)


def test_a_script_that_ends_before_its_training_says_why(tmp_path):
    """A script may print 400 MB, but a value of many megabytes appears in the trace and fills it."""
    training = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
    loud = tmp_path / "loud.sh"
    loud.write_text(f"yes 0123456789abcdef | head -c 400000000\n{training}\n")
    assert adopt_files([loud], tmp_path / "loud.yaml").adopted.launch is not None
    long = tmp_path / "long.sh"
    long.write_text(f"text=$(yes 0123456789abcdef | head -c 20000000)\n{training}\n")
    with refuses(
        ParamsError,
        AdoptMessage.NO_TRAINING_STARTED,
        notes=containing("long.sh was stopped after 8 MiB of traced commands"),
    ):
        adopt_files([long], tmp_path / "long.yaml")


@pytest.mark.parametrize("start", ["\036", "\001", "\036x\001\n"])
def test_a_long_hostile_trace_is_read_in_linear_time(start):
    began = time.process_time()
    assert list(_EVENT.finditer(start * 200_000)) == []
    assert time.process_time() - began < 2


@pytest.mark.parametrize("line", ["\n", "f() {\n"])
def test_endless_lines_of_a_script_are_read_in_linear_time(line):
    def seconds_for(num_lines):
        script = "#!/bin/bash\n" + line * num_lines + f"torchrun {TRAIN}\n"
        job = sandbox.SandboxJob("job.sh", {"job.sh": script}, [])
        began = time.process_time()
        sandbox.entered_once("job.sh", script)
        sandbox.needed_arguments(job)
        sandbox.environment(job, sandbox.FIRST_RUN)
        return time.process_time() - began

    # If the time grew with the square of the length, it would be 16 times as long.
    assert seconds_for(160_000) < 10 * seconds_for(40_000)


def test_arguments_of_functions_are_no_arguments_of_the_script():
    script = "f() {\n echo $3\n}\nfunction g () {\n echo $4\n }\necho $1\n"
    job = sandbox.SandboxJob("job.sh", {"job.sh": script}, [])
    assert len(sandbox.needed_arguments(job)) == 1


def test_two_scripts_of_one_name_are_refused():
    with refuses(ParamsError, AdoptMessage.SCRIPTS_OF_ONE_NAME, name="run.sh"):
        follow([("run.sh", "true"), ("run.sh", "false")], {}, lambda _: True)


def test_numbers_of_a_trace_that_are_no_numbers_stop_nothing():
    job = sandbox.SandboxJob("job.sh", {"job.sh": ""}, [])
    nines = "9" * 5000
    raw = f"\001job.sh\002{nines}\002/\003true\n"
    for number in ("²", nines):
        raw += f"\036exit\037{number}\034\034\034\035\n"
        raw += f"\036unknown\037/x\0371\037\037/\037{number}\034a\037\034\034\035\n"
    trace = _read(raw, job, LineNumbers(job.files))
    assert trace.exit_code is None
    assert [word.text for word in trace.commands[-1].words] == ["a"]


def test_lines_are_counted_as_bash_counts_them():
    script = f"#!/bin/bash\n# a\x0cb\x1cc\u2028d\x85e\n\n#SBATCH --nodes=4\ntorchrun {TRAIN}\n"
    script_seen = followed(script)
    assert script_seen.directives[0].line == 4
    assert launches_of(script_seen.commands)[-1].command.line == 5
    assert "torchrun" in script_seen.line(5)


@pytest.fixture
def project(tmp_path):
    """Create a project with a script, and a folder outside the project."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.sh").write_text(f"#!/bin/bash\ntorchrun {TRAIN}\n")
    return folder


def test_files_behind_links_stay_outside_the_sandbox(project, outside):
    (outside / "private.sh").write_text("the secret")
    (project / "folder").symlink_to(outside)
    (project / "link.sh").symlink_to(outside / "private.sh")
    (project / "loop").symlink_to(project / "loop")
    (project / ".git").mkdir()
    (project / "jobs").mkdir()
    script = project / "jobs" / "run.sh"
    named = "folder/private.sh link.sh loop/a.sh ../link.sh ../folder/private.sh ../../outside/private.sh"
    script.write_text(f"#!/bin/bash\ncat {named} /{outside}/private.sh\n")
    beside, _ = _files_beside(project / "run.sh")
    beside |= _files_beside(script)[0]
    assert "the secret" not in beside.values()


def test_a_file_next_to_the_script_that_cannot_be_read_is_left_out(project, monkeypatch):
    closed = project / "closed.sh"
    closed.write_text("x")
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:  # root may read every file
        if path.name == closed.name:
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    script = project / "jobs" / "run.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/bash\n../closed.sh\n")
    assert _files_beside(project / "run.sh")[1] == {
        "closed.sh": AdoptMessage.FILE_NOT_READABLE.fill(reason="Permission denied")
    }
    assert "../closed.sh" not in _files_beside(script)[0]


def test_a_byte_order_mark_is_no_part_of_a_source(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert tomllib.loads(read_script(path)) == {"a": 1}
