"""A small project with marker notebooks, for tests that really execute them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat

from runbook.core.processes import wait_until

BIN = Path(sys.executable).parent
PHASE = "02-data"

PARAMETERS = 'run: str = "toy"  # a file in params/\noverrides: str = ""'
BIND = """from types import SimpleNamespace
from pathlib import Path
from runbook.core.checks import Check
from runbook.records.session import start
PROJECT = Path({project!r})
values = {{"run": {{"value": "toy", "origin": "run file"}}, "site": {{"value": "local", "origin": "built-in"}}}}
settings = SimpleNamespace(project=PROJECT, name="toy", parameters=lambda: values)
session = start(settings, {phase!r}, PROJECT / "runs" / "toy")"""
WORK = """session.plan["tokens"] = 1000
session.add_results({"tokens": 1024, "loss": 2.718281828})
session.check(Check("tokens", "pass", "1024", "at least 1000"))
print("worked")"""
FINISH = "record = session.finish()"

KILL = "import os\nprint('before', flush=True)\nos.kill(os.getpid(), 9)"
SLEEP = "import time\nprint('sleep' + 'ing', flush=True)\ntime.sleep(600)"
TEXT_OF_ERROR = "the loss is not a number"
ERROR = f"raise ValueError({TEXT_OF_ERROR!r})"


class Project:
    """A folder with notebooks/ and runs/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_folder = root / "runs" / "toy"
        (root / "notebooks").mkdir(parents=True)

    def notebook(
        self, *cells: str, phase: str = PHASE, bind: bool = True, finish: bool = True
    ) -> Path:
        """Write a master: heading, parameters, bind, the given cells, finish."""
        code = [BIND.format(project=str(self.root), phase=phase)] if bind else []
        code += [*cells, *([FINISH] if finish else [])]
        nodes = [nbformat.v4.new_markdown_cell(f"# {phase}\n\nA marker notebook.")]
        nodes.append(nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
        for number, source in enumerate(code):
            nodes.append(nbformat.v4.new_markdown_cell(f"## Question {number}?\n\nWhy."))
            nodes.append(nbformat.v4.new_code_cell(source))
        for number, cell in enumerate(nodes):
            cell.id = f"{cell.cell_type[:4]}-{number}"
        content = nbformat.v4.new_notebook(cells=nodes)
        content.metadata.kernelspec = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        path = self.root / "notebooks" / f"{phase}.ipynb"
        nbformat.write(content, path)
        return path

    def record(self, suffix: str, phase: str = PHASE) -> Path:
        """Return a record file in the run folder."""
        return self.run_folder / "records" / f"{phase}{suffix}"

    def papermill(
        self, notebook: Path, output: Path, *options: str, engine: str = "runbook"
    ) -> subprocess.Popen[str]:
        """Start the program papermill."""
        command = [
            str(BIN / "papermill"),
            str(notebook),
            str(output),
            "--engine",
            engine,
            "--no-progress-bar",
            *options,
        ]
        return start(command, self.root)


def start(command: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a program, with its output read as text."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def statuses(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the status that papermill gave each code cell."""
    return [cell.metadata.papermill.status for cell in notebook.cells if cell.cell_type == "code"]


def children_of(pid: int) -> set[int]:
    """Return all processes below a process."""
    import psutil

    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def left_alive(pids: set[int]) -> set[int]:
    """Return the processes that keep running. A killed process takes a moment to end."""
    wait_until(lambda: not alive(pids), 60)
    return alive(pids)


def alive(pids: set[int]) -> set[int]:
    """Return the processes that are still running."""
    import psutil

    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


__all__ = [
    "BIN",
    "ERROR",
    "KILL",
    "PHASE",
    "SLEEP",
    "WORK",
    "Project",
    "children_of",
    "left_alive",
    "signal",
    "start",
    "statuses",
]
