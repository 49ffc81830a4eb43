"""The report of one executed notebook: a single HTML file that needs no network.

    write_html(run_folder, phase) -> Path       from records/<phase>.ipynb and its twin
    report(notebook, twin) -> str               the page itself
    said_by_html(path) -> dict                  run, phase, state, verdict, execution as the page says them

Code is folded, figures are inside the page, the result card on top is made from the twin, and nothing the notebook put
out can make the browser fetch anything.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from runbook.records import ipynb
from runbook.records.evidence import evidence
from runbook.records.files import write_text
from runbook.records.help import NAME as HELP
from runbook.records.help import links_for
from runbook.records.pages import TEMPLATES, as_json, head, page, result_rows
from runbook.records.session import MIME
from runbook.records.twin import Twin, read_twin, twin_path
from runbook.units import show_duration

LARGEST_PAGE = 3_000_000
"""Bytes; a mail server still takes it."""
TEXT_LIMITS = (60_000, 6_000)
"""Characters of one output that are kept; the second where the page would else be too large."""
ERROR_TAG = "papermill-error-cell-tag"
ERROR_ANCHOR = "papermill-error-cell"
_FETCHING = re.compile(r"<script\b.*?</script\s*>|<link\b[^>]*>|<iframe\b.*?</iframe\s*>|@import[^;]*;", re.S | re.I)
_REMOTE = re.compile(r"""(?<=\s)(?:src|srcset|poster|data)\s*=\s*(["'])\s*(?:https?:)?//.*?\1""", re.S | re.I)
_REMOTE_STYLE = re.compile(r"""url\(\s*["']?\s*(?:https?:)?//[^)]*\)""", re.I)
_MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(\s*((?:https?:)?//[^)\s]+)[^)]*\)")
_HEADING = re.compile(r'<h([1-3]) id="([^"]*)">(.*?)</h\1>', re.S)


def write_html(run_folder: Path, phase: str) -> Path:
    """Write records/<phase>.html anew from the notebook and the twin beside it."""
    twin = read_twin(twin_path(run_folder, phase))
    notebook = ipynb.read(run_folder / "records" / f"{phase}.ipynb")
    path = run_folder / "records" / f"{phase}.html"
    more = [(name, f"../{target}") for name, target in evidence(run_folder, phase)]
    write_text(path, report(notebook, twin, more))
    return path


def report(notebook: Any, twin: Twin, more: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page; long text and large figures are cut short, with a word about it, rather than exceed 3 MB.

    `more` are further links for the card: names and where they lead.
    """
    text = ""
    for limit in TEXT_LIMITS:
        text = _export(_prepared(notebook, limit), twin, more)
        if len(text.encode()) < LARGEST_PAGE:
            break
    return text


def said_by_html(path: Path) -> dict[str, str]:
    """What the card of a report says about its record; empty where the file is no report."""
    reader = _CardReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.told


def _export(notebook: Any, twin: Twin, more: Sequence[tuple[str, str]]) -> str:
    from nbconvert.exporters import html as nbconvert_html
    from traitlets.config import Config

    exporter_class: Any = nbconvert_html.HTMLExporter
    config = Config()
    config.NbConvertBase.display_data_priority = [
        "text/html",
        "image/svg+xml",
        "image/png",
        "image/jpeg",
        "text/markdown",
        "text/latex",
        "text/plain",
    ]
    exporter = exporter_class(
        config=config, template_name="record", extra_template_basedirs=[str(TEMPLATES)], embed_images=True
    )
    pieces = {"head": head(f"{twin.run}: {twin.phase}", code_colours()), "card": _card(notebook, twin, more)}
    text, _ = exporter.from_notebook_node(notebook, resources={"runbook": pieces})
    return _with_contents(text)


def _card(notebook: Any, twin: Twin, more: Sequence[tuple[str, str]]) -> str:
    parameters = twin.parameters
    return page(
        "card.html.j2",
        twin=twin,
        facts=card_facts(twin),
        helped=links_for(twin.reason, "../../"),
        results=result_rows(twin),
        parameters=[(key, *_value_and_origin(entry)) for key, entry in parameters.items()],
        has_anchor=any(ERROR_ANCHOR in cell.source for cell in notebook.cells),
        links=[
            ("Campaign", "../index.html"),
            ("Notebook", f"{twin.phase}.ipynb"),
            ("JSON twin", f"{twin.phase}.json"),
            *[(name.capitalize(), target) for name, target in more],
        ],
    )


def card_facts(twin: Twin) -> list[tuple[str, str]]:
    """Where, when and by which code a notebook was executed."""
    site, _ = _value_and_origin(twin.parameters.get("site", ""))
    facts = [
        ("Site", site.strip('"')),
        ("Started", _moment(twin.started)),
        ("Took", show_duration(seconds_taken(twin)) if twin.ended else ""),
        ("Commit", twin.commit),
    ]
    return [(name, value) for name, value in facts if value]


def seconds_taken(twin: Twin) -> float:
    """From start to end; 0 while it has not ended."""
    from datetime import datetime

    if twin.is_open:
        return 0.0
    return (datetime.fromisoformat(twin.ended) - datetime.fromisoformat(twin.started)).total_seconds()


def _moment(moment: str) -> str:
    return moment[:19].replace("T", " ") + " UTC"


def _value_and_origin(entry: Any) -> tuple[str, str]:
    if isinstance(entry, dict) and "value" in entry:
        return as_json(entry["value"]), str(entry.get("origin", ""))
    return as_json(entry), ""


def _prepared(notebook: Any, limit: int) -> Any:
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if ERROR_TAG not in _tags(cell) or ERROR_ANCHOR in cell.source]
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip() or cell.get("outputs")]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            source = cell.source.replace("../docs/when-it-fails.md", f"../../{HELP}")  # the page beside the runs
            cell.source = _MARKDOWN_IMAGE.sub(r"[\1](\2)", _quiet(source))
        for output in cell.get("outputs", []):
            _shorten(output, limit)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if MIME not in output.get("data", {})]
    notebook.metadata.pop("widgets", None)
    return notebook


def _tags(cell: Any) -> list[str]:
    tags: list[str] = cell.metadata.get("tags", [])
    return tags


def _shorten(output: Any, limit: int) -> None:
    if output.output_type == "stream":
        output.text = _head_and_tail(output.text, limit)
    data = output.get("data", {})
    if any(kind.startswith("image/") for kind in data) and not data.get("text/plain", "<").startswith("<"):
        output.metadata["alt"] = data["text/plain"]
    for kind in ("text/plain", "text/markdown", "text/latex"):
        if kind in data:
            data[kind] = _head_and_tail(data[kind], limit)
    for kind in ("text/html", "image/svg+xml", "image/png", "image/jpeg"):
        if kind in data and len(data[kind]) > 20 * limit:
            data.pop(kind)
            data["text/plain"] = f"({kind} of this output is too large for the report; it is in the notebook)"
    if "text/html" in data:
        data["text/html"] = _quiet(data["text/html"])


def _head_and_tail(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = text[half:-half]
    lines = left_out.count("\n")
    return f"{text[:half]}\n... {lines:,} lines ({len(left_out):,} characters) are in the notebook ...\n{text[-half:]}"


def _quiet(html: str) -> str:
    html = _REMOTE_STYLE.sub("none", _REMOTE.sub("", _FETCHING.sub("", html)))
    # What can be scrolled must be reached by keyboard; tables of an earlier version could not be.
    return html.replace('<div style="overflow-x:auto">', '<div style="overflow-x:auto" tabindex="0">')


def code_colours() -> str:
    """The style of coloured code, light and dark."""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light = HtmlFormatter(style="default", nobackground=True).get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark", nobackground=True).get_style_defs(".highlight")
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}"


def _with_contents(text: str) -> str:
    used: dict[str, int] = {}
    entries: list[tuple[int, str, str]] = []

    def unique(match: re.Match[str]) -> str:
        level, name, inside = int(match[1]), match[2], match[3]
        used[name] = used.get(name, 0) + 1
        own = name if used[name] == 1 else f"{name}-{used[name]}"
        words = re.sub(r"<[^>]+>", "", inside).replace("¶", "").strip()
        entries.append((level, own, words))
        return f'<h{level} id="{own}">{inside.replace(f"#{name}", f"#{own}")}</h{level}>'

    text = _HEADING.sub(unique, text)
    items = "\n".join(
        f'<li style="margin-left:{level - 1}rem"><a href="#{name}">{words}</a></li>' for level, name, words in entries
    )
    contents = (
        '<nav class="contents" aria-label="Contents"><details open><summary>Contents</summary>'
        f"<ul>\n{items}\n</ul></details></nav>"
    )
    return text.replace("<!-- contents -->", contents if entries else "")


class _CardReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id") == "record" and not self.told:
            self.told = {name[5:]: value or "" for name, value in values.items() if name.startswith("data-")}
