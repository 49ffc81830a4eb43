"""What `make setup`, conda and pip install, on machines with and without GPUs; nothing is installed here."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from runbook import cli

CLONE = Path(__file__).parents[1]
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
LOCK = [
    Requirement(line)
    for line in (CLONE / "requirements.lock").read_text().splitlines()
    if line[0] != "#"
]
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
    assert (
        f"--index-url {INDEX}cpu" in said
        and "transformer_engine" not in said
        and "uninstall" not in said
    )
    assert "To type runbook in this shell: source .venv/bin/activate" in said
    assert "local-gpu" not in said


NVIDIA = {"nvidia_smi": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1e)"}


def test_beside_an_nvidia_gpu_pytorch_has_cuda_and_the_run_says_what_local_does(machine):
    said = machine("run", **NVIDIA).stdout
    assert f"{INDEX}cpu" not in said and 'install -q  "$(grep -o' in said
    assert "uninstall -qy torch" in said  # an earlier 2.13.0+cpu would count as 2.13.0
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
    assert "pip" not in machine("setup", **seen).stdout
    assert (
        "bash tools/transformer_engine.sh .venv/bin/python"
        in machine("setup", "GPU=1", **seen).stdout
    )


def test_gpu_0_takes_pytorch_for_the_cpu_beside_a_gpu(machine):
    assert f"--index-url {INDEX}cpu" in machine("setup", "GPU=0", **NVIDIA).stdout


@pytest.mark.parametrize(
    "programs", [{"rocminfo": ROCMINFO}, {"rocm_smi": "GPU[0]\t\t: Card series: AMD Instinct"}]
)
def test_beside_an_amd_gpu_the_index_of_rocm_is_asked_for(machine, programs):
    said = machine("run", **programs)
    assert said.returncode == 0 and f"--index-url {INDEX}cpu" in said.stdout
    assert "PyPI has no PyTorch for ROCm. Name the index of your ROCm" in said.stdout
    refused = machine("setup", "GPU=1", **programs)
    assert refused.returncode == 2
    assert f"make setup GPU=rocm TORCH_INDEX={INDEX}rocm" in refused.stderr
    named = machine("setup", "GPU=rocm", f"TORCH_INDEX={INDEX}rocm7.1", **programs).stdout
    assert f"--index-url {INDEX}rocm7.1" in named and f"{INDEX}cpu" not in named
    assert (
        "grep -v '^triton==' requirements.lock" in named
    )  # ROCm's PyTorch brings a triton of its own


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
    assert itself.extras == set(cli.ALL) == {"jupyter", "train", "data"}
