"""Makes the report on an executed notebook: a single HTML file, readable without network.

Code is folded, figures are embedded, and the result card at the top comes from the record. No
notebook output can make the browser load anything.
"""

import copy
import re
from collections.abc import Sequence
from datetime import datetime
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

from runbook.core.files import write_text
from runbook.core.units import show_duration
from runbook.plan_file.phase_names import PHASES
from runbook.records import notebook_file
from runbook.records.messages import RecordMessage
from runbook.records.pages.html_rewriting import WithoutEffects
from runbook.records.pages.page_parts import HELP_NAME as HELP
from runbook.records.pages.page_parts import TEMPLATES, as_json, head, links_for, page, result_rows
from runbook.records.phase_record import PhaseRecord, phase_record_path, read_phase_record
from runbook.records.run_state import KEY_NUMBERS, evidence_links
from runbook.records.session import MIME

# Size limit in bytes, which mail servers accept.
LARGEST_PAGE = 3_000_000
TEXT_LIMITS = (60_000, 6_000)
"""Maximum number of characters to keep from each output.

The second limit is used if the page would otherwise be too large.
"""
ERROR_TAG = "papermill-error-cell-tag"
ERROR_ANCHOR = "papermill-error-cell"
MOST_OPEN_RESULTS = 8
"""Results beyond this number are folded; the most important ones come first."""
_NEXT = re.compile(rf"\]\(({'|'.join(PHASES)})\.ipynb\)")
_FORMULA = re.compile(
    r"<code.*?</code>|\$\$(?P<block>[^$]+)\$\$|\$(?P<inline>\S(?:[^$\n]*\S)?)\$(?!\d)", re.DOTALL
)
"""Matches code, which is kept, and LaTeX formulas as the Jupyter Markdown renderer leaves them."""
_MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(\s*((?:https?:)?//[^)\s]+)[^)]*\)")


def write_html(run_folder: Path, phase: str) -> Path:
    """Write records/<phase>.html from the notebook and the record."""
    record = read_phase_record(phase_record_path(run_folder, phase))
    notebook = notebook_file.read_notebook(run_folder / "records" / f"{phase}.ipynb")
    path = run_folder / "records" / f"{phase}.html"
    links = [(name, f"../{target}") for name, target in evidence_links(run_folder, phase)]
    write_text(path, report(notebook, record, links))
    return path


def report(
    notebook: Any, record: PhaseRecord, further_links: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the whole page.

    Long text and large figures are shortened, with a note, so that the page stays below 3 MB.

    `further_links` are additional links for the card, as pairs of name and target.
    """
    text = ""
    for limit in TEXT_LIMITS:
        text = _export(_prepared(notebook, limit), record, further_links)
        if len(text.encode()) < LARGEST_PAGE:
            break

    return text


def _export(notebook: Any, record: PhaseRecord, further_links: Sequence[tuple[str, str]]) -> str:
    from nbconvert.exporters import html as nbconvert_html
    from traitlets.config import Config

    exporter_class: Any = nbconvert_html.HTMLExporter
    kinds = [
        "text/html",
        "image/svg+xml",
        "image/png",
        "image/jpeg",
        "text/markdown",
        "text/latex",
        "text/plain",
    ]
    config = Config({"NbConvertBase": {"display_data_priority": kinds}})
    exporter = exporter_class(
        config=config,
        template_name="record",
        extra_template_basedirs=[str(TEMPLATES)],
        embed_images=True,
    )
    headings: list[_Heading] = []
    exporter.register_filter("with_formulas", lambda html: _FORMULA.sub(_as_mathml, html))
    exporter.register_filter("without_effects", lambda html: _CellHtml(headings).rewrite(html))
    pieces = {
        "head": head(f"{record.run}: {record.phase}", code_colours()),
        "card": _card(notebook, record, further_links),
    }
    text, _ = exporter.from_notebook_node(notebook, resources={"runbook": pieces})
    return str(text).replace("<!-- contents -->", _contents(headings), 1)


def _card(notebook: Any, record: PhaseRecord, further_links: Sequence[tuple[str, str]]) -> str:
    results = result_rows(record)
    has_many_results = len(results) > MOST_OPEN_RESULTS
    if has_many_results:
        tiles = [row for row in results if row.key in KEY_NUMBERS]
    else:
        tiles = []

    links = [
        ("Campaign", "../index.html"),
        ("Notebook", f"{record.phase}.ipynb"),
        ("JSON record", f"{record.phase}.json"),
    ]
    links += [(name.capitalize(), target) for name, target in further_links]
    return page(
        "card.html.j2",
        record=record,
        facts=card_facts(record),
        helped=links_for(record.reason, "../../"),
        results=results,
        tiles=tiles,
        parameters=[(key, *_value_and_origin(entry)) for key, entry in record.parameters.items()],
        has_anchor=any(ERROR_ANCHOR in cell.source for cell in notebook.cells),
        links=links,
    )


def card_facts(record: PhaseRecord) -> list[tuple[str, str]]:
    """Return where, when and with which code version a notebook ran, as labelled values."""
    site, _ = _value_and_origin(record.parameters.get("site", ""))
    facts = [
        ("Site", site.strip('"')),
        ("Started", f"{record.started[:19].replace('T', ' ')} UTC"),
        ("Took", took_text(record)),
        ("Commit", record.commit),
    ]
    return [(name, value) for name, value in facts if value]


def seconds_taken(record: PhaseRecord) -> float:
    """Return how many seconds an execution took.

    Return 0 if it has not ended, or if the clock was set back, so that nobody knows.
    """
    return max(0.0, _seconds_between(record))


def took_text(record: PhaseRecord) -> str:
    """Return how long an execution took, as text; empty if it has not ended."""
    if record.is_open:
        return ""
    seconds = _seconds_between(record)
    if seconds < 0:
        return RecordMessage.CLOCK_SET_BACK.fill()
    return show_duration(seconds)


def _seconds_between(record: PhaseRecord) -> float:
    if record.is_open:
        return 0.0
    start = datetime.fromisoformat(record.started)
    end = datetime.fromisoformat(record.ended)
    return (end - start).total_seconds()


def _value_and_origin(entry: Any) -> tuple[str, str]:
    if isinstance(entry, dict) and "value" in entry:
        return as_json(entry["value"]), str(entry.get("origin", ""))
    return as_json(entry), ""


def _prepared(notebook: Any, limit: int) -> Any:
    """Copy the notebook for the report, and cut outputs to at most `limit` characters."""
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if _is_in_report(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _markdown_for_report(cell.source)
        for output in cell.get("outputs", []):
            _shorten(output, limit)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if MIME not in output.get("data", {})]

    notebook.metadata.pop("widgets", None)
    return notebook


def _is_in_report(cell: Any) -> bool:
    """Return whether a cell belongs in the report. Empty cells do not.

    Among the cells that papermill adds for an error, only the cell with the anchor is kept.
    """
    if ERROR_TAG in cell.metadata.get("tags", []) and ERROR_ANCHOR not in cell.source:
        return False
    return bool(cell.source.strip() or cell.get("outputs"))


def _markdown_for_report(source: str) -> str:
    """Return Markdown for the report, with links to other pages and without remote images."""
    # The help page is two folders above this page.
    source = source.replace("../docs/when-it-fails.md", f"../../{HELP}")
    source = _NEXT.sub(r"](\1.html)", source)
    return _MARKDOWN_IMAGE.sub(r"[\1](\2)", source)


def _as_mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    latex = unescape(match["block"] or match["inline"] or "")
    if not latex:
        return match[0]
    try:
        return convert(latex, display="block" if match["block"] else "inline")
    except Exception:  # noqa: BLE001 - a person's own formula that the library cannot read stays as written
        return match[0]


def _shorten(output: Any, limit: int) -> None:
    if output.output_type == "stream":
        output.text = _head_and_tail(output.text, limit)
    data = output.get("data", {})
    has_image = any(kind.startswith("image/") for kind in data)
    description = data.get("text/plain", "<")
    # Leave out text such as <Figure size 640x480 ...>
    if has_image and not description.startswith("<"):
        output.metadata["alt"] = description
    for kind in ("text/plain", "text/markdown", "text/latex"):
        if kind in data:
            data[kind] = _head_and_tail(data[kind], limit)

    for kind in ("text/html", "image/svg+xml", "image/png", "image/jpeg"):
        if kind in data and len(data[kind]) > 20 * limit:
            data.pop(kind)
            data["text/plain"] = RecordMessage.OUTPUT_TOO_LARGE.fill(kind=kind)


def _head_and_tail(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    num_lines = text.count("\n", half, -half)
    num_characters = len(text) - 2 * half
    note = RecordMessage.LINES_IN_NOTEBOOK.fill(lines=num_lines, characters=num_characters)
    return f"{text[:half]}\n{note}\n{text[-half:]}"


class _Heading(NamedTuple):
    tag: str
    name: str
    # The name gets a number if an earlier heading has the same one.
    anchor: str
    title: str


def _contents(headings: Sequence[_Heading]) -> str:
    if not headings:
        return ""
    lines = [
        '<nav class="contents" aria-label="Contents"><details open><summary>Contents</summary><ul>'
    ]
    for heading in headings:
        indent_rem = int(heading.tag[1]) - 1
        title = escape(heading.title.replace("¶", "").strip(), quote=False)
        link = f'<a href="#{escape(heading.anchor)}">{title}</a>'
        lines.append(f'<li style="margin-left:{indent_rem}rem">{link}</li>')

    lines.append("</ul></details></nav>")
    return "\n".join(lines)


class _CellHtml(WithoutEffects):
    """Removes active content from HTML, and collects its headings with unique anchors."""

    def __init__(self, headings: list[_Heading]) -> None:
        super().__init__()
        self._headings = headings
        self._name = self._anchor = self._title = ""

    def attribute(
        self,
        tag: str,
        name: str,
        value: str,
    ) -> str | None:
        if tag in ("h1", "h2", "h3") and name == "id":
            number = 1 + sum(heading.name == value for heading in self._headings)
            self._name = value
            self._anchor = value if number == 1 else f"{value}-{number}"
            self._title = ""
            return self._anchor

        if self._anchor and (name, value) == ("href", f"#{self._name}"):
            return f"#{self._anchor}"
        return super().attribute(tag, name, value)

    def text(self, text: str) -> str:
        self._title += text
        return text

    def handle_endtag(self, tag: str) -> None:
        if self._anchor and tag in ("h1", "h2", "h3"):
            self._headings.append(_Heading(tag, self._name, self._anchor, self._title))
            self._anchor = ""

        super().handle_endtag(tag)


def code_colours() -> str:
    """Return the style sheet for highlighted code in light and dark mode."""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light = HtmlFormatter(style="default", nobackground=True).get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark", nobackground=True).get_style_defs(".highlight")
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}"
