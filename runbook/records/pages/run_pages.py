"""Pages over many records: the report of a run, the same as a single file, and the index of all runs.

A campaign shows the plan beside what came true where plan and results of a twin share a key, unless it is given an
`FrontPage` with more.
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from markupsafe import Markup

from runbook.core.checks import counted
from runbook.core.curves import MOST_POINTS, loss_curve, sparkline, thin
from runbook.core.errors import RecordError
from runbook.core.files import utc_now, write_text
from runbook.core.table import Row
from runbook.core.units import (
    four_digits,
    in_words,
    show_change,
    show_count,
    show_duration,
    unit_of,
)
from runbook.params.schema.run_file import PHASES
from runbook.planning import FULL
from runbook.planning.plan import parse_plan
from runbook.records.logbook import write_logbook
from runbook.records.manifest import note_files
from runbook.records.pages.html_rewriting import Rewriter
from runbook.records.pages.notebook_page import (
    LARGEST_PAGE,
    card_facts,
    code_colours,
    seconds_taken,
)
from runbook.records.pages.page_parts import (
    TEMPLATES,
    head,
    is_number,
    links_for,
    page,
    result_rows,
    show_value,
    write_help,
)
from runbook.records.run_state import (
    KEY_NUMBERS,
    METRICS,
    PhaseState,
    RunState,
    evidence_links,
    read_run,
    read_runs,
)
from runbook.records.twin import read_twin
from runbook.results.scores import Score, as_scores, read_main_scores, show_score, worse

LINK_WORDS = {"html": "report", "ipynb": "notebook", "json": "JSON"}
SHOWN_RESULTS = (
    6  # numbers of a phase shown in the campaign's table; the rest is in the phase's own report
)


SPARK_WIDTH = 20
MOST_OTHER_RUNS = 5
LARGEST_METRICS = (
    64 * 2**20
)  # bytes; a longer history is not read only to be laid over another's curve


class FrontPage(NamedTuple):
    """What the first page tells besides the records: made by whoever knows plan and prices."""

    sample: tuple[str, str] | None = None  # text before and after training
    comparison: Sequence[Row] = ()  # phase, what, planned, actual, ratio, remark
    tiles: Sequence[tuple[str, str, str]] = ()  # name, value, what stands beside it
    scores: Sequence[Row] = ()  # what, measure, samples, before and after the training


class Chart(NamedTuple):
    """The losses of one training: a picture, and the same as data for the page's script."""

    title: str
    points: list[tuple[float, float]]
    picture: Markup
    content: Markup


class Curve(NamedTuple):
    """One training's losses as (iteration, tokens, loss), the same of evaluations, and where it was restarted."""

    name: str
    model: str  # curves of another model or batch share no axis of iterations
    points: Sequence[tuple[float, int, float]]
    validation: Sequence[tuple[int, int, float]]
    restarts: Sequence[tuple[int, int, float]]
    untrained: float  # loss of an untrained model, ln of its vocabulary; 0 where there is no plan


def write_campaign(
    run_folder: Path, outcome: FrontPage | None = None, *, shown_as: str = ""
) -> Path:
    """Write runs/<run>/index.html anew; `shown_as` names a copy that stands alone, without its neighbours."""
    run = read_run(run_folder)
    outcome = outcome or FrontPage()
    run = replace(run, name=shown_as) if shown_as else run
    charts = loss_charts(run_folder, with_others=not shown_as)
    main = charts[0].points if charts else []
    scores = as_scores(outcome.scores)
    text = page(
        "campaign.html.j2",
        head=head(f"{run.name}: report", script=bool(charts)),
        run=run,
        answer=_answer(run),
        is_alone=bool(shown_as),
        tiles=[*_loss_tiles(outcome, main), *_score_tiles(scores)],
        facts=_facts(run),
        spark=sparkline([loss for _, loss in main], SPARK_WIDTH),
        charts=charts,
        chart_script=(TEMPLATES / "chart.js").read_text(encoding="utf-8"),
        logbook=write_logbook(run_folder),
        curve_around=lambda place: loss_curve(
            [("loss", [point for point in main if abs(point[0] - place) <= 100])]
        ),
        rows=[_phase_row(run_folder, phase) for phase in run.phases],
        sample=outcome.sample,
        scores=scores,
        worse=[score.worse_text() for score in worse(scores)],
        comparison=[_planned_row(row) for row in outcome.comparison or _comparison(run)],
        written=f"{utc_now()[:19].replace('T', ' ')} UTC",
    )
    return _write_and_note(run_folder, "index.html", text)


