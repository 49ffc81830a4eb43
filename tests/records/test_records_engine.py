"""What a notebook contains after it ended in any possible way, run by the real papermill with real
kernels.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError
from notebook_project import (
    BIN,
    ERROR,
    KILL,
    SLEEP,
    WORK,
    Project,
    children_of,
    left_alive,
    start,
    statuses,
)
from suite.messages import says

from runbook.params.messages import ParamsMessage
from runbook.records.engine import client
from runbook.records.messages import RecordMessage

pytestmark = pytest.mark.notebooks

CHILD = "import subprocess\nprint(subprocess.Popen(['sleep', '300']).pid, flush=True)\n"
OPEN_SOCKETS = "TCP without encryption"
"""Warning from jupyter_client about kernels that listen on ports that others can reach."""
LINES = 5000
ENDINGS = {
    "success": ([WORK], (), 0),
    "error": ([WORK, ERROR], (), 0),
    "killed": ([WORK, CHILD + KILL], (), 0),
    "timeout": ([WORK, CHILD + SLEEP], ("--execution-timeout", "40"), 0),
    "sigint": ([WORK, CHILD + SLEEP], (), signal.SIGINT),
    "sigterm": ([WORK, SLEEP], (), signal.SIGTERM),
    "exit": ([WORK, "import sys\nsys.exit(0)"], (), 0),
}
"""Cells, papermill options, and the signal to send once the cell sleeps."""


@dataclass
class Ending:
    project: Project
    notebook: nbformat.NotebookNode
    exit_code: int
    log: str
    left_alive: set[int]
    seconds_to_end: float

    @property
    def record(self) -> dict:
        return json.loads(self.project.record(".json").read_text())

    @property
    def banner(self) -> str:
        return self.notebook.cells[0].source


def _wait_for(path: Path, text: str, process: subprocess.Popen[str], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text()):
        if time.monotonic() > deadline:
            process.terminate()
        if time.monotonic() > deadline or process.poll() is not None:
            log = process.communicate(timeout=60)[0]
            raise AssertionError(
                f"{path} did not say {text!r}; exit code {process.returncode}:\n{log}"
            )
        time.sleep(0.05)


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> dict[str, Ending]:
    started = {}
    for name, (cells, options, _) in ENDINGS.items():
        project = Project(tmp_path_factory.mktemp(name))
        output = project.root / "out.ipynb"
        process = project.papermill(
            project.notebook(*cells), output, "--autosave-cell-every", "1", *options
        )
        started[name] = (project, output, process)
    found = {}
    for name, (project, output, process) in started.items():
        kernels: set[int] = set()
        if number := ENDINGS[name][2]:
            _wait_for(output, "sleeping", process)
            kernels = children_of(process.pid)
            process.send_signal(number)
        before = time.monotonic()
        log, _ = process.communicate(timeout=300)
        seconds = time.monotonic() - before
        notebook = nbformat.read(output, as_version=4)
        kernels |= {int(pid) for pid in re.findall(r"^(\d+)\n", _printed(notebook), re.M)}
        found[name] = Ending(
            project, notebook, process.returncode, log, left_alive(kernels), seconds
        )
    return found


def _printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.parametrize(
    ("name", "exit_code", "state", "reason"),
    [
        ("success", 0, "done", ""),
        ("error", 1, "failed", "ValueError: the loss is not a number"),
        (
            "killed",
            138,
            "kernel-died",
            "the kernel died: exit code -9 (killed by signal 9); a machine that runs out of",
        ),
        ("timeout", 1, "timeout", "A cell timed out while it was being executed, after 40 seconds"),
        ("sigint", 1, "interrupted", "stopped by Ctrl-C (SIGINT)"),
        ("sigterm", 143, "interrupted", RecordMessage.STOPPED_BY_SIGTERM.fill()),
        ("exit", 1, "failed", "SystemExit: 0"),
    ],
)
def test_exit_code_state_and_reason_tell_how_it_ended(endings, name, exit_code, state, reason):
    ending = endings[name]
    assert ending.exit_code == exit_code, ending.log
    assert ending.notebook.metadata.runbook["state"] == state == ending.record["state"]
    assert ending.notebook.metadata.runbook["reason"].startswith(reason)
    assert ending.record["reason"].startswith(reason)


@pytest.mark.parametrize("name", [name for name in ENDINGS if name != "success"])
def test_stopped_notebook_has_a_failed_cell_pending_cells_a_banner_and_an_end(endings, name):
    ending = endings[name]
    assert statuses(ending.notebook) == ["completed", "completed", "completed", "failed", "pending"]
    assert "papermill-error-cell" in ending.banner
    assert re.search(r"In \[\d+\]", ending.banner)
    head = ending.notebook.metadata.papermill
    assert head.exception is True
    assert head.end_time is not None
    assert head.duration > 0
    failed = next(
        cell
        for cell in ending.notebook.cells
        if cell.get("metadata", {}).get("papermill", {}).get("status") == "failed"
    )
    assert failed.metadata.papermill.end_time is not None


def test_success_has_every_cell_completed_and_no_banner(endings):
    ending = endings["success"]
    assert set(statuses(ending.notebook)) == {"completed"}
    assert ending.banner.startswith("# 02-data")
    assert ending.notebook.metadata.papermill.exception is None


def test_nothing_that_a_stopped_notebook_started_lives_on(endings):
    assert {name: ending.left_alive for name, ending in endings.items()} == {
        name: set() for name in ENDINGS
    }


def test_a_signalled_notebook_ends_before_a_scheduler_loses_patience(endings):
    """Slurm waits 30 s before it kills a job. Half of that is reserved for work on a slow machine."""
    waits = client.SECONDS_TO_LEAVE_A_CELL + AsyncKernelManager().shutdown_wait_time
    assert waits < 15
    assert endings["sigterm"].seconds_to_end < 200, "its cell sleeps for 600 s"


def test_every_ending_is_filed_with_its_run_in_three_forms_that_agree(endings):
    from runbook.records.manifest import verify_run

    for name, ending in endings.items():
        for suffix in (".ipynb", ".html", ".json"):
            assert ending.project.record(suffix).exists(), name
        assert verify_run(ending.project.run_folder) == [], name


def test_results_reached_before_a_stop_are_kept(endings):
    for name in ENDINGS:
        assert endings[name].record["results"] == {"tokens": 1024, "loss": 2.718281828}, name
        verdict = {"success": "pass", "sigint": "unknown", "sigterm": "unknown"}.get(name, "fail")
        assert endings[name].record["verdict"] == verdict


def test_record_names_the_failed_cell_by_its_master_id(endings):
    cells = {cell["id"]: cell["state"] for cell in endings["killed"].record["cells"]}
    assert cells == {
        "code-1": "completed",
        "code-3": "completed",
        "code-5": "completed",
        "code-7": "failed",
        "code-9": "pending",
    }


@pytest.mark.parametrize("name", ["sigint", "sigterm"])
def test_an_interrupted_cell_is_interrupted_in_all_three_forms(endings, name):
    ending = endings[name]
    assert ending.record["state"] == "interrupted"
    states = [cell["state"] for cell in ending.record["cells"]]
    assert states == ["completed", "completed", "completed", "interrupted", "pending"]
    assert [
        cell.metadata["runbook"]["state"]
        for cell in ending.notebook.cells
        if "runbook" in cell.metadata
    ] == ["interrupted"]
    report = ending.project.record(".html").read_text()
    assert "· interrupted" in report
    assert "· failed" not in report


def test_kernels_speak_over_private_sockets(endings):
    for ending in endings.values():
        assert OPEN_SOCKETS not in ending.log


def test_log_of_a_stopped_notebook_is_short(endings):
    for name in ("sigint", "sigterm"):
        assert "ZMQError" not in endings[name].log
        assert "never retrieved" not in endings[name].log
    assert "Aborted!" in endings["sigint"].log


def test_ctrl_c_while_the_kernel_imports_ends_it_without_its_traceback(tmp_path):
    project = Project(tmp_path)
    started = tmp_path / "started"
    imports = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(started)!r}).write_text(f'{{os.getpid()}} ')\n"
        "time.sleep(300)"
    )
    specification = tmp_path / "jupyter" / "kernels" / "slow" / "kernel.json"
    specification.parent.mkdir(parents=True)
    argv = [sys.executable, "-c", imports, "{connection_file}"]
    specification.write_text(json.dumps({"argv": argv, "display_name": "slow"}))
    command = [BIN / "papermill", project.notebook(WORK), tmp_path / "out.ipynb"]
    command += ["--engine", "runbook", "--no-progress-bar", "--kernel", "slow"]
    process = start(
        [str(word) for word in command], tmp_path, JUPYTER_PATH=str(tmp_path / "jupyter")
    )
    _wait_for(started, " ", process)
    process.send_signal(signal.SIGINT)
    before = time.monotonic()
    log, _ = process.communicate(timeout=300)
    assert "Traceback" not in log and "Aborted" in log
    assert time.monotonic() - before < 200, "the kernel itself sleeps for 300 s"
    assert not left_alive({int(started.read_text())})


def test_carriage_returns_displays_and_a_long_runtime_folder(tmp_path):
    """5000 redrawn lines give one output, a display updated in place is logged, and sockets work
    below a long path.
    """
    project = Project(tmp_path)
    redraw = (
        f"import sys\nfor n in range({LINES}):\n    sys.stdout.write(f'\\r{{n}} of {LINES}')\n"
        "    sys.stdout.flush()"
    )
    mixed = "print('a')\nhandle = display('first', display_id=True)\nprint('b')\nprint('c')"
    update = "import time\nhandle.update('second')\ntime.sleep(0.2)\nhandle.update('third')"
    silent = "import time\nprint('sa' + 'id', flush=True)\ntime.sleep(2.5)"
    long = tmp_path / ("x" * 90)
    long.mkdir()
    output = project.root / "out.ipynb"
    command_environment = {"JUPYTER_RUNTIME_DIR": str(long), "TMPDIR": str(long)}
    before = dict(os.environ)
    started = time.monotonic()
    os.environ.update(command_environment)
    try:
        process = project.papermill(
            project.notebook(redraw, mixed, update, silent, bind=False, finish=False),
            output,
            "--log-output",
            "--autosave-cell-every",
            "1",
        )
    finally:
        os.environ.clear()
        os.environ.update(before)
    _wait_for(output, "said", process)
    time.sleep(1.5)
    saved_in_silence = nbformat.read(output, as_version=4)
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 0, log
    assert OPEN_SOCKETS not in log
    assert [cell for cell in saved_in_silence.cells if cell.cell_type == "code"][4].outputs[
        0
    ].text == "said\n"
    cells = [cell for cell in nbformat.read(output, as_version=4).cells if cell.cell_type == "code"]
    last_line = f"{LINES - 1} of {LINES}"
    assert [output.text for output in cells[1].outputs] == [last_line]
    assert [output.get("text") or output.data["text/plain"] for output in cells[2].outputs] == [
        "a\n",
        "'third'",
        "b\nc\n",
    ]
    logged = log.count(f"of {LINES}\n")
    most = 2 + (time.monotonic() - started) / client.SECONDS_BETWEEN_LOGGED_UPDATES
    assert 1 <= logged <= most, "redrawn lines reach the log now and then, and the last one always"
    assert f"{last_line}\n" in log
    assert "'first'" in log
    assert "'second'" in log
    assert "'third'" in log
    assert not list(long.glob("rb-*")), "the sockets' folder is removed"


def test_every_line_arrives_where_papermill_is_slower_than_the_kernel(tmp_path):
    """Stop papermill until the kernel has sent more than 1,000 messages.

    ZeroMQ drops messages if more than that wait for a reader.
    """
    project = Project(tmp_path)
    output = tmp_path / "out.ipynb"
    lines = "import pathlib\nprint('be' + 'gun', flush=True)\nfor n in range(9000):\n    print(n, flush=True)"
    lines += f"\npathlib.Path({str(tmp_path / 'sent')!r}).touch()"
    notebook = project.notebook(lines, "print('last')", bind=False, finish=False)
    process = project.papermill(notebook, output, "--autosave-cell-every", "1")
    _wait_for(output, "begun", process)
    process.send_signal(signal.SIGSTOP)
    deadline = (
        time.monotonic() + 300
    )  # a kernel whose output waits for its reader does not finish before that
    while not (tmp_path / "sent").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGCONT)
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 0, log
    cells = [cell for cell in nbformat.read(output, as_version=4).cells if cell.cell_type == "code"]
    assert "".join(output.text for output in cells[1].outputs).split() == [
        "begun",
        *map(str, range(9000)),
    ]
    assert cells[2].outputs[0].text == "last\n"


def test_a_cell_whose_end_is_never_told_is_waited_for_only_while_output_comes(monkeypatch):
    runner = client.NotebookRunner.__new__(client.NotebookRunner)
    runner._messages = 0
    cell = nbformat.v4.new_code_cell("print(1)")

    async def half_a_minute(outputs: object, timeout: float) -> None:
        assert timeout == 30
        runner._messages += runner._messages < 40

    monkeypatch.setattr(asyncio, "wait", half_a_minute)
    rest = runner._rest_of(SimpleNamespace(done=lambda: False), cell)
    with pytest.raises(CellTimeoutError) as ended:
        rest.send(None)  # without an event loop, because other tests' browser has one running
    assert runner._messages == 40
    assert RecordMessage.END_OF_CELL_MISSING.fill() in str(ended.value)
    assert f"after {client.MOST_SECONDS_OF_SILENCE} seconds" in str(ended.value)


def test_a_parameters_cell_that_was_changed_by_hand_is_refused_before_anything_is_written(tmp_path):
    project = Project(tmp_path)
    notebook = project.notebook(WORK)
    notebook.write_text(
        notebook.read_text().replace(r"overrides: str = \"\"", r"overrides: str = \"model=tiny\"")
    )
    process = project.papermill(notebook, tmp_path / "out.ipynb")
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert says(
        log,
        ParamsMessage.CELL_CHANGED_BY_HAND,
        notebook=notebook,
        shown_edits="overrides = 'model=tiny'",
    )
    assert not project.run_folder.exists()
    process = project.papermill(notebook, tmp_path / "out.ipynb", "-p", "overrides", "")
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 0, log
