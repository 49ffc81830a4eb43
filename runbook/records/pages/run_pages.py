"""Pages over many records: the report of a run, the same as a single file, and the index of all runs.

A campaign shows the plan beside what came true where plan and results of a twin share a key, unless it is given a
`comparison` (rows with equal keys).
"""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from markupsafe import Markup, escape

from runbook.core.atomic_files import utc_now, write_text
from runbook.core.curves import Frame, Points, finite_points, thin
from runbook.core.errors import RecordError
from runbook.core.units import in_words, show_count, show_duration, show_quantity
from runbook.params.schema.run_file import PHASES
from runbook.records.manifest import note_files
from runbook.records.pages.html_rewriting import Rewriter
from runbook.records.pages.notebook_page import LARGEST_PAGE, card_facts, code_colours, seconds_taken
from runbook.records.pages.page_parts import head, is_number, links_for, page, result_rows, show_value, write_help
from runbook.records.run_state import KEY_NUMBERS, METRICS, PhaseState, RunState, evidence_links, read_run, read_runs
from runbook.records.twin import Twin, read_twin

WIDTH, HEIGHT = 720, 300
MOST_POINTS = 600  # points drawn; more would not be seen and make the page large
COLOURS = ("var(--good, #0072b2)", "var(--bad, #d55e00)", "var(--care, #b58900)", "currentColor")
"""Blue, orange, yellow and ink of the page, light or dark; the dashes tell them apart without any colour."""
DASHES = ("", "6 3", "2 2", "8 2 2 2")


def loss_curve(series: Sequence[tuple[str, Points]]) -> Markup:
    """Loss over iterations for each named series, with axes and their units; empty where nothing can be drawn."""
    drawn = [(name, thin(finite_points(points), MOST_POINTS)) for name, points in series]
    drawn = [(name, points) for name, points in drawn if len(points) > 1]
    if not drawn:
        return Markup("")
    xs, ys = zip(*[point for _, points in drawn for point in points], strict=True)
    margin = (max(ys) - min(ys)) * 0.05 or 0.1
    frame = Frame(52, 12, WIDTH - 64, HEIGHT - 56, min(xs), max(xs), min(ys) - margin, max(ys) + margin)
    lines = [_line(frame, points, index) + _label(frame, name, index) for index, (name, points) in enumerate(drawn)]
    ends = "; ".join(f"{name}: from {points[0][1]:.3f} to {points[-1][1]:.3f}" for name, points in drawn)
    start = Markup(
        '<svg role="img" viewBox="0 0 {} {}" width="100%" font-size="12" font-family="system-ui, sans-serif">'
        "<title>Loss over iterations. {}</title>"
    )
    return start.format(WIDTH, HEIGHT, ends) + _axes(frame) + Markup("").join(lines) + Markup("</svg>")


