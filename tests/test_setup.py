"""What `make setup`, conda and pip install, on machines with and without GPUs; nothing is installed here."""

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import set_up
import yaml
from packaging.requirements import Requirement

from runbook.cli.extras import ALL

CLONE = Path(__file__).parents[1]
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
LOCK = [
    Requirement(line)
    for line in (CLONE / "requirements.lock").read_text().splitlines()
    if line[0] != "#"
]
TORCH = set_up.torch_pin((CLONE / "requirements.lock").read_text())
INDEX = "https://download.pytorch.org/whl/"
ROCMINFO = "  Name:                    gfx942\n  Marketing Name:          AMD Instinct MI300X\n"


def named(name):
    return re.sub(r"[-_.]+", "-", name).lower()


PINS = {
    named(pin.name): next(iter(pin.specifier)).version
    for pin in LOCK
    if pin.marker is None or pin.marker.evaluate()
}


def program(folder, name, *lines):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """A machine without GPU programs but those it is given; make shows what it would do."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).symlink_to(CLONE / name)
    for name in ("nvidia-smi", "rocminfo", "rocm-smi"):
        program(tmp_path / "bin", name, "exit 127")

    def would(*words, **programs):
        for name, says in programs.items():
            program(tmp_path / "bin", name.replace("_", "-"), f"cat <<'END'\n{says}\nEND")
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "MAKEFLAGS": "",
        }
        environment.pop("GPU", None)
        argv = ["make", "-n", "--no-print-directory", *words]
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return would


def test_without_a_gpu_pytorch_comes_from_its_cpu_index(machine):
    said = machine("run").stdout
    assert f"--kind cpu --cpu-index {INDEX}cpu" in said
    assert "transformer_engine" not in said
    assert "To type runbook in this shell: source .venv/bin/activate" in said
    assert "local-gpu" not in said


NVIDIA = {"nvidia_smi": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1e)"}


def test_beside_an_nvidia_gpu_pytorch_has_cuda_and_the_run_says_what_local_does(machine):
    said = machine("run", **NVIDIA).stdout
    assert "--kind nvidia" in said and "--torch-index" not in said
    assert (
        "Site local hides the GPUs of this machine. To use them: runbook run local --set site=local-gpu"
        in said
    )
    assert "transformer_engine" not in said  # it takes minutes, and the run on the CPU needs none


@pytest.mark.parametrize("seen", [{}, NVIDIA])
def test_gpu_1_brings_transformer_engine_also_after_a_set_up_without_it(machine, tmp_path, seen):
    (tmp_path / ".venv").mkdir()
    for mark in (".installed-cpu", ".installed-nvidia"):
        (tmp_path / ".venv" / mark).touch()
    assert "set_up.py" not in machine("setup", **seen).stdout
    assert (
        "bash tools/transformer_engine.sh .venv/bin/python"
        in machine("setup", "GPU=1", **seen).stdout
    )


def test_gpu_0_takes_pytorch_for_the_cpu_beside_a_gpu(machine):
    assert "--kind cpu" in machine("setup", "GPU=0", **NVIDIA).stdout


@pytest.mark.parametrize(
    "programs", [{"rocminfo": ROCMINFO}, {"rocm_smi": "GPU[0]\t\t: Card series: AMD Instinct"}]
)
def test_beside_an_amd_gpu_the_index_of_rocm_is_asked_for(machine, programs):
    said = machine("run", **programs)
    assert said.returncode == 0 and "--kind cpu" in said.stdout
    assert "PyPI has no PyTorch for ROCm. Name the index of your ROCm" in said.stdout
    refused = machine("setup", "GPU=1", **programs)
    assert refused.returncode == 2
    assert f"make setup GPU=rocm TORCH_INDEX={INDEX}rocm" in refused.stderr
    named = machine("setup", "GPU=rocm", f"TORCH_INDEX={INDEX}rocm7.1", **programs).stdout
    assert "--kind rocm" in named and f"--torch-index {INDEX}rocm7.1" in named


@pytest.fixture
def set_up_with(tmp_path):
    """An environment whose pip is made up: it notes what it is asked for and fails where a text occurs in it."""
    (tmp_path / "venv").mkdir()

    def run(kind="cpu", torch_index="", *, fails_at="nothing", installed="", imports=0):
        program(
            tmp_path / "venv/bin",
            "python",
            f'echo "$@" >>{tmp_path / "asked"}',
            'case "$*" in',
            f'  *freeze*) echo "{installed}" ;;',
            f'  *"{fails_at}"*) echo "ERROR: Could not find a version: no route to host"; exit 1 ;;',
            f'  *"import torch"*) echo "libcudnn.so.9: cannot open" >&2; exit {imports} ;;',
            "  *) echo Collecting torch==2.13.0; echo Successfully installed torch ;;",
            "esac",
        )
        argv = [sys.executable, str(CLONE / "tools/set_up.py"), "--venv", str(tmp_path / "venv")]
        argv += ["--kind", kind, "--cpu-index", f"{INDEX}cpu", "--torch-index", torch_index]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.stderr == ""
        asked = (tmp_path / "asked").read_text().splitlines()
        installs = [line.partition("--progress-bar off ")[2] for line in asked if "install" in line]
        return SimpleNamespace(code=done.returncode, out=done.stdout, asked=asked, pip=installs)

    return run


def test_set_up_says_its_four_steps_with_source_and_size(set_up_with):
    done = set_up_with()
    assert done.code == 0
    steps = [line for line in done.out.splitlines() if line.startswith("[")]
    assert [step[:5] for step in steps] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert f"{TORCH} for the CPU from {INDEX}cpu: 0.2 GB to download" in steps[1]
    assert done.pip[0].startswith("--no-deps") and done.pip[0].endswith(f"{INDEX}cpu {TORCH}")
    assert [line.split()[0] for line in done.pip] == ["--no-deps"] * 3


def test_without_the_cpu_index_pytorch_comes_with_the_libraries_that_it_is_linked_to(set_up_with):
    """PyPI's build has CUDA: without them, importing it fails (libcudnn.so.9)."""
    done = set_up_with(fails_at=f"{INDEX}cpu")
    assert done.code == 0
    assert done.pip[1] == f"--constraint {CLONE / 'requirements.lock'} {TORCH}"
    assert "not to be had there: ERROR: Could not find a version: no route to host" in done.out
    assert "it comes with CUDA: 2.7 GB to download, 4.8 GB on disk" in done.out
    assert "make setup TORCH_CPU_INDEX=URL" in done.out


