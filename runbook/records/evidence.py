"""What else of a phase can be opened: its newest job's script and log, its metrics.

evidence(run_folder, phase) -> list[(name, path relative to the run's folder)]
"""

from __future__ import annotations

from pathlib import Path

METRICS = {"03-smoke-test": "smoke/metrics.jsonl", "04-training": "metrics.jsonl"}
"""Where the trainer writes its losses."""
JOB_FILES = {"job.sh": "script", "out": "log", "err": "errors"}


def evidence(run_folder: Path, phase: str) -> list[tuple[str, str]]:
    """Files that exist, of the phase's newest job first."""
    job = newest_job(run_folder, phase)
    found = [(name, job / file) for file, name in JOB_FILES.items()] if job is not None else []
    if phase in METRICS:
        found.append(("metrics", run_folder / METRICS[phase]))
    return [(name, path.relative_to(run_folder).as_posix()) for name, path in found if path.exists()]


def newest_job(run_folder: Path, phase: str) -> Path | None:
    """The folder of the phase's job with the highest number."""
    numbers = {
        int(path.name.removeprefix(f"{phase}-")): path
        for path in (run_folder / "jobs").glob(f"{phase}-*")
        if path.name.removeprefix(f"{phase}-").isdecimal()
    }
    first = run_folder / "jobs" / phase
    return numbers[max(numbers)] if numbers else first if first.is_dir() else None
