"""The report of a run: its page, the index over all runs, the manifest, and the card at the end of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import Table, sparkline
from runbook.phases import samples, trained
from runbook.phases.analysis_tables import plan_versus_actual
from runbook.phases.plan_file import read_plan_file
from runbook.records.index import write_campaign, write_runs_index
from runbook.records.manifest import write_manifest
from runbook.records.runs import read_run
from runbook.records.whole import write_whole

FULL = "04-training"
SMOKE = "03-smoke-test"
CARD_COLUMNS = 40


def write_report(folder: Path, *, manifest: bool = True) -> Path:
    """Write index.html and report.html of the run, index.html of all runs, and the manifest where asked, anew."""
    sample, comparison = sample_and_comparison(folder)
    page = write_campaign(folder, sample=sample, comparison=comparison)
    write_whole(folder)
    write_runs_index(folder.parent)
    if manifest:
        write_manifest(folder)
    return page


def file_notebook(notebook: Path, folder: Path) -> str:
    """File a notebook that a person executed among the records of its run; another run's is refused."""
    from runbook.records.execute import adopt_execution

    filed = adopt_execution(notebook, run_folder=folder)
    assert filed.notebook is not None, "what was adopted has a place"
    return f"{notebook} is filed as {filed.notebook.relative_to(folder)}: {filed.state}"


def sample_and_comparison(folder: Path) -> tuple[tuple[str, str] | None, list[dict[str, Any]]]:
    """What the model wrote before and after, where it wrote, and the plan beside what came true."""
    plan = read_plan_file(folder)
    before_after = _samples(folder, plan)
    sample = (before_after[0], before_after[-1]) if len(before_after) > 1 else None
    return sample, _comparison(folder, plan)


def card(folder: Path) -> str:
    """What a person wants to know at the end: verdict, loss, text before and after, plan against actual, the report."""
    plan = read_plan_file(folder)
    run = read_run(folder)
    rows = [
        {"phase": one.phase, "state": one.state, "verdict": one.twin.verdict if one.twin else ""} for one in run.phases
    ]
    parts = ["", f"{folder.name}: {run.verdict}", Table(rows).as_text()]
    for phase in (SMOKE, FULL):
        losses = (
            [loss for _, loss in trained.read_folder(folder, plan, phase).history.losses]
            if _has(folder, plan, phase)
            else []
        )
        if losses:
            parts.append(f"{phase}  loss {losses[0]:.2f} {sparkline(losses, CARD_COLUMNS)} {losses[-1]:.2f}")
    parts += [
        f"after iteration {row['after iteration']}: " + " ".join(f"{row['prompt']}{row['continuation']}".split())
        for row in _rows(folder, plan)
    ]
    comparison = _comparison(folder, plan)
    if comparison:
        parts.append(Table(comparison, title="Plan versus actual").as_text())
    parts.append(f"Report: {folder / 'index.html'}")
    return "\n\n".join(parts)


def _has(folder: Path, plan: Mapping[str, Any], phase: str) -> bool:
    metrics = folder / str(plan["phases"][phase]["log"]["metrics"])
    return metrics.exists()


def _rows(folder: Path, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokenizer = params.load(str(folder / "run.yaml")).run.data.tokenizer
    return samples.rows(folder, plan["phases"][FULL], tokenizer)


def _samples(folder: Path, plan: Mapping[str, Any]) -> list[str]:
    return [f"{row['prompt']}{row['continuation']}" for row in _rows(folder, plan)]


def _comparison(folder: Path, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for phase in (SMOKE, FULL):
        if _has(folder, plan, phase):
            one = trained.read_folder(folder, plan, phase)
            if one.history.steps:
                rows += [{"phase": phase, **row} for row in plan_versus_actual(one) if row["planned"] is not None]
    return rows
