"""Measure everything about the trainer that one GPU can show, with one call and in one folder.

    python -m benchmarks.gpu --out FOLDER [--seconds 330] [--stages NAME ...] [--jobs TEXT ...] [--commit HEX]
    python -m benchmarks.gpu --out FOLDER --rehearse
    python -m benchmarks.gpu --plan FOLDER/gpu.json [--copy FILE]
    python -m benchmarks.gpu --write-losses

Each job in a stage is a process with its own deadline. While it measures, the next jobs import
their modules. FOLDER/gpu.json is rewritten after every row, so that an interrupted call keeps its
rows. benchmarks/gpu.md says what each stage measures and what the file contains; docs/gpu.md says
how to run this on a machine with a GPU.

`--rehearse` runs everything with a tiny model, on a CPU, and marks the file: it tests this program,
and its figures mean nothing. `--plan` prints the planned memory and step time next to each measured
row, on any machine, and `--copy` writes a file with both. `--write-losses` trains the models of the
correctness stage on this CPU and writes benchmarks/gpu_losses.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu_stages import stages, table
from benchmarks.gpu_stages.results import Results
from benchmarks.gpu_stages.runner import Runner

SECONDS = 330.0


def main() -> None:
    """Run the benchmark as requested on the command line."""
    arguments = _arguments()
    if arguments.plan:
        from benchmarks.gpu_stages import planned

        print("\n".join(planned.compare(arguments.plan, arguments.copy)))
    elif arguments.write_losses:
        write_losses()
    elif arguments.out:
        measure(arguments)
    else:
        sys.exit("python -m benchmarks.gpu: give --out FOLDER, --plan FILE or --write-losses")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(stages.STAGES)
    parser.add_argument("--out", type=Path, help="folder of gpu.json, log.txt and profiles")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="deadline of the whole call")
    parser.add_argument("--stages", nargs="+", default=names, choices=names)
    parser.add_argument(
        "--jobs",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="run only the jobs whose `stage name` contains one of these texts",
    )
    parser.add_argument("--commit", default=os.environ.get("RUNBOOK_COMMIT", ""))
    parser.add_argument("--rehearse", action="store_true", help="tiny models, on a CPU")
    parser.add_argument("--plan", type=Path, help="plan the rows of this gpu.json")
    parser.add_argument(
        "--copy", type=Path, help="with --plan: write the rows with their plans here"
    )
    parser.add_argument("--write-losses", action="store_true")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> None:
    """Run the stages, and print the table at the end."""
    ends = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="gpu-caches-") as caches:
        set_variables(Path(caches), rehearsal=arguments.rehearse)
        signal.signal(signal.SIGTERM, _stop)
        commit = arguments.commit or commit_of_git()
        results = Results(arguments.out, rehearsal=arguments.rehearse, commit=commit)
        jobs = stages.jobs_of(arguments.stages, rehearsal=arguments.rehearse, named=arguments.jobs)
        try:
            Runner(jobs, results, ends).run()
        finally:
            print("\n".join(table.lines_of(results.content)), flush=True)
    if any(job["state"] in ("failed", "timeout") for job in results.jobs):
        sys.exit(1)


def set_variables(caches: Path, *, rehearsal: bool) -> None:
    """Set the environment variables that the processes read when they start.

    A variable that is already set keeps its value.
    """
    threads = "1" if rehearsal else "8"
    defaults = {
        "OMP_NUM_THREADS": threads,
        # torch 2.11 reads the first name and warns about the second; older versions know only the
        # second.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "PYTHONUNBUFFERED": "1",
    }
    if rehearsal:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if interprets_triton():
            defaults["TRITON_INTERPRET"] = "1"
        # Inductor's C++ takes a minute on a busy CPU and is not what a GPU would compile.
        defaults["TORCH_COMPILE_DISABLE"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def interprets_triton() -> bool:
    """Return whether Triton kernels can be interpreted on a CPU.

    Triton 3.6 reads loop bounds in a way that numpy 2.4 warns about and numpy 2.5 refuses.
    """
    numbers = metadata.version("numpy").split(".")
    return (int(numbers[0]), int(numbers[1])) < (2, 5)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise an exception, so that the processes are killed and the table is printed."""
    raise KeyboardInterrupt


def commit_of_git() -> str:
    """Return the commit of this checkout, or an empty string without git."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return answer.stdout.strip()


def write_losses() -> None:
    """Train the models in the correctness stage on this CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from benchmarks.gpu_stages import trainings

    versions = {name: metadata.version(name) for name in ("torch", "megatron-core", "numpy")}
    made: dict[str, Any] = {
        "by": "python -m benchmarks.gpu --write-losses",
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": versions,
    }
    trainings.write_losses(list(trainings.SIZES), made)


if __name__ == "__main__":
    main()
