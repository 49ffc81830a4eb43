"""What `make setup`, conda and pip install on machines with and without GPUs, without installing
anything.
"""

import importlib.metadata
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import set_up
import yaml
from packaging.requirements import Requirement
from set_up import Line
from suite.messages import says
from suite.scripts import commands_of, options_of

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
    """Return a function that simulates a machine with only the given GPU programs, and returns what
    make would do there."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).symlink_to(CLONE / name)
    for name in ("nvidia-smi", "rocminfo", "rocm-smi"):
        program(tmp_path / "bin", name, "exit 127")

    def would(*words, **programs):
        for name, answer in programs.items():
            program(tmp_path / "bin", name.replace("_", "-"), f"cat <<'END'\n{answer}\nEND")
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "MAKEFLAGS": "",
        }
        environment.pop("GPU", None)
        argv = ["make", "-n", "--no-print-directory", *words]
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return would


def set_up_options(said):
    """Return the options that make passes to the set-up."""
    (command,) = [shlex.split(line) for line in said.splitlines() if "tools/set_up.py" in line]
    return options_of(command, "tools/set_up.py")


def test_without_a_gpu_pytorch_comes_from_its_cpu_index(machine):
    said = machine("run").stdout
    assert set_up_options(said) == {
        "--venv": ".venv",
        "--kind": "cpu",
        "--cpu-index": f"{INDEX}cpu",
    }
    assert "transformer_engine" not in said
    (hint,) = commands_of(said, "echo")
    assert hint[1].endswith("source .venv/bin/activate")
    assert "local-gpu" not in said


NVIDIA = {"nvidia_smi": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1e)"}


def test_beside_an_nvidia_gpu_pytorch_has_cuda_and_the_run_says_what_local_does(machine):
    said = machine("run", **NVIDIA).stdout
    options = set_up_options(said)
    assert options["--kind"] == "nvidia" and "--torch-index" not in options
    hints = [words[1] for words in commands_of(said, "echo")]
    command = "runbook run local --set site=local-gpu --as gpu"
    assert [hint.endswith(f": {command}") for hint in hints] == [False, True]
    assert (
        "transformer_engine" not in said
    )  # it takes minutes, and a run on the CPU does not need it


@pytest.mark.parametrize("seen", [{}, NVIDIA])
def test_gpu_1_brings_transformer_engine_also_after_a_set_up_without_it(machine, tmp_path, seen):
    (tmp_path / ".venv").mkdir()
    for mark in (".installed-cpu", ".installed-nvidia"):
        (tmp_path / ".venv" / mark).touch()
    assert "set_up.py" not in machine("setup", **seen).stdout
    (command,) = commands_of(machine("setup", "GPU=1", **seen).stdout, "bash")
    assert command == ["bash", "tools/transformer_engine.sh", ".venv/bin/python"]


def test_gpu_0_takes_pytorch_for_the_cpu_beside_a_gpu(machine):
    assert "--kind cpu" in machine("setup", "GPU=0", **NVIDIA).stdout


@pytest.mark.parametrize(
    "programs", [{"rocminfo": ROCMINFO}, {"rocm_smi": "GPU[0]\t\t: Card series: AMD Instinct"}]
)
def test_beside_an_amd_gpu_the_index_of_rocm_is_asked_for(machine, programs):
    said = machine("run", **programs)
    assert said.returncode == 0 and set_up_options(said.stdout)["--kind"] == "cpu"
    remedy = re.compile(rf"ROCm.*make setup GPU=rocm TORCH_INDEX={INDEX}rocm")
    assert len(remedy.findall(said.stdout)) == 1
    refused = machine("setup", "GPU=1", **programs)
    assert refused.returncode == 2
    assert len(remedy.findall(refused.stderr)) == 1
    named = machine("setup", "GPU=rocm", f"TORCH_INDEX={INDEX}rocm7.1", **programs).stdout
    options = set_up_options(named)
    assert (options["--kind"], options["--torch-index"]) == ("rocm", f"{INDEX}rocm7.1")


PIP_ERROR = "ERROR: Could not find a version: no route to host"
IMPORT_ERROR = "libcudnn.so.9: cannot open"


@pytest.fixture
def set_up_with(tmp_path):
    """Return a function that runs the set-up with a fake pip.

    The fake pip records its arguments, and fails if they contain a given text.
    """
    (tmp_path / "venv").mkdir()

    def run(kind="cpu", torch_index="", *, fails_at="nothing", installed="", imports=0):
        program(
            tmp_path / "venv/bin",
            "python",
            f'echo "$@" >>{tmp_path / "asked"}',
            'case "$*" in',
            f'  *freeze*) echo "{installed}" ;;',
            f'  *"{fails_at}"*) echo "{PIP_ERROR}"; exit 1 ;;',
            f'  *"import torch"*) echo "{IMPORT_ERROR}" >&2; exit {imports} ;;',
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
    source = {"pin": TORCH, "index": f"{INDEX}cpu", "size": set_up.CPU_BUILD}
    assert steps[1] == Line.CPU_BUILD_OF.fill(**source)
    assert set_up.CPU_BUILD.startswith("0.2 GB")
    assert done.pip[0].startswith("--no-deps") and done.pip[0].endswith(f"{INDEX}cpu {TORCH}")
    assert [line.split()[0] for line in done.pip] == ["--no-deps"] * 3


def test_without_the_cpu_index_pytorch_comes_with_the_libraries_that_it_is_linked_to(set_up_with):
    """PyTorch from PyPI has CUDA: it cannot be imported without libraries such as libcudnn.so.9."""
    done = set_up_with(fails_at=f"{INDEX}cpu")
    assert done.code == 0
    assert done.pip[1] == f"--constraint {CLONE / 'requirements.lock'} {TORCH}"
    assert says(done.out, Line.NOT_TO_BE_HAD.value, reason=PIP_ERROR)
    size = set_up.CUDA_BUILD
    assert says(done.out, Line.OWN_INDEX_INSTEAD.value, pin=TORCH, size=size)
    assert re.findall(r"[0-9.]+ GB", size) == ["2.7 GB", "4.8 GB"]
    assert says(done.out, Line.MIRROR.value)
    assert Line.MIRROR.value.endswith("TORCH_CPU_INDEX=URL")


def test_sizes_are_those_of_the_pinned_pytorch():
    assert TORCH.replace("==", " ") in set_up.CUDA_BUILD


def test_beside_an_nvidia_gpu_a_cpu_build_is_replaced(set_up_with):
    done = set_up_with("nvidia", installed=f"{TORCH}+cpu")
    removals = [line.split()[-3:] for line in done.asked if "uninstall" in line]
    assert removals == [["uninstall", "-qy", "torch"]]  # 2.13.0+cpu counts as 2.13.0
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
    assert says(done.out, Line.FAILED.value, error=PIP_ERROR, log=log)
    assert "no route" in log.read_text()
    assert "[4/4]" not in done.out


def test_a_pytorch_that_cannot_be_imported_ends_the_set_up(set_up_with, tmp_path):
    done = set_up_with(imports=1)
    assert done.code == 1
    reason = Line.NOT_IMPORTED.fill(error=IMPORT_ERROR)
    log = tmp_path / "venv/set-up.log"
    assert done.out.endswith(Line.FAILED.fill(error=reason, log=log) + "\n")


# pip 23.2.1 on Python 3.12, not on a terminal, 2026-11-26; some lines are left out.
PIP_LINES = """\
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (526.6 MB)
Collecting cuda-toolkit[cublas,cudart]==13.0.3 (from torch==2.13.0)
  Downloading filelock-4.3.1-py3-none-any.whl (244 kB)
