"""`make setup`: create the virtual environment and install what requirements.lock pins.

Each step prints what it installs, from where, and how large it is. On a terminal, a status line
shows how far pip is. Elsewhere (CI, nohup) a line is printed every half minute. The complete output
from pip is in `set-up.log` in the environment.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO

CLONE = Path(__file__).parents[1]
LOCK = CLONE / "requirements.lock"
LOG_NAME = "set-up.log"

CUDA_BUILD = (
    "on Linux it comes with CUDA: 2.7 GB to download, 4.8 GB on disk (x86-64, torch 2.13.0)"
)
"""Size of the wheels that `pip install torch==2.13.0` downloaded on Python 3.12, 2026-11-26."""

CPU_BUILD = "0.2 GB to download, 0.7 GB on disk"
"""Sizes for torch-2.13.0+cpu on Python 3.11, 2026-11-26."""

SECONDS_BETWEEN_LINES = 30
LINES_OF_PIP_SHOWN = 15


class Line(Enum):
    """Lines that the set-up prints.

    `{name}` stands for a value. Tests check the member and its values.
    """

    CPU_BUILD_OF = "[2/4] {pin} for the CPU from {index}: {size}"
    DONE = "Set up in {seconds:.0f} s."
    ENVIRONMENT = "[1/4] {venv} with Python {version} ({program})"
    FAILED = "{error}\n\nThe set-up failed. All of pip's output is in {log}"
    GPU_BUILD_OF = "[2/4] {pin} for {kind} from {index}: some GB"
    INTERRUPTED = "Interrupted. Run the same command again to continue."
    MIRROR = "      If you have a mirror of the CPU builds: make setup TORCH_CPU_INDEX=URL"
    NOT_IMPORTED = (
        "{error}\nPyTorch is installed but cannot be imported. Remove the environment (make clean) "
        "and type make setup again."
    )
    NOT_TO_BE_HAD = "      not available there: {reason}"
    OWN_INDEX_INSTEAD = "      {pin} from pip's default index instead; {size}."
    OWN_INDEX_OF = "[2/4] {pin} from pip's default index; {size}"
    PACKAGES = "[3/4] the packages of requirements.lock, {count} lines: 0.5 GB to download"
    PROJECT = "[4/4] gpt3-runbook itself, editable"

    DOWNLOADED = "{megabytes:,.0f} MB downloaded"
    PACKAGE = "package {number}: {name}"
    PIP_STARTS = "pip starts"
    SECONDS = "{seconds:.0f} s"
    UNPACKING = "unpacking {number} package{plural}"

    def fill(self, **values: object) -> str:
        """Return the text with its values."""
        template: str = self.value
        return template.format_map(values)


class SetUpError(Exception):
    """A step where pip failed."""


@dataclass(frozen=True)
class Choices:
    """Options from the Makefile, and what it detected on this machine."""

    venv: Path
    kind: str
    """PyTorch build: cpu, nvidia or rocm."""
    torch_index: str
    """Index with GPU builds of PyTorch. If empty, the default pip index is used."""
    cpu_index: str

    @property
    def python(self) -> str:
        """The path to the interpreter in the environment."""
        return str(self.venv / "bin" / "python")


def torch_pin(lock: str) -> str:
    """Return the PyTorch requirement in the text from requirements.lock."""
    pin = re.search(r"^torch==[0-9.]+", lock, re.MULTILINE)
    if pin is None:
        raise SetUpError("requirements.lock does not pin torch")
    return pin.group()


@dataclass
class PipProgress:
    """How far pip is, according to its output."""

    packages: int = 0
    current: str = ""
    downloaded_mb: float = 0.0
    to_install: int = 0
    last_lines: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Process one line of output from `pip install`."""
        self.last_lines = [*self.last_lines, line][-LINES_OF_PIP_SHOWN:]
        if line.startswith("Collecting "):
            self.packages += 1
            self.current = re.split(r"[=<>!~ \[(;]", line.removeprefix("Collecting "))[0]
        elif download := re.search(r"Downloading \S+ \(([\d.]+) ([kMG]?)B\)", line):
            scale = {"": 1e-6, "k": 1e-3, "M": 1.0, "G": 1e3}[download[2]]
            self.downloaded_mb += float(download[1]) * scale
        elif line.startswith("Installing collected packages: "):
            self.to_install = line.count(",") + 1

    def text(self, seconds: float) -> str:
        """Return the status as one line."""
        parts = [self._activity()]
        if self.downloaded_mb >= 1:
            parts.append(Line.DOWNLOADED.fill(megabytes=self.downloaded_mb))
        return ", ".join([*parts, Line.SECONDS.fill(seconds=seconds)])

    def _activity(self) -> str:
        if self.to_install:
            plural = "s" if self.to_install > 1 else ""
            return Line.UNPACKING.fill(number=self.to_install, plural=plural)
        if self.packages:
            return Line.PACKAGE.fill(number=self.packages, name=self.current)
        return Line.PIP_STARTS.fill()


def run_pip(choices: Choices, *arguments: str) -> None:
    """Run `pip install` and show its progress.

    Raise SetUpError with the last lines from pip if it fails.
    """
    command = [choices.python, "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--progress-bar", "off", *arguments]
    progress = PipProgress()
    status = StatusLine(sys.stdout)
    start = time.monotonic()
    with (choices.venv / LOG_NAME).open("a", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(command)}\n")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        for line in _lines_and_ticks(process):
            if line:
                log.write(line)
                progress.read(line.rstrip())
            status.show(progress.text(time.monotonic() - start))
    status.clear()
    if process.wait():
        raise SetUpError("\n".join(progress.last_lines))


