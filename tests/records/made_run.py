"""A finished run built from constants, for tests of pages and tables that are built from records.
Nothing is executed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nbformat

from runbook.core.checks import Check
from runbook.records.engine.execute import write_record
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.phase_record import Cell, PhaseRecord
from runbook.records.session import MIME

RECORD = PhaseRecord(
    schema=1,
    run="toy",
    phase="04-training",
    state=ExecutionState.DONE,
    verdict="pass",
    started="2025-11-21T06:00:00.000000Z",
    ended="2025-11-21T06:02:30.000000Z",
    reason="",
    commit="0123456789abcdef0123456789abcdef01234567-dirty",
    versions={"python": "3.11.7"},
    parameters={
        "run": {"value": "toy", "origin": "run file"},
        "site": {"value": "local", "origin": "built-in"},
    },
    plan={"iterations": 100, "tokens_per_second": 8000.0},
    results={
        "parameters": 64633856,
        "iterations": 100,
        "first_loss": 10.8249,
        "last_loss": 3.61803398875,
        "tokens_per_second": 9000.5,
    },
    checks=(Check("first loss", "pass", "10.82", "within 0.3 of ln 50304"),),
    cells=(Cell("code-1", "completed"),),
)
IMAGE = "data:image/png;base64,iVBORw0KGgo="
HOSTILE = """<table><tr><td>kept</td></tr></table>
<script src="https://cdn.example.org/x.js">document.title = "no"</script><link rel=stylesheet href="https://cdn.example.org/x.css">
<img alt="" src="https://cdn.example.org/x.png"><img alt="" src='//cdn.example.org/y.png'>
<div style="background: url(https://cdn.example.org/z.png)">styled</div>"""


def notebook(
    *outputs: nbformat.NotebookNode, markdown: str = "# Title\n\nWhy."
) -> nbformat.NotebookNode:
    """Return an executed notebook with a heading and one cell with outputs."""
    cell = nbformat.v4.new_code_cell(
        "print(1)", execution_count=1, outputs=list(outputs), id="code-1"
    )
    cell.metadata["papermill"] = {"status": "completed", "duration": 1.25}
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(markdown, id="text-0"), cell]
    )


def data(**kinds: object) -> nbformat.NotebookNode:
    """Return a display output. `text_html` stands for text/html."""
    return nbformat.v4.new_output(
        "display_data", data={name.replace("_", "/", 1): value for name, value in kinds.items()}
    )


def announced(run_folder: Path, record: PhaseRecord) -> nbformat.NotebookNode:
    """Return the output in which a notebook names its run."""
    told = {"run_folder": str(run_folder), "phase": record.phase, "execution": record.started}
    return nbformat.v4.new_output(
        "display_data", data={MIME: told, "text/plain": "Record of this notebook"}
    )


def write_run(runs: Path, name: str = "toy", **changes: object) -> Path:
    """Write a run folder with the record for one phase, losses and all pages."""
    run_folder = runs / name
    (run_folder / "smoke").mkdir(parents=True)
    (run_folder / "run.yaml").write_text(f"run: {name}\n")
    (run_folder / "plan.json").write_text("{}\n")
    lines = [
        {"iteration": n, "loss": 3.6 + 7.2 / n, "seconds": 1.0, "segment": 0} for n in range(1, 101)
    ]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = replace(RECORD, run=name, **changes)
    content = notebook(
        announced(run_folder, record), nbformat.v4.new_output("stream", name="stdout", text="out\n")
    )
    told = {"run": name, "phase": record.phase, "execution": record.started}
    content.metadata["runbook"] = told | {
        "state": str(record.state),
        "verdict": record.verdict,
        "reason": record.reason,
    }
    write_record(content, record, run_folder)
    return run_folder
