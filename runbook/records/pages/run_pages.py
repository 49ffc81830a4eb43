"""Pages over the records of one run: its front page, and the report to mail.

A campaign shows the plan next to what came true where plan and results of a twin share a key,
unless it is given an `FrontPage` with more.
"""

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from markupsafe import Markup

from runbook.core.checks import Check, counted
from runbook.core.curves import MOST_POINTS, loss_curve, sparkline, thin
from runbook.core.errors import RecordError
from runbook.core.files import utc_now
from runbook.core.table import Row
from runbook.core.units import (
    four_digits,
    in_words,
    show_change,
    show_count,
    show_duration,
    unit_of,
)
from runbook.plan_file.phase_names import FULL
from runbook.planning.make_plan import parse_plan
from runbook.records.logbook import LogbookEntry, write_logbook
from runbook.records.pages.attachments import attachments
from runbook.records.pages.notebook_page import card_facts, seconds_taken
from runbook.records.pages.page_parts import (
    TEMPLATES,
    head,
    is_number,
    links_for,
    page,
    result_rows,
    scripts_inside,
    show_value,
    write_and_note,
)
from runbook.records.pages.summary import Briefing, checks_of, summarize
from runbook.records.run_state import (
    KEY_NUMBERS,
    METRICS,
    PhaseState,
    RunState,
    evidence_links,
    read_run,
)
from runbook.records.twin import Twin, read_twin
from runbook.results.scores import Score, as_scores, show_score, worse

LINK_WORDS = {"html": "report", "ipynb": "notebook", "json": "JSON"}
SHOWN_RESULTS = 6
"""Numbers of a phase in the campaign's table; the others are in the phase's own report."""
SPARK_WIDTH = 20
MOST_OTHER_RUNS = 5
LARGEST_METRICS = 64 * 2**20
"""Bytes. A longer history is not read just to overlay its curve on another one."""


class FrontPage(NamedTuple):
    """What the front page shows in addition to the records.

    Made by whoever knows plan and prices.
    """

    # Text before and after training
    sample: tuple[str, str] | None = None
    # Phase, what, planned, actual, ratio, remark
    comparison: Sequence[Row] = ()
    # Name, value, what stands next to it
    tiles: Sequence[tuple[str, str, str]] = ()
    # What, measure, samples, before and after the training
    scores: Sequence[Row] = ()
    # Sources of the page that were changed after they were recorded
    changed: Sequence[str] = ()
    # Further names and values, such as nodes known as bad
    facts: Sequence[tuple[str, str]] = ()


class Chart(NamedTuple):
    """The losses of one training: a picture, and the same as data for the page's script."""

    title: str
    points: list[tuple[float, float]]
    picture: Markup
    content: Markup


class Curve(NamedTuple):
    """One training: its restarts, and losses and evaluations as (iteration, tokens, loss)."""

    name: str
    # Curves of another model or batch share no axis of iterations
    model: str
    points: Sequence[tuple[float, int, float]]
    validation: Sequence[tuple[int, int, float]]
    restarts: Sequence[tuple[int, int, float]]
    # Loss of an untrained model, ln of its vocabulary; 0 if there is no plan
    untrained: float


REPORT_NAME = "report.html"


class PageContent(NamedTuple):
    """The content of both pages of a run, by the names in their templates."""

    run: RunState
    changed: Sequence[str]
    summary: Briefing
    tiles: Sequence[tuple[str, str, str]]
    facts: Sequence[tuple[str, str]]
    spark: str
    charts: Sequence[Chart]
    chart_script: str
    logbook: Sequence[LogbookEntry]
    curve_around: Callable[[float], Markup]
    rows: Sequence[SimpleNamespace]
    sample: tuple[str, str] | None
    scores: Sequence[Score]
    worse: Sequence[str]
    comparison: Sequence[Row]


class Surroundings(StrEnum):
    """What exists next to a run's folder, so that its page has no broken links."""

    RUNS = "runs"
    """Other runs, and the manifest of this one."""
    SITE = "site"
    """Copies of other runs, without manifests."""
    NONE = "none"


