"""Makes the front page for a run, and the report to be mailed.

Without a `FrontPage`, the page compares planned and actual values only if a record has both under
the same key.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from markupsafe import Markup

from runbook.core.checks import counted
from runbook.core.curves import loss_curve, sparkline
from runbook.core.errors import RecordError
from runbook.core.files import utc_now
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.records.logbook import LogbookEntry, write_logbook
from runbook.records.messages import RecordMessage
from runbook.records.pages.attachments import attachments
from runbook.records.pages.loss_charts import Chart, loss_charts
from runbook.records.pages.notebook_page import card_facts, seconds_taken
from runbook.records.pages.page_parts import TEMPLATES, head, page, scripts_inside, write_and_note
from runbook.records.pages.phases_table import phase_row
from runbook.records.pages.plan_section import (
    numbers_in_plan_and_results,
    planned_row,
    without_repeated_remarks,
)
from runbook.records.pages.summary import Briefing, checks_of, summarize
from runbook.records.phase_record import PhaseRecord, read_phase_record
from runbook.records.run_state import NOT_RUN, RunState, has_current_scores, read_run
from runbook.results.scores import Score, as_scores, show_score, worse

SPARK_WIDTH = 20


class FrontPage(NamedTuple):
    """The content shown on the front page in addition to the records.

    `phases/run_report.py` computes this content, because it can read the plan, the prices and the
    site files.
    """

    # Text that the model wrote before and after training
    sample: tuple[str, str] | None = None
    # Phase, value name, planned, actual, ratio, remark
    comparison: Sequence[Row] = ()
    # Name, value, and the note next to the value
    tiles: Sequence[tuple[str, str, str]] = ()
    # Scored text, measure, samples, value before and after the training
    scores: Sequence[Row] = ()
    # Source files for the page that have changed since they were recorded
    changed: Sequence[str] = ()
    # Further names and values, such as nodes known to be bad
    facts: Sequence[tuple[str, str]] = ()


REPORT_NAME = "report.html"


class PageContent(NamedTuple):
    """Values to show on both pages for a run, under the names used in templates."""

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
    scores_remark: str
    worse: Sequence[str]
    comparison: Sequence[Row]


class Surroundings(StrEnum):
    """The files that are next to a run folder.

    The page links only to these, so that no link is broken.
    """

    RUNS = "runs"
    """Other runs are next to the folder, and the run has a manifest."""
    SITE = "site"
    """Copies of other runs lie next to the folder and have no manifests."""
    NONE = "none"


def write_front_page(
    run_folder: Path,
    outcome: FrontPage | None = None,
    *,
    shown_as: str = "",
    surroundings: Surroundings = Surroundings.RUNS,
) -> Path:
    """Write runs/<run>/index.html and report.html, a copy for mail that links to no other file.

    `shown_as` is the name on the page, if it differs from the folder name.
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
        # The page does not say when it was written, so that the same records produce the same file.
        state_of=f"{run.changed:%Y-%m-%d %H:%M} UTC",
    )
    write_and_note(run_folder, REPORT_NAME, mailed)
    text = page(
        "front_page.html.j2",
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
    current_scores = scores if has_current_scores(run) else ()
    comparison = [
        planned_row(row) for row in outcome.comparison or numbers_in_plan_and_results(run)
    ]
    return PageContent(
        run=run,
        changed=outcome.changed,
        summary=summarize(run, main_points, current_scores),
        tiles=[*_loss_tiles(outcome, main_points), *_score_tiles(current_scores)],
        facts=[*_facts(run), *outcome.facts],
        spark=sparkline([loss for _, loss in main_points], SPARK_WIDTH),
        charts=charts,
        chart_script=(TEMPLATES / "chart.js").read_text(encoding="utf-8"),
        logbook=write_logbook(run.folder),
        curve_around=partial(_curve_around, main_points),
        rows=[phase_row(run.folder, phase) for phase in run.phases],
        sample=outcome.sample,
        scores=scores,
        scores_remark="" if current_scores else RecordMessage.SCORES_NOT_CURRENT.fill(),
        worse=[score.worse_text() for score in worse(current_scores)],
        comparison=without_repeated_remarks(comparison),
    )


def _curve_around(points: Sequence[tuple[float, float]], iteration: float) -> Markup:
    """Draw the loss for 100 iterations before and after an iteration."""
    near = [point for point in points if abs(point[0] - iteration) <= 100]
    return loss_curve([("loss", near)])


def _written_at() -> str:
    return f"{utc_now()[:19].replace('T', ' ')} UTC"


def _answer(run: RunState) -> str:
    """Say in a sentence that the run succeeded, or what failed."""
    num_done = sum(phase.state == "done" for phase in run.phases)
    progress = RecordMessage.PHASES_DONE.fill(done=num_done, phases=len(run.phases))
    num_checks = 0
    failed_checks = []
    bad_ends = []
    for phase in run.phases:
        if phase.state not in ("done", NOT_RUN):
            bad_ends.append(f"{phase.phase}: {phase.state}")
        for check in phase.record.checks if phase.record else ():
            num_checks += 1
            if check.verdict != "pass":
                failed_checks.append(f"{phase.phase}: {check.name} ({check.verdict})")

    problems = "; ".join([*bad_ends, *failed_checks])
    if not problems:
        checks = counted(num_checks, "check")
        problems = RecordMessage.ALL_CHECKS_PASSED.fill(checks=checks)
    return RecordMessage.ANSWER.fill(progress=progress, problems=problems)


INDEX_SCORES = {"bits per byte": "bits per byte", "right (share)": "minimal pairs right"}
"""Measures to show in the list of runs, and the column title for each."""


def _loss_tiles(
    outcome: FrontPage, points: Sequence[tuple[float, float]]
) -> Sequence[tuple[str, str, str]]:
    """Return the tiles with plan and prices, or else a tile with the loss."""
    if not points:
        return ()
    return outcome.tiles or [("Loss", f"{points[-1][1]:.4g}", f"from {points[0][1]:.4g}")]


def _score_tiles(scores: Sequence[Score]) -> list[tuple[str, str, str]]:
    """Return a tile for each score that the list of runs also shows."""
    tiles = []
    for measure, name in INDEX_SCORES.items():
        of_measure = [score for score in scores if score.measure == measure]
        for score in of_measure:
            title = f"{name[0].upper()}{name[1:]}"
            if len(of_measure) > 1:
                title += f", {score.what}"
            if score.before is None:
                beside = "not measured before training"
            else:
                beside = f"{score.change}, from {show_score(score.before)}"

            if score.iteration is not None:
                beside += f"; iteration {score.iteration:,}"

            tiles.append((title, show_score(score.after), beside))

    return tiles


def _facts(run: RunState) -> list[tuple[str, str]]:
    records = [phase.record for phase in run.phases if phase.record is not None]
    if not records:
        return []
    # The facts describe the newest phase, but the start time comes from the first phase. The total
    # time is added below.
    since_first = replace(records[-1], started=min(record.started for record in records))
    facts = []
    for name, value in card_facts(since_first):
        if name != "Took":
            facts.append((name, value))

    total_seconds = sum(map(seconds_taken, records))
    if not total_seconds:
        return facts
    took = RecordMessage.NEWEST_EXECUTIONS.fill(duration=show_duration(total_seconds))
    earlier = _earlier_records(run)
    if earlier:
        if len(earlier) == 1:
            number = "one earlier"
        else:
            number = f"{len(earlier)} earlier ones"

        with_earlier_seconds = total_seconds + sum(map(seconds_taken, earlier))
        took += RecordMessage.EARLIER_EXECUTIONS.fill(
            duration=show_duration(with_earlier_seconds), number=number
        )

    return [*facts, (RecordMessage.ALL_PHASES_TOOK.fill(), took)]


def _earlier_records(run: RunState) -> list[PhaseRecord]:
    """Return the records from earlier executions that can be read."""
    records = []
    for phase in run.phases:
        for name in phase.earlier:
            if name.endswith(".json"):
                with contextlib.suppress(RecordError):
                    records.append(read_phase_record(run.folder / name))

    return records