def loss_charts(run_folder: Path, *, with_others: bool = True) -> list[Chart]:
    """One for each training, the main one first and laid over other runs; two models never share an axis."""
    charts: list[Chart] = []
    for phase, metrics in reversed(METRICS.items()):
        if (own := read_curve(run_folder, phase, "this run")) is None:
            continue
        others = [
            path.parent
            for path in run_folder.parent.glob(f"*/{metrics}")
            if path.parent != run_folder
        ]
        others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        others = others[:MOST_OTHER_RUNS] if with_others and phase == FULL else []
        curves = [own, *filter(None, (read_curve(folder, phase, folder.name) for folder in others))]
        lines = {"training loss": own.points, "validation loss": own.validation}
        by_iteration = [(name, [(x, y) for x, _, y in points]) for name, points in lines.items()]
        picture = loss_curve(by_iteration, own.untrained, [x for x, _, _ in own.restarts])
        content = json.dumps(
            {"series": [curve._asdict() for curve in curves]}, separators=(",", ":")
        )
        title = f"Loss of {phase}" + (f", {own.model}" if own.model else "")
        if picture:
            charts.append(
                Chart(title, by_iteration[0][1], picture, Markup(content.replace("<", "\\u003c")))
            )
    return charts


def read_curve(run_folder: Path, phase: str, name: str) -> Curve | None:
    """The losses of a run's training; None where there are not two, or the file is too long to be read for this."""
    from runbook.results.history import read_metrics, read_validation

    path = run_folder / METRICS[phase]
    if not path.exists() or path.stat().st_size > LARGEST_METRICS:
        return None
    model = ""
    untrained = 0.0
    with contextlib.suppress(RecordError, FileNotFoundError, KeyError):
        plan_file = run_folder / "plan.json"
        spec = parse_plan(plan_file.read_text(encoding="utf-8"), plan_file).phases[phase]
        model = (
            f"{show_count(spec.model.parameters)} parameters, {spec.batch.global_} sequences a step"
        )
        untrained = round(math.log(spec.model.vocabulary), 4)
    try:
        history = read_metrics(path)
    except RecordError:
        return None
    tokens = {step.iteration: step.consumed_tokens for step in history.steps}
    points = [(x, tokens[int(x)], four_digits(y)) for x, y in thin(history.losses, MOST_POINTS)]
    evaluated = read_validation(path.with_name("validation.jsonl"))
    validation = [
        (one.iteration, tokens.get(one.iteration, 0), four_digits(one.loss)) for one in evaluated
    ]
    restarts = [(first, tokens.get(first, 0), 0.0) for first in history.restarts]
    return Curve(name, model, points, validation, restarts, untrained) if len(points) > 1 else None


def _answer(run: RunState) -> str:
    """One sentence: whether it worked, and what did not."""
    done = f"{sum(phase.state == 'done' for phase in run.phases)} of {len(run.phases)} phases done"
    checks = [
        (phase.phase, check) for phase in run.phases if phase.twin for check in phase.twin.checks
    ]
    bad = [
        f"{phase}: {check.name} ({check.verdict})"
        for phase, check in checks
        if check.verdict != "pass"
    ]
    ended = [
        f"{phase.phase}: {phase.state}"
        for phase in run.phases
        if phase.state not in ("done", "not run")
    ]
    rest = "; ".join([*ended, *bad]) or f"{counted(len(checks), 'check')}, all passed"
    return f"{done}; {rest}"


def _planned_row(row: Row) -> Row:
    """A number of the plan beside what came true; the bar's width is 0 where it came out as planned."""
    what = str(row["what"])
    ratio = row.get("ratio") or 0.0
    place = max(-3.0, min(3.0, math.log2(ratio))) / 3 if ratio > 0 else 0.0
    shown = {side: show_value(what, row[side], unit_of(what)) for side in ("planned", "actual")}
    words = {
        "name": in_words(what).partition(" (")[0],
        "times": show_change(ratio),
        "remark": row.get("remark") or "",
    }
    width = round(50 * abs(place), 1) if abs(ratio - 1) > 0.005 else 0.0
    return {"phase": row["phase"], "ratio": ratio, "width": width, **words, **shown}