"""


def test_progress_is_read_from_what_pip_says():
    progress = set_up.PipProgress()
    begun = [Line.PIP_STARTS.fill(), Line.SECONDS.fill(seconds=3)]
    assert progress.text(3).split(", ") == begun
    for line in PIP_LINES.splitlines():
        progress.read(line)
    size = Line.DOWNLOADED.fill(megabytes=527)
    package = Line.PACKAGE.fill(number=2, name="cuda-toolkit")
    assert progress.text(12).split(", ") == [package, size, Line.SECONDS.fill(seconds=12)]
    progress.read("Installing collected packages: nvidia-cusparselt-cu13, mpmath, torch")
    unpacking = Line.UNPACKING.fill(number=3, plural="s")
    assert progress.text(70).split(", ") == [unpacking, size, Line.SECONDS.fill(seconds=70)]


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
    assert log.getvalue().splitlines() == [f"{' ' * 6}{second} s" for second in (30, 60)]


class Stream(io.StringIO):
    def __init__(self, *, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


COMPILER_ERROR = "error: cudnn.h is missing"


@pytest.fixture
def engine(tmp_path):
    """Return a function that runs tools/transformer_engine.sh with fake torch, pip and engine."""

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
            f'  *pip*) echo "asked for: $*"; echo "{COMPILER_ERROR}"; exit {pip} ;;',
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
    ("lacks", "subject"),
    [
        ({"cuda": ""}, "torch"),
        ({"nvcc": False}, "nvcc"),
        ({"pip": 1}, "pip"),
        ({"imports": (1, 1)}, "it"),
    ],
)
def test_where_transformer_engine_cannot_be_had_the_set_up_goes_on_and_says_why(
    engine, lacks, subject
):
    said, _ = engine(**lacks)
    *shown, reason, remedy = said.splitlines()
    sentence = re.fullmatch(r"Transformer Engine is not installed: (\S+) .*", reason)
    assert sentence is not None and sentence[1] == subject
    assert ("CUDA 13" in reason) == (subject == "nvcc")
    assert (COMPILER_ERROR in shown) == (subject == "pip")
    assert "(docs/trainer.md)" in remedy


def test_conda_gives_pytorch_of_pypi_which_has_cuda():
    (pip,) = [
        one["pip"] for one in yaml.safe_load(environment())["dependencies"] if isinstance(one, dict)
    ]
    assert pip == [
        "-r requirements.lock",
        "-e .",
    ]  # an extra index has priority over PyPI: 2.13.0+cpu is newer than 2.13.0


def environment():
    return (CLONE / "environment.yml").read_text()


def test_the_lock_holds_all_that_its_packages_ask_for_by_python_and_system():
    """All packages that the installed ones require are pinned, to versions that they accept."""
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
            if re.match("nvidia-|cuda-|triton", wanted.name):  # with PyTorch, if it has CUDA
                continue
            if pinned is None or not wanted.specifier.contains(pinned, prereleases=True):
                wrong.append(f"{name} {version} asks for {line}; pinned: {pinned}")
    assert not wrong


@pytest.mark.rotate(5, turn=0)
def test_pip_resolves_the_lock_for_conda_in_a_fresh_environment(tmp_path):
    """Resolve dependencies too, as conda does with pip: pip would install the pinned versions and
    the CUDA packages for PyTorch.
    """
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