def write_campaign(
    run_folder: Path,
    outcome: FrontPage | None = None,
    *,
    shown_as: str = "",
    surroundings: Surroundings = Surroundings.RUNS,
) -> Path:
    """Write runs/<run>/index.html, and report.html: the same for a mail, with nothing outside it.

    `shown_as` is the name on the page where it is not the folder's.
    """
    run = read_run(run_folder)
    run = replace(run, name=shown_as) if shown_as else run
    has_others = surroundings is Surroundings.RUNS
    content = _page_content(run, outcome or FrontPage(), with_others=has_others)
    mailed = page(
        "mail.html.j2",
        **content._asdict(),
        head=head(f"{run.name}: report", scripts=scripts_inside(bool(content.charts))),
        open_checks=[row for row in checks_of(run) if row.check.verdict != "pass"],
        passed=[row for row in checks_of(run) if row.check.verdict == "pass"],
        attachments=attachments(run_folder),
        # Without the time of writing, the same records produce the same file.
        state_of=f"{run.changed:%Y-%m-%d %H:%M} UTC",
    )
    write_and_note(run_folder, REPORT_NAME, mailed)
    text = page(
        "campaign.html.j2",
        **content._asdict(),
        head=head(f"{run.name}: report", scripts=scripts_inside(bool(content.charts))),
        answer=_answer(run),
        has_index=surroundings is not Surroundings.NONE,
        has_manifest=surroundings is Surroundings.RUNS,
        written=_written_at(),
    )
    return write_and_note(run_folder, "index.html", text)


def _page_content(run: RunState, outcome: FrontPage, *, with_others: bool) -> PageContent:
    charts = loss_charts(run.folder, with_others=with_others)
    main_points = charts[0].points if charts else []
    scores = as_scores(outcome.scores)
    comparison = [_planned_row(row) for row in outcome.comparison or _comparison(run)]
    return PageContent(
        run=run,
        changed=outcome.changed,
        summary=summarize(run, main_points, scores),
        tiles=[*_loss_tiles(outcome, main_points), *_score_tiles(scores)],
        facts=[*_facts(run), *outcome.facts],
        spark=sparkline([loss for _, loss in main_points], SPARK_WIDTH),
        charts=charts,
        chart_script=(TEMPLATES / "chart.js").read_text(encoding="utf-8"),
        logbook=write_logbook(run.folder),
        curve_around=partial(_curve_around, main_points),
        rows=[_phase_row(run.folder, phase) for phase in run.phases],
        sample=outcome.sample,
        scores=scores,
        worse=[score.worse_text() for score in worse(scores)],
        comparison=without_repeated_remarks(comparison),
    )


