"""Fill .whl/ with the wheels that a GPU machine without a network needs on top of its own PyTorch.

    python tools/gpu_wheels.py [--folder .whl] [--python 3.12]

The machine has torch, numpy, psutil, pyyaml, jinja2, click, einops, msgpack, packaging, tqdm and
py-cpuinfo. It does not have megatron-core, DeepSpeed, pydantic and their dependencies. DeepSpeed is
published only as a source archive: its wheel is built here with DS_BUILD_OPS=0, so that it contains
no compiled operators and works with every Python version. docs/gpu.md describes how the folder is
installed on the GPU machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

MEGATRON = "megatron-core==0.19.2"
DEEPSPEED = "deepspeed==0.19.8"
PURE = ("hjson", "annotated-types", "typing-inspection", "typing-extensions")
PLATFORM = "manylinux_2_28_x86_64"
OLDER_PLATFORM = "manylinux2014_x86_64"
MOST_BYTES = 40 * 2**20
"""Largest total size for the wheels, in bytes.

They and the working tree must fit into the 64 MiB that are sent to the GPU machine.
"""


def main() -> None:
    """Download the wheels, build the one for DeepSpeed, and print the sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(".whl"))
    parser.add_argument("--python", default="3.12", help="version of Python on the GPU machine")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    for wheel in arguments.folder.glob("*.whl"):
        wheel.unlink()
    download(arguments.folder, arguments.python, [MEGATRON, *PURE])
    # pydantic requires exactly one pydantic-core version, so pip must choose both together.
    download(arguments.folder, arguments.python, ["pydantic"], with_dependencies=True)
    build_deepspeed(arguments.folder)
    report(arguments.folder)


def download(
    folder: Path, python: str, packages: list[str], *, with_dependencies: bool = False
) -> None:
    """Download wheels for the Python on the GPU machine, whichever Python runs this program."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    command += ["--platform", PLATFORM, "--platform", OLDER_PLATFORM, "-d", str(folder)]
    command += [] if with_dependencies else ["--no-deps"]
    subprocess.run([*command, *packages], check=True)


def build_deepspeed(folder: Path) -> None:
    """Build the DeepSpeed wheel from the source archive, without compiled operators."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    subprocess.run([*command, "-w", str(folder), DEEPSPEED], check=True, env=environment)


def report(folder: Path) -> None:
    """Print each wheel with its size. Exit with an error if they are too large."""
    sizes = {wheel.name: wheel.stat().st_size for wheel in sorted(folder.glob("*.whl"))}
    for name, size in sizes.items():
        sys.stdout.write(f"{size / 2**20:6.2f} MiB  {name}\n")
    total = sum(sizes.values())
    sys.stdout.write(f"{total / 2**20:6.2f} MiB  {len(sizes)} wheels\n")
    if total > MOST_BYTES:
        sys.exit(f"the wheels take {total:,} bytes; at most {MOST_BYTES:,} can be carried")


if __name__ == "__main__":
    main()