def _lines_and_ticks(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield each line from the process, and an empty line in every second without output."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            yield ""
            continue
        if line is None:
            return
        yield line


class StatusLine:
    """A line that is overwritten on a terminal. Elsewhere it is a new line every half minute."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Show the status, unless no line is due yet."""
        if self._on_terminal:
            self._stream.write(f"\r\033[K      {text}"[:110])
        elif time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return
        else:
            self._stream.write(f"      {text}\n")
        self._last = time.monotonic()
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._on_terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()


def say(text: str) -> None:
    """Print a line immediately, even if the output goes to a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install_torch(choices: Choices) -> None:
    """Install the pinned PyTorch in the build that the machine needs."""
    pin = torch_pin(LOCK.read_text())
    if choices.kind == "cpu":
        _install_cpu_torch(choices, pin)
        return
    _remove_cpu_torch(choices)
    if choices.torch_index:
        say(Line.GPU_BUILD_OF.fill(pin=pin, kind=choices.kind, index=choices.torch_index))
        # That index has only a few versions of other packages, so the lock cannot constrain them
        # here.
        run_pip(choices, "--index-url", choices.torch_index, pin)
    else:
        say(Line.OWN_INDEX_OF.fill(pin=pin, size=CUDA_BUILD))
        run_pip(choices, "--constraint", str(LOCK), pin)


def _install_cpu_torch(choices: Choices, pin: str) -> None:
    """Install the CPU build of PyTorch.

    If the index for CPU builds cannot be reached, install PyTorch from the default pip index. On
    Linux that build has CUDA and cannot be imported without the CUDA libraries, so its dependencies
    are installed too.
    """
    say(Line.CPU_BUILD_OF.fill(pin=pin, index=choices.cpu_index, size=CPU_BUILD))
    quick = ("--no-deps", "--retries", "0", "--timeout", "10")
    try:
        run_pip(choices, *quick, "--index-url", choices.cpu_index, pin)
    except SetUpError as error:
        say(Line.NOT_TO_BE_HAD.fill(reason=_reason(str(error))))
        say(Line.OWN_INDEX_INSTEAD.fill(pin=pin, size=CUDA_BUILD))
        say(Line.MIRROR.fill())
        run_pip(choices, "--constraint", str(LOCK), pin)


def _reason(last_lines: str) -> str:
    """Return the line from pip that best explains a failure."""
    lines = last_lines.splitlines()
    for mark in ("WARNING: Retrying", "ERROR: Could not", "ERROR:", "WARNING:"):
        for line in lines:
            if mark in line:
                return line[:160]
    return lines[-1][:160] if lines else "pip failed without a message"


def _remove_cpu_torch(choices: Choices) -> None:
    """Uninstall a CPU build, because pip would keep it: 2.13.0+cpu counts as 2.13.0."""
    pip = [choices.python, "-m", "pip", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, "freeze"], capture_output=True, text=True).stdout
    if re.search(r"^torch==.*\+cpu", installed, re.MULTILINE):
        subprocess.run([*pip, "uninstall", "-qy", "torch"], check=True)


def install_lock(choices: Choices) -> None:
    """Install every other package in requirements.lock at exactly the pinned version."""
    lines = LOCK.read_text().splitlines(keepends=True)
    if choices.kind == "rocm":  # PyTorch for ROCm has its own triton.
        lines = [line for line in lines if not line.startswith("triton==")]
    pins = choices.venv / "pins.lock"
    pins.write_text("".join(lines))
    count = sum("==" in line for line in lines)
    say(Line.PACKAGES.fill(count=count))
    run_pip(choices, "--no-deps", "-r", str(pins))


def install_project(choices: Choices) -> None:
    """Install this project, editable, and import PyTorch once."""
    say(Line.PROJECT.fill())
    run_pip(choices, "--no-deps", "-e", str(CLONE))
    imported = subprocess.run(
        [choices.python, "-c", "import torch"], capture_output=True, text=True
    )
    if imported.returncode:
        raise SetUpError(Line.NOT_IMPORTED.fill(error=imported.stderr.strip()))


def set_up(choices: Choices) -> None:
    """Run all steps."""
    start = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    say(Line.ENVIRONMENT.fill(venv=choices.venv, version=version, program=sys.executable))
    if not os.access(choices.python, os.X_OK):
        subprocess.run([sys.executable, "-m", "venv", str(choices.venv)], check=True)
    install_torch(choices)
    install_lock(choices)
    install_project(choices)
    say(Line.DONE.fill(seconds=time.monotonic() - start))


def main() -> int:
    """Read the choices from the Makefile, set up, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--kind", choices=("cpu", "nvidia", "rocm"), required=True)
    parser.add_argument("--torch-index", default="")
    parser.add_argument("--cpu-index", required=True)
    choices = Choices(**vars(parser.parse_args()))
    try:
        set_up(choices)
    except SetUpError as error:
        say(Line.FAILED.fill(error=error, log=choices.venv / LOG_NAME))
        return 1
    except KeyboardInterrupt:
        say(Line.INTERRUPTED.fill())
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