def test_sizes_are_those_of_the_pinned_pytorch():
    assert TORCH.replace("==", " ") in set_up.CUDA_BUILD


def test_beside_an_nvidia_gpu_a_cpu_build_is_replaced(set_up_with):
    done = set_up_with("nvidia", installed=f"{TORCH}+cpu")
    assert any("uninstall -qy torch" in line for line in done.asked)  # 2.13.0+cpu counts as 2.13.0
    assert f"--constraint {CLONE / 'requirements.lock'} {TORCH}" in done.pip
    assert not any("uninstall" in line for line in set_up_with("nvidia").asked[len(done.asked) :])


def test_rocm_has_its_own_index_and_triton(set_up_with, tmp_path):
    done = set_up_with("rocm", f"{INDEX}rocm7.1")
    assert f"--index-url {INDEX}rocm7.1 {TORCH}" in done.pip
    assert "triton==" not in (tmp_path / "venv/pins.lock").read_text()


def test_a_failed_step_shows_the_end_of_pips_output_and_names_the_log(set_up_with, tmp_path):
    done = set_up_with(fails_at="pins.lock")
    assert done.code == 1
    log = tmp_path / "venv/set-up.log"
    assert f"Setting up failed. All that pip said is in {log}" in done.out
    assert "ERROR: Could not find a version" in done.out and "no route" in log.read_text()
    assert "[4/4]" not in done.out


def test_a_pytorch_that_cannot_be_imported_ends_the_set_up(set_up_with):
    done = set_up_with(imports=1)
    assert done.code == 1
    assert "libcudnn.so.9: cannot open\nPyTorch is installed but cannot be imported" in done.out


# pip 23.2.1 on Python 3.12, not on a terminal, 2026-11-26; some lines left out.
PIP_LINES = """\
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (526.6 MB)
Collecting cuda-toolkit[cublas,cudart]==13.0.3 (from torch==2.13.0)
  Downloading filelock-4.3.1-py3-none-any.whl (244 kB)
"""


def test_progress_is_read_from_what_pip_says():
    progress = set_up.PipProgress()
    assert progress.text(3) == "pip starts, 3 s"
    for line in PIP_LINES.splitlines():
        progress.read(line)
    assert progress.text(12) == "package 2: cuda-toolkit, 527 MB downloaded, 12 s"
    progress.read("Installing collected packages: nvidia-cusparselt-cu13, mpmath, torch")
    assert progress.text(70) == "unpacking 3 packages, 527 MB downloaded, 70 s"


