"""Pages over many records: the report of a campaign, and the index of all runs; both from the folders alone.

    write_campaign(run_folder, *, sample=None, comparison=()) -> Path      runs/<run>/index.html
    write_runs_index(runs_folder) -> Path                                  runs/index.html

A campaign shows a text sample where a twin has the results `sample_before` and `sample_after`, and the plan beside what
came true where plan and results of a twin share a key; `sample` and `comparison` (rows with equal keys) win over that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from runbook.errors import RecordError
from runbook.records.curve import loss_curve, spark
from runbook.records.evidence import METRICS, evidence
from runbook.records.files import utc_now, write_text
from runbook.records.help import links_for, write_help
from runbook.records.html import card_facts, seconds_taken
from runbook.records.manifest import note_files
from runbook.records.pages import ResultRow, head, is_number, page, result_rows, show_value
from runbook.records.runs import KEY_NUMBERS, PhaseState, RunState, read_run, read_runs
from runbook.records.twin import Twin
from runbook.units import show_duration

LINK_WORDS = {"html": "report", "ipynb": "notebook", "json": "JSON"}
SAMPLE_KEYS = ("sample_before", "sample_after")
SHOWN_RESULTS = 6
"""Numbers of a phase shown in the campaign's table; the rest is in the phase's own report."""


class Shown(NamedTuple):
    """A cell of a table: what stands in it, and on which side."""

    shown: Markup
    is_number: bool


def write_campaign(
    run_folder: Path,
    *,
    sample: tuple[str, str] | None = None,
    comparison: Sequence[Mapping[str, Any]] = (),
    shown_as: str = "",
) -> Path:
    """Write runs/<run>/index.html anew; `shown_as` names a copy that stands alone, without its neighbours."""
    run = read_run(run_folder)
    run = replace(run, name=shown_as) if shown_as else run
    losses = {phase: read_losses(run_folder / name) for phase, name in METRICS.items()}
    main = losses["04-training"] or losses["03-smoke-test"]
    text = page(
        "campaign.html.j2",
        head=head(f"{run.name}: report"),
        run=run,
        is_alone=bool(shown_as),
        facts=_facts(run),
        spark=spark(main),
        curve=loss_curve([(phase, points) for phase, points in losses.items() if points]),
        first_last=(main[0][1], main[-1][1]) if main else None,
        rows=[_phase_row(run_folder, phase) for phase in run.phases],
        sample=sample or _sample(run),
        comparison=[_shown(row) for row in comparison] or _comparison(run),
        written=utc_now(),
    )
    path = run_folder / "index.html"
    write_text(path, text)
    note_files(run_folder, [path])
    return path


def write_runs_index(runs_folder: Path) -> Path:
    """Write runs/index.html anew."""
    rows = [
        {
            "run": run,
            "numbers": [(run.numbers.get(name), show_value(run.numbers.get(name, ""))) for name in KEY_NUMBERS],
            "changed": run.changed.isoformat(timespec="seconds"),
            "target": f"{run.name}/index.html" if (run.folder / "index.html").exists() else f"{run.name}/",
            "done": sum(phase.state == "done" for phase in run.phases),
        }
        for run in read_runs(runs_folder)
    ]
    text = page(
        "runs.html.j2", head=head("Runs", script=True), rows=rows, names=KEY_NUMBERS, num_phases=6, written=utc_now()
    )
    path = runs_folder / "index.html"
    write_text(path, text)
    write_help(runs_folder)
    return path


def read_losses(metrics: Path) -> list[tuple[float, float]]:
    """(iteration, loss) of a metrics file; empty where there is none or no step was finished yet."""
    from runbook.analysis.history import read_metrics

    try:
        return list(read_metrics(metrics).losses)
    except RecordError:
        return []


def _facts(run: RunState) -> list[tuple[str, str]]:
    twins = [phase.twin for phase in run.phases if phase.twin is not None]
    facts = [fact for fact in (card_facts(twins[-1]) if twins else []) if fact[0] != "Took"]
    total = sum(seconds_taken(twin) for twin in twins)
    return [*facts, *([("All phases took", show_duration(total))] if total else [])]


def _phase_row(run_folder: Path, phase: PhaseState) -> dict[str, Any]:
    twin = phase.twin
    return {
        "phase": phase.phase,
        "state": phase.state,
        "verdict": twin.verdict if twin else "",
        "reason": phase.problem or (twin.reason if twin and phase.state != "running" else ""),
        "helped": links_for(phase.problem or (twin.reason if twin else ""), "../"),
        "took": show_duration(seconds_taken(twin)) if twin and twin.ended else "",
        "results": _main_results(twin) if twin else [],
        "links": [(LINK_WORDS[name.rpartition(".")[2]], name) for name in phase.files]
        + evidence(run_folder, phase.phase),
        "earlier": phase.earlier,
    }


def _main_results(twin: Twin) -> list[ResultRow]:
    """The numbers that a list of runs shows too, then others in their order."""
    rows = sorted(result_rows(twin), key=lambda row: row.key not in KEY_NUMBERS)
    return [row for row in rows if row.is_number][:SHOWN_RESULTS]


def _sample(run: RunState) -> tuple[str, str] | None:
    for phase in reversed(run.phases):
        results = phase.twin.results if phase.twin else {}
        if all(isinstance(results.get(key), str) for key in SAMPLE_KEYS):
            return results[SAMPLE_KEYS[0]], results[SAMPLE_KEYS[1]]
    return None


def _shown(row: Mapping[str, Any]) -> dict[str, Shown]:
    return {name: Shown(show_value(value), value is None or is_number(value)) for name, value in row.items()}


def _comparison(run: RunState) -> list[dict[str, Shown]]:
    return [
        {
            "Phase": Shown(escape(phase.phase), False),
            "What": Shown(escape(row.key), False),
            "Planned": Shown(row.planned, row.is_number),
            "Actual": Shown(row.value, row.is_number),
            "Actual / planned": Shown(escape(row.ratio), row.is_number),
        }
        for phase in run.phases
        if phase.twin is not None
        for row in result_rows(phase.twin)
        if row.planned
    ]
