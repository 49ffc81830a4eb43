"""Remedies of runbook/results/failures/kinds.py: each failure is caused for real, recognized, and
ended by following its remedy.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from runbook.cli.check import check
from runbook.results.failures import kinds
from runbook.results.failures.finder import find_cause, find_failures

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def cause_of(text: str) -> str:
    """Name the failure shown in program output."""
    cause = find_cause(find_failures(text.splitlines()))
    assert cause is not None, text
    return cause.name


def words_of(*command: str, **options) -> str:
    """Return the output of a program that fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def succeed(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host_memory_a_process_that_its_limit_stops_passes_without_the_limit():
    command = (sys.executable, "-c", "import mmap; bytearray(600 << 20)")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))

    assert cause_of(words_of(*command, preexec_fn=limit)) == kinds.HOST_MEMORY.name
    succeed(*command)


RANKS = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

def together(work, store, seconds):
    "Run two ranks; each writes its words to a file of its own."
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            sys.stderr = open(f"{store}.{rank}", "w")
            os.dup2(sys.stderr.fileno(), 2)
            code = 1
            try:
                dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank,
                                        world_size=2, timeout=timedelta(seconds=seconds))
                work(rank)
                code = 0
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(code)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]

def late(rank):
    if rank == 1:
        time.sleep(3)
    dist.all_reduce(torch.ones(1))

def dies(rank):
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        torch.empty(1 << 50)
    dist.all_reduce(torch.ones(1))

def differs(rank):
    dist.all_reduce(torch.ones(1 + rank))

def agrees(rank):
    dist.all_reduce(torch.ones(2))

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
folder = sys.argv[1]
print(together(late, folder + "/late", 1) == [0, 0])
print(together(late, folder + "/patient", 120) == [0, 0])
print(together(dies, folder + "/dies", 120) == [0, 0])
table = torch.zeros(10, 2)
ids = torch.tensor([3, 11])
try:
    torch.nn.functional.embedding(ids, table)
except IndexError as error:
    print(f"IndexError: {error}")
torch.nn.functional.embedding(ids, torch.zeros(int(ids.max()) + 1, 2))
print("looked up")
dist.set_debug_level(dist.DebugLevel.DETAIL)
print(together(differs, folder + "/differs", 60) == [0, 0])
print(together(agrees, folder + "/agrees", 60) == [0, 0])
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Run two ranks three times: with too short a timeout, with a sufficient one, and with one rank
    lost. Then look up a token id outside the vocabulary.
    """
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranks")
    lines = succeed(sys.executable, "-c", RANKS, str(folder)).splitlines()
    return lines, folder


def test_collective_timeout_a_longer_limit_lets_a_slow_step_end(ranks):
    lines, folder = ranks
    assert lines[:2] == ["False", "True"]
    assert cause_of((folder / "late.0").read_text()) == "collective timeout"


def test_another_rank_ended_first_the_logs_of_all_ranks_name_the_cause(ranks):
    lines, folder = ranks
    assert lines[2] == "False"
    survivor, victim = ((folder / f"dies.{rank}").read_text() for rank in range(2))
    assert cause_of(survivor) == kinds.PEER_DIED.name
    assert cause_of(survivor + victim) == kinds.HOST_MEMORY.name


def test_device_fault_a_vocabulary_as_large_as_the_largest_id_ends_it(ranks):
    lines, _ = ranks
    assert cause_of(lines[3]) == "device fault"
    assert lines[4] == "looked up"


def test_collectives_differ_tensors_of_one_shape_pass(ranks):
    lines, folder = ranks
    assert lines[5:] == ["False", "True"]
    said = "".join((folder / f"differs.{rank}").read_text() for rank in range(2))
    assert cause_of(said) == kinds.COLLECTIVES_DIFFER.name


@needs_gcc
def test_library_does_not_fit_ldd_names_it_and_the_right_path_finds_it(tmp_path):
    (tmp_path / "seven.c").write_text("int seven(void) { return 7; }\n")
    (tmp_path / "main.c").write_text("int seven(void);\nint main(void) { return seven() - 7; }\n")
    (tmp_path / "lib").mkdir()
    succeed("gcc", "-shared", "-fPIC", "-o", "lib/libseven.so", "seven.c", cwd=tmp_path)
    succeed("gcc", "-o", "program", "main.c", "-Llib", "-lseven", cwd=tmp_path)
    program = str(tmp_path / "program")
    assert cause_of(words_of(program)) == kinds.ABI.name
    if shutil.which("ldd"):
        lines = [line.strip() for line in succeed("ldd", program).splitlines()]
        libraries = dict(line.split(" => ") for line in lines if " => " in line)
        assert libraries["libseven.so"] == "not found"
    succeed(program, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib")})


@needs_gcc
def test_extension_build_failed_pythons_headers_on_the_path_end_it(tmp_path):
    source = tmp_path / "helpers.c"
    source.write_text("#include <Python.h>\nint ready(void) { return Py_IsInitialized(); }\n")
    command = ("gcc", "-c", "-fPIC", "-o", str(tmp_path / "helpers.o"), str(source))
    headers = sysconfig.get_paths()["include"]
    if not (Path(headers) / "Python.h").exists():
        pytest.skip("this Python has no headers")
    assert cause_of(words_of(*command, env={"PATH": os.environ["PATH"]})) == kinds.BUILD.name
    succeed(*command, f"-I{headers}")


WAIT_FOR_LOCK = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("file_baton", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
baton = module.FileBaton(sys.argv[2])
if not baton.try_acquire():
    print("Building extension module helpers...", flush=True)
    baton.wait()
"""