def without_repeated_remarks(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with each remark of a phase only at its first occurrence."""
    earlier_remarks: set[tuple[str, str]] = set()
    shown_rows = []
    for row in rows:
        remark = (str(row["phase"]), str(row["remark"]))
        shown_rows.append({**row, "remark": ""} if remark in earlier_remarks else row)
        earlier_remarks.add(remark)

    return shown_rows


def _curve_around(points: Sequence[tuple[float, float]], iteration: float) -> Markup:
    """Draw the loss for 100 iterations before and after an iteration."""
    near = [point for point in points if abs(point[0] - iteration) <= 100]
    return loss_curve([("loss", near)])


def _written_at() -> str:
    return f"{utc_now()[:19].replace('T', ' ')} UTC"


def loss_charts(run_folder: Path, *, with_others: bool = True) -> list[Chart]:
    """Return one chart for each training, the main one first and laid over other runs.

    The page's script draws two models with axes of their own.
    """
    charts: list[Chart] = []
    for phase in reversed(METRICS):
        curve = read_curve(run_folder, phase, "this run")
        if curve is None:
            continue
        if with_others and phase == FULL:
            others = _other_curves(run_folder, phase)
        else:
            others = []

        chart = _chart(phase, curve, others)
        if chart.picture:
            charts.append(chart)

    return charts


def _other_curves(run_folder: Path, phase: str) -> list[Curve]:
    """Return the curves of the runs next to this one that changed last."""
    paths = run_folder.parent.glob(f"*/{METRICS[phase]}")
    folders = [path.parent for path in paths if path.parent != run_folder]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    curves = (read_curve(folder, phase, folder.name) for folder in folders[:MOST_OTHER_RUNS])
    return [curve for curve in curves if curve is not None]


def _chart(phase: str, curve: Curve, others: Sequence[Curve]) -> Chart:
    training = [(iteration, loss) for iteration, _, loss in curve.points]
    validation = [(float(iteration), loss) for iteration, _, loss in curve.validation]
    picture = loss_curve(
        [("training loss", training), ("validation loss", validation)],
        curve.untrained,
        [iteration for iteration, _, _ in curve.restarts],
    )
    series = [drawn._asdict() for drawn in (curve, *others)]
    content = json.dumps({"series": series}, separators=(",", ":"))
    title = f"Loss of {phase}"
    if curve.model:
        title += f", {curve.model}"
    return Chart(title, training, picture, Markup(content.replace("<", "\\u003c")))


def read_curve(run_folder: Path, phase: str, name: str) -> Curve | None:
    """Return the losses of a run's full training.

    Return None if there are fewer than two losses, or if the file is too long to read for this.
    """
    from runbook.results.history import read_metrics, read_validation

    path = run_folder / METRICS[phase]
    if not path.exists() or path.stat().st_size > LARGEST_METRICS:
        return None
    model, untrained = _model_of_plan(run_folder, phase)
    try:
        history = read_metrics(path)
    except RecordError:
        return None

    tokens = {step.iteration: step.consumed_tokens for step in history.steps}
    points = [(x, tokens[int(x)], four_digits(y)) for x, y in thin(history.losses, MOST_POINTS)]
    if len(points) < 2:
        return None
    validation = []
    for evaluation in read_validation(path.with_name("validation.jsonl")):
        consumed = tokens.get(evaluation.iteration, 0)
        validation.append((evaluation.iteration, consumed, four_digits(evaluation.loss)))

    restarts = [(first, tokens.get(first, 0), 0.0) for first in history.restarts]
    return Curve(
        name,
        model,
        points,
        validation,
        restarts,
        untrained,
    )


def _model_of_plan(run_folder: Path, phase: str) -> tuple[str, float]:
    """Return a phase's model in words and its loss before training, ln of its vocabulary.

    Without a readable plan they are an empty text and 0.
    """
    plan_file = run_folder / "plan.json"
    try:
        spec = parse_plan(plan_file.read_text(encoding="utf-8"), plan_file).phases[phase]
    except (RecordError, FileNotFoundError, KeyError):
        return "", 0.0

    parameters = show_count(spec.model.parameters)
    model = f"{parameters} parameters, {spec.batch.global_} sequences a step"
    return model, round(math.log(spec.model.shape.vocabulary), 4)


def _answer(run: RunState) -> str:
    """Return one sentence about whether the run succeeded, and what failed."""
    num_done = sum(phase.state == "done" for phase in run.phases)
    progress = f"{num_done} of {len(run.phases)} phases done"
    num_checks = 0
    failed_checks = []
    bad_ends = []
    for phase in run.phases:
        if phase.state not in ("done", "not run"):
            bad_ends.append(f"{phase.phase}: {phase.state}")
        for check in phase.twin.checks if phase.twin else ():
            num_checks += 1
            if check.verdict != "pass":
                failed_checks.append(f"{phase.phase}: {check.name} ({check.verdict})")

    problems = "; ".join([*bad_ends, *failed_checks])
    return f"{progress}; {problems or counted(num_checks, 'check') + ', all passed'}"


def _planned_row(row: Row) -> Row:
    """Return a number of the plan next to what came true; the bar's width is 0 if both agree."""
    quantity = str(row["what"])
    ratio = row.get("ratio") or 0.0
    # The bar is on a logarithmic scale that ends at 8 times the plan, or an eighth of it.
    octaves = max(-3.0, min(3.0, math.log2(ratio))) if ratio > 0 else 0.0
    percent_of_half = 50 * abs(octaves) / 3
    unit = unit_of(quantity)
    return {
        "phase": row["phase"],
        "ratio": ratio,
        "width": round(percent_of_half, 1) if abs(ratio - 1) > 0.005 else 0.0,
        "name": in_words(quantity).partition(" (")[0],
        "times": show_change(ratio),
        "remark": row.get("remark") or "",
        "planned": show_value(quantity, row["planned"], unit),
        "actual": show_value(quantity, row["actual"], unit),
    }


INDEX_SCORES = {"bits per byte": "bits per byte", "right (share)": "minimal pairs right"}
"""Measures that a list of runs shows, with the titles of their columns."""


def _loss_tiles(
    outcome: FrontPage, points: Sequence[tuple[float, float]]
) -> Sequence[tuple[str, str, str]]:
    """The tiles of whoever knows plan and prices, else the loss alone; none without losses."""
    if not points:
        return ()
    return outcome.tiles or [("Loss", f"{points[-1][1]:.4g}", f"from {points[0][1]:.4g}")]


def _score_tiles(scores: Sequence[Score]) -> list[tuple[str, str, str]]:
    """Return a tile for each score that a list of runs shows too."""
    tiles = []
    for measure, name in INDEX_SCORES.items():
        of_measure = [score for score in scores if score.measure == measure]
        for score in of_measure:
            title = f"{name[0].upper()}{name[1:]}"
            if len(of_measure) > 1:
                title += f", {score.what}"
            if score.before is None:
                beside = "not measured before the training"
            else:
                beside = f"{score.change}, from {show_score(score.before)}"

            tiles.append((title, show_score(score.after), beside))

    return tiles


def _facts(run: RunState) -> list[tuple[str, str]]:
    twins = [phase.twin for phase in run.phases if phase.twin is not None]
    if not twins:
        return []
    # The newest phase's facts, but since the first phase began; how long all took follows.
    since_first = replace(twins[-1], started=min(twin.started for twin in twins))
    facts = []
    for name, value in card_facts(since_first):
        if name != "Took":
            facts.append((name, value))

    total_seconds = sum(map(seconds_taken, twins))
    if not total_seconds:
        return facts
    took = f"{show_duration(total_seconds)}, the newest execution of each"
    earlier = _earlier_twins(run)
    if earlier:
        if len(earlier) == 1:
            number = "one earlier"
        else:
            number = f"{len(earlier)} earlier ones"

        with_earlier_seconds = total_seconds + sum(map(seconds_taken, earlier))
        took += f"; {show_duration(with_earlier_seconds)} with {number}"

    return [*facts, ("All phases took", took)]


def _earlier_twins(run: RunState) -> list[Twin]:
    """Return the twins of earlier executions, without those that cannot be read."""
    twins = []
    for phase in run.phases:
        for name in phase.earlier:
            if name.endswith(".json"):
                with contextlib.suppress(RecordError):
                    twins.append(read_twin(run.folder / name))

    return twins


def _phase_row(run_folder: Path, phase: PhaseState) -> SimpleNamespace:
    twin = phase.twin
    reports = [(LINK_WORDS[name.rpartition(".")[2]], name) for name in phase.files]
    reason = phase.problem or (twin.reason if twin else "")
    results = [row for row in (result_rows(twin) if twin else []) if row.is_number]
    # First what a list of runs shows too
    results.sort(key=lambda row: row.key not in KEY_NUMBERS)
    return SimpleNamespace(
        phase=phase.phase,
        state=phase.state,
        verdict=twin.verdict if twin else "",
        reason="" if phase.state == "running" else reason,
        helped=links_for(reason, "../"),
        took=show_duration(seconds_taken(twin)) if twin and twin.ended else "",
        checks=_checks_text(twin.checks) if twin else "",
        results=results[:SHOWN_RESULTS],
        links=[*reports, *evidence_links(run_folder, phase.phase)],
        earlier=phase.earlier,
    )


def _checks_text(checks: Sequence[Check]) -> str:
    num_passed = sum(check.verdict == "pass" for check in checks)
    return f"{num_passed} of {len(checks)} passed" if checks else ""


def _comparison(run: RunState) -> list[Row]:
    """Return the numbers that are in both the plan and the results of a twin."""
    rows: list[Row] = []
    for phase in run.phases:
        if phase.twin is None:
            continue
        for key, actual in phase.twin.results.items():
            planned = phase.twin.plan.get(key)
            if not is_number(actual) or not is_number(planned) or not planned:
                continue
            row = {
                "phase": phase.phase,
                "what": key,
                "planned": planned,
                "actual": actual,
                "ratio": actual / planned,
            }
            rows.append(row)

    return rows
