"""Makes the page for all runs: a table, a chart with all losses, and the values that differ."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from runbook.core.errors import ParamsError
from runbook.core.files import utc_now, write_text
from runbook.core.table import Row
from runbook.core.units import in_words
from runbook.params.yaml12 import dotted, read_file
from runbook.plan_file.phase_names import PHASES
from runbook.records.pages.front_page import INDEX_SCORES
from runbook.records.pages.overlay import LIVE_FOLDER, MOST_RUNS, OverlayCurve, overlay_curves
from runbook.records.pages.page_parts import TEMPLATES, Scripts, head, page, show_value, write_help
from runbook.records.run_state import KEY_NUMBERS, RunState, has_current_scores, read_runs
from runbook.results.comparison import differing_rows
from runbook.results.scores import Score, read_main_scores

NAMES_OF_A_RUN = frozenset({"run"})
"""Keys whose values always differ and therefore do not help the reader."""


class SideBySide(NamedTuple):
    """A table with a column for each run."""

    title: str
    names: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Any]]]


def write_runs_index(runs_folder: Path) -> Path:
    """Write runs/index.html."""
    runs = read_runs(runs_folder)
    curves = overlay_curves(runs)
    compared = runs[:MOST_RUNS]
    text = page(
        "runs.html.j2",
        head=head("Runs", scripts=Scripts.NEIGHBOURS),
        rows=[_index_row(run) for run in runs],
        names=[*(in_words(name) for name in KEY_NUMBERS), *INDEX_SCORES.values()],
        num_phases=len(PHASES),
        overlay=_overlay_json(curves),
        num_curves=len(curves),
        most_runs=MOST_RUNS,
        num_runs=len(runs),
        running=[curve.name for curve in curves if curve.running],
        live_folder=LIVE_FOLDER,
        tables=[table for table in (_parameters(compared), _scores(compared)) if table.rows],
        chart_script=(TEMPLATES / "chart.js").read_text(encoding="utf-8"),
        written=f"{utc_now()[:19].replace('T', ' ')} UTC",
    )
    write_text(runs_folder / "index.html", text)
    write_help(runs_folder)
    return runs_folder / "index.html"


def _overlay_json(curves: Sequence[OverlayCurve]) -> Markup:
    series = ",".join(curve.as_json() for curve in curves)
    return Markup(f'{{"together":true,"series":[{series}]}}')


def _parameters(runs: Sequence[RunState]) -> SideBySide:
    """Return the keys in run.yaml that do not have the same value in all runs."""
    names = [run.name for run in runs]
    sides = [_parameters_of(run) for run in runs]
    if len(runs) < 2:
        return SideBySide("", names, ())
    rows = []
    for row in differing_rows(names, sides):
        if row["key"] not in NAMES_OF_A_RUN:
            values = [_shown_parameter(row[name]) for name in names]
            rows.append((str(row["key"]), values))

    return SideBySide("Parameters that differ", names, rows)


def _parameters_of(run: RunState) -> Row:
    try:
        return dotted(read_file(run.folder / "run.yaml", "run.yaml").values)
    except (ParamsError, FileNotFoundError):
        return {}


def _shown_parameter(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def _scores(runs: Sequence[RunState]) -> SideBySide:
    """Return the scores after training, with a row for each measure that at least one run has."""
    by_run = []
    for run in runs:
        by_run.append({_score_name(score): score for score in main_scores(run)})

    measures: dict[str, None] = {}
    for scores in by_run:
        measures.update(dict.fromkeys(scores))
    rows = []
    for name in measures:
        rows.append((name, [scores.get(name) for scores in by_run]))

    return SideBySide("Scores", [run.name for run in runs], rows if len(runs) > 1 else ())


def _score_name(score: Score) -> str:
    return f"{score.what}, {score.measure}"


def main_scores(run: RunState) -> Sequence[Score]:
    """Return the scores of a run.

    The result is empty if they are outdated, or if anything other than the runbook wrote or changed
    the file.
    """
    if not has_current_scores(run):
        return ()
    try:
        return read_main_scores(run.folder)
    except (KeyError, TypeError):
        return ()


def _index_row(run: RunState) -> Row:
    numbers = []
    for name in KEY_NUMBERS:
        text = show_value(name, run.numbers.get(name, ""))
        numbers.append((run.numbers.get(name), text))

    has_report = (run.folder / "index.html").exists()
    all_scores = main_scores(run)
    scores = []
    for measure in INDEX_SCORES:
        scores.append([score for score in all_scores if score.measure == measure])

    return {
        "run": run,
        "numbers": numbers,
        "changed": run.changed.isoformat(timespec="seconds"),
        "scores": scores,
        "target": f"{run.name}/index.html" if has_report else f"{run.name}/",
        "done": sum(phase.state == "done" for phase in run.phases),
    }
