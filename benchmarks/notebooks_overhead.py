"""Measures what notebooks cost.

It compares papermill with the same calls without it, and measures the time that watching takes from
a training run.

python -m benchmarks.notebooks_overhead [--part notebooks|watching|look] [--steps N] [--run DIR]

1. papermill executes each notebook in a small run, as in `runbook run`. Then the notebook cells run
   as one plain Python program in another run folder. The difference is what papermill, the kernel,
   saving and the report cost.
2. A training run goes through alternating turns: unwatched, and watched by a kernel that is started
   as a browser would start it and draws the figure for the run once a second. Each turn has a
   median step time; the difference between the medians with and without watching is what watching
   costs.
3. `look`: CPU seconds for one look at the finished run DIR: it asks the scheduler, reads the new
   lines, and draws the figure as text and HTML. A watch cell does this once a second. CPU time
   hardly depends on other programs on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "notebooks"))

from toy_project import PHASES, RUN_FILE, Toy, lines_of  # noqa: E402

if TYPE_CHECKING:
    from runbook.jobs.job_folder import JobStatus
    from runbook.phases.job_control.live_view import LiveView

PLAIN = """
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
names = {}
for cell in cells:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
"""
PICTURE = """
import sys
from pathlib import Path
sys.path.insert(0, {project!r})
from benchmarks.notebooks_overhead import view_of
from runbook.runs.status import scheduler_of
from runbook.jobs.job_folder import latest_job_folder
folder = Path({folder!r})
job = latest_job_folder(folder, "04-training")
scheduler = scheduler_of(folder)
picture = view_of(folder)
"""
TURNS = 6
"""Number of turns with a watcher, which alternate with as many turns without one."""


def notebooks(toy: Toy) -> list[tuple[str, float, float]]:
    """Measure the seconds that each notebook takes under papermill and as a plain program."""
    rows = []
    one = toy.root / "papermill"
    other = toy.root / "plain"
    for phase in PHASES:
        began = time.monotonic()
        made = toy.run(one, "--from", phase, "--to", phase)
        by_papermill = time.monotonic() - began
        assert made.code == 0, made
        began = time.monotonic()
        command = [sys.executable, "-c", PLAIN, toy.root / "notebooks" / f"{phase}.ipynb"]
        ended = subprocess.run(
            command,
            cwd=toy.root,
            env=toy.environment(RUNBOOK_RUNS=str(other)),
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        rows.append((phase, by_papermill, time.monotonic() - began))
    return rows


class Watcher:
    """A kernel that is started as a browser would start it. Its watch cell is run and interrupted."""

    def __init__(self, toy: Toy, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        environment = toy.environment(JPY_SESSION_NAME="notebooks/04-training.ipynb")
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", cwd=str(toy.root), env=environment
        )
        self.client.execute_interactive(
            PICTURE.format(folder=str(folder), project=str(ROOT)),
            timeout=60,
            output_hook=lambda message: None,
        )

    def seconds(self) -> tuple[float, float]:
        """Return the CPU seconds that the kernel used so far, and the current time."""
        used = psutil.Process(self.manager.provisioner.pid).cpu_times()
        return used.user + used.system, time.monotonic()

    def begin(self) -> None:
        """Start watching, with one look per second."""
        self.client.execute("picture.follow(lambda: scheduler.state(job))")

    def end(self) -> int:
        """Stop watching, and return how many figures were drawn."""
        self.manager.interrupt_kernel()
        self.client.get_shell_msg(timeout=30)
        drawn = 0
        while self.client.iopub_channel.msg_ready():
            kind = self.client.get_iopub_msg(timeout=5)["msg_type"]
            drawn += kind in ("display_data", "update_display_data")
        return drawn

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def watching(toy: Toy, steps: int) -> tuple[list[float], list[float], int, float]:
    """Return the median step times for turns without and with a watcher.

    Also return how many pictures were drawn, and the share of a core used to draw them.
    """
    folder = toy.root / "papermill" / "local"
    code = "from runbook.phases.p04_training import phase as phase\n"
    code += "campaign = phase.bind({'run': 'local'})\nphase.launch(campaign)"
    words = {"RUNBOOK_RUNS": str(toy.root / "papermill")}
    subprocess.run(
        [sys.executable, "-c", code], cwd=toy.root, env=toy.environment(**words), check=True
    )
    metrics = folder / "metrics.jsonl"
    turns = ([], [])
    drawn = 0
    cpu = 0.0
    wall = 0.0
    while not lines_of(metrics):
        time.sleep(0.2)
    watcher = Watcher(toy, folder)
    try:
        for number in range(2 * TURNS):
            before = watcher.seconds()
            if number % 2:
                watcher.begin()
            first = len(lines_of(metrics)) + 2  # the current step began before this turn
            while len(lines_of(metrics)) < first + steps // (2 * TURNS):
                assert not list((folder / "jobs").glob("04-training*/exit_code")), (
                    "the training ended before its turns"
                )
                time.sleep(0.5)
            found = [row["seconds"] for row in lines_of(metrics) if row["iteration"] >= first]
            if number % 2:
                after = watcher.seconds()
                cpu = cpu + after[0] - before[0]
                wall = wall + after[1] - before[1]
                drawn += watcher.end()
            turns[number % 2].append(statistics.median(found))
    finally:
        watcher.close()
    return *turns, drawn, cpu / wall


def view_of(folder: Path) -> LiveView:
    """Return the live view of the training in a run, without opening any records."""
    from runbook import params
    from runbook.phases.job_control.live_view import LiveView
    from runbook.runs.this_machine import make_plan_here

    settings = params.load(str(folder / "run.yaml"))
    phase_plan = make_plan_here(settings).phases["04-training"]
    opened = SimpleNamespace(
        settings=settings, phase="04-training", phase_plan=phase_plan, folder=folder
    )
    return LiveView(opened)


def look(folder: Path, times: int = 200) -> dict[str, float]:
    """Return the CPU seconds needed for one look at a training run."""
    from runbook.jobs.job_folder import latest_job_folder
    from runbook.runs.status import scheduler_of

    scheduler = scheduler_of(folder)
    job = latest_job_folder(folder, "04-training")
    assert job is not None, f"{folder} has trained nothing"
    return seconds_of_a_look(view_of(folder), lambda: scheduler.state(job), times)


def seconds_of_a_look(
    picture: LiveView, state: Callable[[], JobStatus], times: int
) -> dict[str, float]:
    """Return the mean CPU seconds for one look, over `times` looks."""
    began = time.process_time()
    for _ in range(times):
        picture.progress.draw_beside(picture.curve(), picture.last_events())
        picture.progress._note(None, None, picture.facts(state()))
        picture.progress.as_html(), picture.progress.as_long_text()
    seconds = (time.process_time() - began) / times
    return {"cpu_seconds_of_a_look": round(seconds, 5), "share_of_one_core": round(seconds, 5)}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("notebooks", "watching", "look", "both"), default="both")
    parser.add_argument(
        "--steps", type=int, default=240, help="steps of the training that is watched"
    )
    parser.add_argument("--run", type=Path, help="a run's folder, for --part look")
    asked = parser.parse_args()
    if asked.part == "look":
        sys.stdout.write(json.dumps(look(asked.run)) + "\n")
        return
    text = RUN_FILE.replace("rehearse_stop: 6", "rehearse_stop: 0")
    found: dict[str, object] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as temporary:
        if asked.part != "watching":
            found |= measured_notebooks(
                Path(temporary) / "notebooks", text.replace("iterations: 48 ", "iterations: 12 ")
            )
        if asked.part != "notebooks":
            steps = asked.steps
            found |= measured_watching(
                Path(temporary) / "watching",
                text.replace("iterations: 48 ", f"iterations: {3 * steps} "),
                steps,
            )
    sys.stdout.write(json.dumps(found | {"load_after": os.getloadavg()[0]}, indent=1) + "\n")


def measured_notebooks(root: Path, text: str) -> dict[str, object]:
    """Return the results from the first part as they are printed."""
    toy = Toy(root, text)
    try:
        rows = notebooks(toy)
    finally:
        toy.end_all()
    names = ("phase", "papermill_seconds", "plain_seconds", "more_seconds")
    shown = [
        (phase, round(one, 2), round(other, 2), round(one - other, 2)) for phase, one, other in rows
    ]
    return {"notebooks": [dict(zip(names, row, strict=True)) for row in shown]}


def measured_watching(root: Path, text: str, steps: int) -> dict[str, object]:
    """Return the results from the second part as they are printed."""
    toy = Toy(root, text)
    try:
        made = toy.run(toy.root / "papermill", "--to", "smoke")
        assert made.code == 0, made
        alone, watched, drawn, share = watching(toy, steps)
    finally:
        toy.end_all()
    pairs = [one / other - 1 for one, other in zip(watched, alone, strict=True)]
    return {
        "turns": TURNS,
        "steps_a_turn": steps // (2 * TURNS),
        "pictures_drawn": drawn,
        "watcher_share_of_one_core": round(share, 5),
        "step_seconds_alone": [round(seconds, 5) for seconds in alone],
        "step_seconds_watched": [round(seconds, 5) for seconds in watched],
        "watching_costs": round(statistics.median(watched) / statistics.median(alone) - 1, 5),
        "watching_costs_in_each_pair": [round(share, 5) for share in pairs],
    }


if __name__ == "__main__":
    main()