def test_a_terminal_has_one_status_line_and_a_log_a_line_every_half_minute(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(set_up.time, "monotonic", lambda: clock[0])
    terminal = Stream(is_terminal=True)
    log = Stream(is_terminal=False)
    lines = [set_up.StatusLine(stream) for stream in (terminal, log)]
    for second in range(65):
        clock[0] = float(second)
        for line in lines:
            line.show(f"{second} s")
    lines[0].clear()
    assert terminal.getvalue().count("\n") == 0 and terminal.getvalue().endswith("\r\033[K")
    assert log.getvalue() == "      30 s\n      60 s\n"


class Stream(io.StringIO):
    def __init__(self, *, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.fixture
def engine(tmp_path):
    """tools/transformer_engine.sh beside a python whose torch, pip and Transformer Engine are made up."""

    def run(cuda="13.0", nvcc=True, pip=0, imports=(1, 0)):
        tried = tmp_path / "tried"
        tried.unlink(missing_ok=True)
        program(
            tmp_path / "venv/bin",
            "python",
            'case "$*" in',
            f'  *"import transformer_engine"*) echo x >>{tried}; '
            f'[ "$(wc -l <{tried})" -eq 1 ] && exit {imports[0]}; exit {imports[1]} ;;',
            f'  *torch.version.cuda*) echo "{cuda.partition(".")[0]}" ;;',
            '  *importlib.metadata*) echo "transformer-engine[core_cu13,pytorch]<2.12.0,>=2.9.0a0" ;;',
            f'  *pip*) echo "asked for: $*"; echo "error: cudnn.h is missing"; exit {pip} ;;',
            "esac",
        )
        program(tmp_path / "bin", "nvcc" if nvcc else "no-nvcc")
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        argv = [
            "bash",
            str(CLONE / "tools/transformer_engine.sh"),
            str(tmp_path / "venv/bin/python"),
        ]
        done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        log = tmp_path / "venv/transformer-engine.log"
        return done.stdout, log.read_text() if log.exists() else ""

    return run


def test_transformer_engine_is_installed_in_the_version_that_megatron_core_asks_for(engine):
    said, log = engine()
    assert said.endswith("Transformer Engine is installed.\n")
    assert "--no-build-isolation transformer-engine[core_cu13,pytorch]<2.12.0,>=2.9.0a0" in log
    assert "core_cu12,pytorch" in engine(cuda="12.8")[1]


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ({"cuda": ""}, "torch is not built for CUDA here."),
        ({"nvcc": False}, "nvcc is not on PATH, and its PyTorch part is compiled with CUDA 13"),
        (
            {"pip": 1},
            "error: cudnn.h is missing\nTransformer Engine is not installed: pip could not install",
        ),
        ({"imports": (1, 1)}, "it cannot be imported"),
    ],
)
def test_where_transformer_engine_cannot_be_had_the_set_up_goes_on_and_says_why(engine, lacks, why):
    said, _ = engine(**lacks)
    assert why in said and "The trainer works without it (docs/trainer.md)" in said


def test_conda_gives_pytorch_of_pypi_which_has_cuda():
    (pip,) = [
        one["pip"] for one in yaml.safe_load(environment())["dependencies"] if isinstance(one, dict)
    ]
    assert pip == [
        "-r requirements.lock",
        "-e .",
    ]  # an extra index outranks PyPI: 2.13.0+cpu is newer than 2.13.0


def environment():
    return (CLONE / "environment.yml").read_text()


def test_the_lock_holds_all_that_its_packages_ask_for_by_python_and_system():
    """As far as they are installed here: whatever they require is pinned, to a version that they accept."""
    wrong = []
    for name, version in PINS.items():
        try:
            asked = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for line in asked:
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            pinned = PINS.get(named(wanted.name))
            if re.match("nvidia-|cuda-|triton", wanted.name):  # with PyTorch, where it has CUDA
                continue
            if pinned is None or not wanted.specifier.contains(pinned, prereleases=True):
                wrong.append(f"{name} {version} asks for {line}; pinned: {pinned}")
    assert not wrong


@pytest.mark.rotate(5, turn=0)
def test_pip_resolves_the_lock_for_conda_in_a_fresh_environment(tmp_path):
    """With dependencies, as conda's pip does: what it would install are the pins, and what PyTorch needs for CUDA."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [
        tmp_path / "venv/bin/python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--dry-run",
        "-q",
    ]
    reachable = subprocess.run(
        [*pip, "--retries=0", "--no-deps", f"colorama=={PINS['colorama']}"], capture_output=True
    )
    if reachable.returncode:
        pytest.skip("no package index can be reached")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [*pip, f"--report={report}", "-r", CLONE / "requirements.lock"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    content = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    found = {named(one["name"]): one["version"].partition("+")[0] for one in content}
    more = {name for name in found if not re.match("nvidia-|cuda-|triton", name)} - PINS.keys()
    assert not more
    assert {name: version for name, version in found.items() if name in PINS} == PINS


def test_one_extra_brings_all_that_a_run_needs():
    extras = PROJECT["optional-dependencies"]
    (itself,) = [Requirement(line) for line in extras["all"]]
    assert itself.name == PROJECT["name"]
    assert itself.extras == set(ALL) == {"jupyter", "train", "data", "forecast"}