def write_runs_index(runs_folder: Path) -> Path:
    """Write runs/index.html anew."""
    rows = [
        {
            "run": run,
            "numbers": [
                (run.numbers.get(name), show_value(name, run.numbers.get(name, "")))
                for name in KEY_NUMBERS
            ],
            "changed": run.changed.isoformat(timespec="seconds"),
            "scores": _scores_of_run(run.folder),
            "target": f"{run.name}/index.html"
            if (run.folder / "index.html").exists()
            else f"{run.name}/",
            "done": sum(phase.state == "done" for phase in run.phases),
        }
        for run in read_runs(runs_folder)
    ]
    text = page(
        "runs.html.j2",
        head=head("Runs", script=True),
        rows=rows,
        names=[*(in_words(name) for name in KEY_NUMBERS), *INDEX_SCORES.values()],
        num_phases=len(PHASES),
        written=f"{utc_now()[:19].replace('T', ' ')} UTC",
    )
    write_text(runs_folder / "index.html", text)
    write_help(runs_folder)
    return runs_folder / "index.html"


INDEX_SCORES = {"bits per byte": "bits per byte", "right (share)": "minimal pairs right"}
"""Measures that a list of runs shows, and what its columns are called."""


def _loss_tiles(
    outcome: FrontPage, points: Sequence[tuple[float, float]]
) -> Sequence[tuple[str, str, str]]:
    """The tiles of whoever knows plan and prices, else the loss alone; none without losses."""
    if not points:
        return ()
    return outcome.tiles or [("Loss", f"{points[-1][1]:.4g}", f"from {points[0][1]:.4g}")]


def _score_tiles(scores: Sequence[Score]) -> list[tuple[str, str, str]]:
    """A tile for each score that a list of runs shows too."""
    tiles = []
    for measure, name in INDEX_SCORES.items():
        of_measure = [score for score in scores if score.measure == measure]
        for score in of_measure:
            text = f", {score.what}" if len(of_measure) > 1 else ""
            before = f"{score.change}, from {show_score(score.before)}"
            beside = "not measured before the training" if score.before is None else before
            tiles.append((f"{name[0].upper()}{name[1:]}{text}", show_score(score.after), beside))
    return tiles


def _scores_of_run(run_folder: Path) -> list[list[Score]]:
    """The scores of each column of the index; a run of several texts has several in one."""
    try:
        scores = read_main_scores(run_folder)
    except (KeyError, TypeError):  # a file that somebody else wrote or changed
        scores = ()
    return [[score for score in scores if score.measure == measure] for measure in INDEX_SCORES]


def _facts(run: RunState) -> list[tuple[str, str]]:
    twins = [phase.twin for phase in run.phases if phase.twin is not None]
    started = min((twin.started for twin in twins), default="")
    facts = [
        fact
        for twin in twins[-1:]
        for fact in card_facts(replace(twin, started=started))
        if fact[0] != "Took"
    ]
    total = sum(map(seconds_taken, twins))
    earlier = []
    for name in (name for phase in run.phases for name in phase.earlier if name.endswith(".json")):
        with contextlib.suppress(RecordError):
            earlier.append(read_twin(run.folder / name))
    took = f"{show_duration(total)}, the newest execution of each"
    if earlier:
        number = "one earlier" if len(earlier) == 1 else f"{len(earlier)} earlier ones"
        took += f"; {show_duration(total + sum(map(seconds_taken, earlier)))} with {number}"
    return [*facts, ("All phases took", took)] if total else facts


def _phase_row(run_folder: Path, phase: PhaseState) -> SimpleNamespace:
    twin = phase.twin
    reports = [(LINK_WORDS[name.rpartition(".")[2]], name) for name in phase.files]
    reason = phase.problem or (twin.reason if twin else "")
    results = [row for row in (result_rows(twin) if twin else []) if row.is_number]
    results.sort(key=lambda row: row.key not in KEY_NUMBERS)  # first what a list of runs shows too
    return SimpleNamespace(
        phase=phase.phase,
        state=phase.state,
        verdict=twin.verdict if twin else "",
        reason="" if phase.state == "running" else reason,
        helped=links_for(reason, "../"),
        took=show_duration(seconds_taken(twin)) if twin and twin.ended else "",
        results=results[:SHOWN_RESULTS],
        links=[*reports, *evidence_links(run_folder, phase.phase)],
        earlier=phase.earlier,
    )