def test_fused_kernel_build_hangs_deleting_its_folder_lets_it_go_on(tmp_path):
    torch = pytest.importorskip("torch")
    baton = Path(torch.__file__).parent / "utils" / "file_baton.py"
    build = tmp_path / "build"
    build.mkdir()
    (build / "lock").touch()
    command = (sys.executable, "-c", WAIT_FOR_LOCK, str(baton), str(build / "lock"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert cause_of(process.stdout.readline()) == kinds.HANGING_BUILD.name
        time.sleep(0.3)
        assert process.poll() is None, "it waits for a lock that nobody holds"
        shutil.rmtree(build)
        assert process.wait(timeout=300) == 0


def test_notebook_kernel_kernelspec_list_names_one_that_runs(tmp_path):
    papermill = pytest.importorskip("papermill")
    pytest.importorskip("ipykernel")
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    spec = {"name": "of-another-machine", "display_name": "x", "language": "python"}
    cell = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": "1",
    }
    book = {"cells": [cell], "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps(book))
    run = {
        "input_path": str(path),
        "output_path": str(tmp_path / "out.ipynb"),
        "progress_bar": False,
    }
    with pytest.raises(NoSuchKernel) as refusal:
        papermill.execute_notebook(**run)
    assert cause_of(f"NoSuchKernel: {refusal.value}") == "notebook kernel"
    name = sorted(KernelSpecManager().find_kernel_specs())[0]
    papermill.execute_notebook(**run, kernel_name=name)


def test_hub_out_of_reach_a_folder_of_the_login_node_and_offline_mode_end_it(tmp_path):
    pytest.importorskip("huggingface_hub")
    ask = "from huggingface_hub import hf_hub_download as get; print(get('nobody/tiny', 'config.json'))"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    said = words_of(sys.executable, "-c", ask, env=environment)
    assert cause_of(said) == kinds.HUB.name
    # The files that a download on a login node leaves in HF_HOME.
    repository = tmp_path / "hub" / "models--nobody--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert succeed(sys.executable, "-c", ask, env=environment).strip().endswith("config.json")


def test_process_ended_by_a_signal_the_first_frame_says_where():
    program = "import ctypes\ndef reads_nothing():\n    ctypes.string_at(0)\nreads_nothing()"
    said = words_of(sys.executable, "-X", "faulthandler", "-c", program)
    assert cause_of(said) == kinds.PROGRAM_ENDED.name
    frames = [line for line in said.splitlines() if line.startswith("  File ")]
    assert "string_at" in frames[0]
    assert "reads_nothing" in frames[1]


def test_the_programs_own_error_the_line_named_is_the_one_to_correct(tmp_path):
    program = tmp_path / "train.py"
    text = "import json\ndef read(row):\n    return row + 1\njson.loads('3', parse_int=read)\n"
    program.write_text(text)
    cause = find_cause(find_failures(words_of(sys.executable, str(program)).splitlines()))
    assert cause is not None and cause.name == kinds.OWN_ERROR.name
    place = re.search(r"\[(.+):(\d+) in read\]$", cause.evidence)
    assert place is not None and Path(place[1]) == program
    lines = text.splitlines()
    lines[int(place[2]) - 1] = "    return int(row) + 1"
    program.write_text("\n".join(lines))
    succeed(sys.executable, str(program))


def test_module_missing_the_python_that_was_prepared_has_it(tmp_path):
    ask = ("-c", "import click")
    prepared = Path(sys.prefix)
    other = tmp_path / "other"
    succeed(sys.executable, "-m", "venv", "--without-pip", str(other))
    assert cause_of(words_of(str(other / "bin" / "python"), *ask)) == "module missing"
    succeed(str(prepared / "bin" / "python"), *ask)


OVERFLOWS = """
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

def train(dtype):
    scaler = DynamicLossScaler(init_scale=1.0, scale_window=1000, min_scale=1.0, delayed_shift=1,
                               consecutive_hysteresis=False, raise_error_at_min_scale=True, dtype=dtype)
    weight = torch.full((4, 4), 300.0, dtype=dtype, requires_grad=True)
    for _ in range(4):
        weight.grad = None
        output = torch.full((4, 4), 300.0, dtype=dtype) @ weight
        (output.square().sum() * scaler.loss_scale).backward()
        scaler.update_scale(not weight.grad.isfinite().all())

train(torch.bfloat16)
print("bf16 trains")
train(torch.float16)
"""


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs DeepSpeed")
def test_loss_scale_at_its_floor_what_overflows_in_fp16_is_finite_in_bf16():
    said = words_of(sys.executable, "-c", OVERFLOWS)
    assert "bf16 trains" in said
    assert cause_of(said) == kinds.LOSS_SCALE.name


def test_settings_do_not_fit_check_finds_them_before_a_job(tmp_path):
    runner = CliRunner()
    clone = Path(__file__).parents[2]
    run = str(clone / "params" / "local.yaml")
    wrong = runner.invoke(check, [run, "--set", "parallel.tensor=3"], catch_exceptions=True)
    assert wrong.exit_code != 0
    assert runner.invoke(check, [run]).exit_code == 0


@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="needs MPICH")
def test_launcher_failed_the_option_of_the_sites_mpi_starts_the_ranks():
    command = (
        "mpiexec.hydra",
        "-n",
        "2",
        sys.executable,
        "-c",
        # One write call, so that the lines of two ranks do not mix.
        "import os; os.write(1, os.environ['TOLD'].encode() + b'\\n')",
    )
    openmpi, mpich = ("-x", "TOLD=yes"), ("--env", "TOLD=yes")
    assert cause_of(words_of(command[0], *openmpi, *command[1:])) == "launcher failed"
    assert succeed(command[0], *mpich, *command[1:]).split() == ["yes", "yes"]


def test_no_such_file_the_right_path_runs(tmp_path):
    there = tmp_path / "train.py"
    there.write_text("")
    assert cause_of(words_of(sys.executable, str(tmp_path / "trian.py"))) == "file missing"
    succeed(sys.executable, str(there))