def spark(points: Points) -> Markup:
    """A curve without axes, to stand in a line of text."""
    points = thin(finite_points(points), MOST_POINTS)
    if len(points) < 2:
        return Markup("")
    xs, ys = zip(*points, strict=True)
    line = _line(Frame(2, 2, 136, 20, min(xs), max(xs), min(ys), max(ys)), points, 0)
    return Markup(
        '<svg role="img" viewBox="0 0 140 24" width="140" height="24" style="vertical-align:middle">'
        f"<title>Loss from {ys[0]:.3f} to {ys[-1]:.3f}</title>{line}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Round values inside a range.

    >>> ticks(0, 100), ticks(2.31, 10.9)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [4.0, 6.0, 8.0, 10.0])
    """
    if high <= low:
        return [low]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(frame: Frame) -> Markup:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    lines = []
    for value in ticks(frame.x0, frame.x1):
        x = frame.at(value, frame.y0).partition(",")[0]
        lines.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for value in ticks(frame.y0, frame.y1):
        y = frame.at(frame.x0, value).partition(",")[2]
        lines.append(f'<line x1="{frame.left}" x2="{right}" y1="{y}" y2="{y}" opacity="0.15"/>')
        lines.append(f'<text x="{frame.left - 6}" y="{y}" dy="4" text-anchor="end">{value:g}</text>')
    lines.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">iteration</text>')
    middle = frame.top + frame.height / 2
    lines.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">loss (nat / token)</text>')
    lines.append(f'<path d="M{frame.left} {frame.top}V{bottom}H{right}" fill="none"/>')
    plain = "".join(lines).replace("<text ", '<text stroke="none" fill="currentColor" ')
    return Markup(f'<g stroke="currentColor">{plain}</g>')


def _line(frame: Frame, points: Points, index: int) -> Markup:
    path = frame.path(points)
    return Markup(f'<polyline points="{path}" fill="none" stroke-width="1.8" {_stroke(index)}/>')


def _label(frame: Frame, name: str, index: int) -> Markup:
    x, y = frame.left + frame.width - 150, frame.top + 14 + 18 * index
    return Markup(
        f'<text x="{x + 34}" y="{y}" fill="currentColor">{escape(name)}</text>'
        f'<line x1="{x}" x2="{x + 28}" y1="{y - 4}" y2="{y - 4}" stroke-width="2" {_stroke(index)}/>'
    )


def _stroke(index: int) -> str:
    return f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-dasharray="{DASHES[index % len(DASHES)]}"'


LINK_WORDS = {"html": "report", "ipynb": "notebook", "json": "JSON"}
SHOWN_RESULTS = 6  # numbers of a phase shown in the campaign's table; the rest is in the phase's own report


class ShownValue(NamedTuple):
    """A cell of a table: what stands in it, and on which side."""

    shown: Markup
    is_number: bool


def write_campaign(
    run_folder: Path,
    *,
    sample: tuple[str, str] | None = None,
    comparison: Sequence[Mapping[str, object]] = (),
    shown_as: str = "",
) -> Path:
    """Write runs/<run>/index.html anew; `shown_as` names a copy that stands alone, without its neighbours."""
    run = read_run(run_folder)
    run = replace(run, name=shown_as) if shown_as else run
    losses = {phase: read_losses(run_folder / name) for phase, name in METRICS.items()}
    main = losses["04-training"] or losses["03-smoke-test"]
    shown = [
        {name: ShownValue(show_value(name, value), value is None or is_number(value)) for name, value in row.items()}
        for row in comparison
    ]
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
        sample=sample,
        comparison=shown or _comparison(run),
        written=utc_now(),
    )
    return _write_and_note(run_folder, "index.html", text)


def write_runs_index(runs_folder: Path) -> Path:
    """Write runs/index.html anew."""
    rows = [
        {
            "run": run,
            "numbers": [(run.numbers.get(name), show_value(name, run.numbers.get(name, ""))) for name in KEY_NUMBERS],
            "changed": run.changed.isoformat(timespec="seconds"),
            "target": f"{run.name}/index.html" if (run.folder / "index.html").exists() else f"{run.name}/",
            "done": sum(phase.state == "done" for phase in run.phases),
        }
        for run in read_runs(runs_folder)
    ]
    text = page(
        "runs.html.j2",
        head=head("Runs", script=True),
        rows=rows,
        names=[in_words(name) for name in KEY_NUMBERS],
        num_phases=6,
        written=utc_now(),
    )
    write_text(runs_folder / "index.html", text)
    write_help(runs_folder)
    return runs_folder / "index.html"


def read_losses(metrics: Path) -> list[tuple[float, float]]:
    """(iteration, loss) of a metrics file; empty where there is none or no step was finished yet."""
    from runbook.results.history import read_metrics

    with contextlib.suppress(RecordError):
        return list(read_metrics(metrics).losses)
    return []


def _facts(run: RunState) -> list[tuple[str, str]]:
    twins = [phase.twin for phase in run.phases if phase.twin is not None]
    first = [replace(twin, started=twins[0].started) for twin in twins[-1:]]
    facts = [fact for twin in first for fact in card_facts(twin) if fact[0] != "Took"] + _training_facts(twins)
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


def _training_facts(twins: Sequence[Twin]) -> list[tuple[str, str]]:
    """What was trained on what, how fast, and what the plan had said: of the last training that measured its speed."""
    for twin in reversed(twins):
        match twin.results:
            case {"tokens_per_second": float(speed), "parameters": int(size), "world_size": int(devices)}:
                planned = twin.plan.get("tokens_per_second")
                beside = f", {speed / planned:.0%} of the plan" if is_number(planned) and planned else ""
                model = f"{show_count(size)} parameters on {devices} device{'s' if devices > 1 else ''}"
                speed_words = f"{show_quantity('', speed)} tokens/s{beside}"
                return [("Model", model), ("Speed", speed_words)]
    return []


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


def _comparison(run: RunState) -> list[dict[str, ShownValue]]:
    return [
        {
            "Phase": ShownValue(escape(phase.phase), False),
            "What": ShownValue(escape(row.name), False),
            "Planned": ShownValue(row.planned, row.is_number),
            "Actual": ShownValue(row.value, row.is_number),
            "Actual / planned": ShownValue(escape(row.ratio), row.is_number),
        }
        for phase in run.phases
        if phase.twin is not None
        for row in result_rows(phase.twin)
        if row.planned
    ]


REPORT_NAME = "report.html"


def write_single_file(run_folder: Path) -> Path:
    """Write report.html anew; a notebook that would make it too large for a mail keeps only its card."""
    pages = {phase: path for phase in PHASES if (path := run_folder / "records" / f"{phase}.html").exists()}
    campaign = _Campaign(pages).rewrite((run_folder / "index.html").read_text(encoding="utf-8"))
    sections, size = [], len(campaign)
    for phase, path in pages.items():
        text, note = path.read_text(encoding="utf-8"), ""
        if size + len(text.encode()) > LARGEST_PAGE - 100_000:
            link = f'<a href="records/{phase}.html">its own report</a>'
            text = text.partition("</header>")[0] + "</header>"
            note = f'<p class="soft">For size, the cells are only in {link}.</p>'
        size += len(text.encode())
        body = _Part(phase).rewrite(text) + note
        sections.append(f'<section id="{phase}-report" class="part">\n{body}\n</section>')
    start = head(f"{run_folder.name}: whole report", code_colours())
    body = campaign.replace("</main>", "\n".join([*sections, "</main>"]), 1)
    text = f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{start}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
    return _write_and_note(run_folder, REPORT_NAME, text)


def _write_and_note(run_folder: Path, name: str, text: str) -> Path:
    write_text(run_folder / name, text)
    note_files(run_folder, [run_folder / name])
    return run_folder / name


class _Body(Rewriter):
    """What a page of ours has in its body, without the elements `left_out` (tag and class)."""

    left_out = ""

    def renamed(self, tag: str) -> str | None:
        return tag if tag not in ("html", "body") else None

    def skips(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        return tag == "head" or f"{tag}.{attributes.get('class')}" == self.left_out


class _Campaign(_Body):
    """The campaign's page, whose links to reports lead to their sections."""

    left_out = "footer.soft"
    """The moment of writing: without it the file is the same when it is made again from the same pages."""

    def __init__(self, phases: Iterable[str]) -> None:
        super().__init__()
        self._targets = {f"records/{phase}.html": f"#{phase}-report" for phase in phases}
        self._targets["../index.html"] = "#record"

    def attribute(self, tag: str, name: str, value: str) -> str | None:
        return self._targets.get(value, value) if name == "href" else value


class _Part(_Body):
    """A notebook's report as a section: its anchors are its own, its links lead inside or to the run's folder."""

    left_out = "nav.contents"

    def __init__(self, phase: str) -> None:
        super().__init__()
        self._phase = phase

    def renamed(self, tag: str) -> str | None:
        # One main and one header of the page: those of a part become plain blocks, their headings one level deeper.
        deeper = {"main": "div", "header": "div", "h1": "h2", "h2": "h3", "h3": "h4", "h4": "h5"}
        return deeper.get(tag) or super().renamed(tag)

    def attribute(self, tag: str, name: str, value: str) -> str | None:
        if name in ("id", "for"):
            return f"{self._phase}--{value}"
        if name != "href":
            return value
        if value.startswith("#"):
            return f"#{self._phase}--{value[1:]}"
        if value == "../index.html":
            return "#record"
        own = value in [f"{self._phase}.{suffix}" for suffix in LINK_WORDS]
        return f"records/{value}" if own else value.removeprefix("../")