def _comparison(run: RunState) -> list[Row]:
    """Where nothing better is known: what plan and results of a twin both hold."""
    return [
        {
            "phase": one.phase,
            "what": key,
            "planned": one.twin.plan[key],
            "actual": value,
            "ratio": value / planned,
        }
        for one in run.phases
        if one.twin is not None
        for key, value in one.twin.results.items()
        if is_number(value) and is_number(planned := one.twin.plan.get(key)) and planned
    ]


REPORT_NAME = "report.html"


def write_single_file(run_folder: Path) -> Path:
    """Write report.html anew; a notebook that would make it too large for a mail keeps only its card."""
    pages = {
        phase: path
        for phase in PHASES
        if (path := run_folder / "records" / f"{phase}.html").exists()
    }
    sections_of = {f"records/{phase}.html": f"#{phase}-report" for phase in pages} | {
        "../index.html": "#record"
    }
    # Without the moment of writing the file is the same when it is made again from the same pages.
    body = _Body("footer.soft", lambda value: sections_of.get(value, value))
    campaign = body.rewrite((run_folder / "index.html").read_text(encoding="utf-8"))
    sections = []
    size = len(campaign)
    for phase, path in pages.items():
        text = path.read_text(encoding="utf-8")
        note = ""
        if size + len(text.encode()) > LARGEST_PAGE - 100_000:
            link = f'<a href="records/{phase}.html">its own report</a>'
            text = text.partition("</header>")[0] + "</header>"
            note = f'<p class="soft">For size, the cells are only in {link}.</p>'
        size += len(text.encode())
        part = (
            _Body("nav.contents", partial(_link_of_part, phase), f"{phase}--", _DEEPER).rewrite(
                text
            )
            + note
        )
        sections.append(f'<section id="{phase}-report" class="part">\n{part}\n</section>')
    start = head(f"{run_folder.name}: whole report", code_colours(), script="<script" in campaign)
    whole = campaign.replace("</main>", "\n".join([*sections, "</main>"]), 1)
    text = f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{start}\n</head>\n<body>\n{whole}\n</body>\n</html>\n'
    return _write_and_note(run_folder, REPORT_NAME, text)


def _write_and_note(run_folder: Path, name: str, text: str) -> Path:
    write_text(run_folder / name, text)
    note_files(run_folder, [run_folder / name])
    return run_folder / name


class _Body(Rewriter):
    """The body of a page of ours, without the elements `left_out` (tag and class); its links lead where `link` says."""

    def __init__(
        self,
        left_out: str,
        link: Callable[[str], str],
        prefix: str = "",
        tags: Mapping[str, str] = {},
    ) -> None:
        super().__init__()
        self._left_out = left_out
        self._link = link
        self._prefix = prefix
        self._tags = {"html": None, "body": None, **tags}

    def renamed(self, tag: str) -> str | None:
        return self._tags.get(tag, tag)

    def skips(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        return tag == "head" or f"{tag}.{attributes.get('class')}" == self._left_out

    def attribute(self, tag: str, name: str, value: str) -> str | None:
        if name in ("id", "for"):
            return self._prefix + value
        return self._link(value) if name == "href" else value


_DEEPER = {"main": "div", "header": "div", "h1": "h2", "h2": "h3", "h3": "h4", "h4": "h5"}
"""One main and one header of the page: those of a part become plain blocks, their headings one level deeper."""


def _link_of_part(phase: str, value: str) -> str:
    """Where a link of a notebook's report leads in the single file: inside, or to the run's folder."""
    if value.startswith("#"):
        return f"#{phase}--{value[1:]}"
    if value == "../index.html":
        return "#record"
    if value.removesuffix(".html") in PHASES:
        return f"#{value.removesuffix('.html')}-report"
    own = value in [f"{phase}.{suffix}" for suffix in LINK_WORDS]
    return f"records/{value}" if own else value.removeprefix("../")
