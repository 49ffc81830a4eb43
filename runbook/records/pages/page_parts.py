"""Makes what HTML pages share: templates, displayed values, and the page about failures."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from runbook.core.files import write_text
from runbook.core.table import html_with_code
from runbook.core.units import in_words, show_quantity
from runbook.params.secrets import mask
from runbook.records.manifest import note_files
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import PhaseRecord
from runbook.results.failures.finder import anchor, examples_of, find_failures
from runbook.results.failures.kinds import KINDS, TITLE
from runbook.results.scores import show_score

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ResultRow:
    """A result from a record, and the value planned for the same key."""

    key: str
    name: str  # The key as readable text
    # The value as shown in the JSON record
    exact: str
    value: Markup
    planned: Markup
    # Actual value divided by the planned value; empty if either is missing or not a number
    ratio: str
    # Numbers are aligned to the right, text to the left.
    is_number: bool


@cache
def environment() -> Environment:
    """Return the template environment. A missing value raises an error instead of leaving a gap."""
    templates = Environment(
        loader=FileSystemLoader([TEMPLATES, TEMPLATES / "record"]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    templates.globals["RecordMessage"] = RecordMessage
    templates.filters["score"] = show_score
    templates.filters["with_code"] = lambda text: Markup(html_with_code(str(text)))
    templates.filters["with_commands"] = with_commands
    return templates


def with_commands(text: str) -> Markup:
    """Return a sentence as HTML in which commands in backquotes are marked as code.

    >>> with_commands("Then `runbook run a<b`.")
    Markup('Then <code>runbook run a&lt;b</code>.')
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def page(template: str, **values: Any) -> str:
    """Render a page or a part of it. Anything that looks like a secret is masked."""
    return mask(environment().get_template(template).render(**values))


class Scripts(StrEnum):
    """The scripts that a page may run, as written in its content security policy."""

    NONE = ""
    INSIDE = "'unsafe-inline'"
    """Only scripts inside the page."""
    NEIGHBOURS = "'unsafe-inline' 'self' file:"
    """Scripts in files next to the page are also allowed, because the page of all runs uses them to
    follow a training run.
    """


def scripts_inside(is_needed: bool) -> Scripts:
    """Return which scripts a page may run: those inside it if it has any, or else none."""
    return Scripts.INSIDE if is_needed else Scripts.NONE


def head(title: str, extra_style: str = "", scripts: Scripts = Scripts.NONE) -> str:
    """Return what to put into <head> on a page.

    The page contains everything it needs, and forbids the browser from loading anything else.
    """
    module: Any = environment().get_template("parts.j2").module
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return str(module.head(title, Markup(style + extra_style), Markup(scripts)))


def result_rows(record: PhaseRecord) -> list[ResultRow]:
    """Return the results in the order in which they were recorded."""
    rows = []
    for key, value in record.results.items():
        planned = record.plan.get(key)
        if is_number(value) and is_number(planned) and planned:
            ratio = f"{value / planned:.3g}"
        else:
            ratio = ""

        shown_values = show_value(key, value), show_value(key, planned)
        rows.append(
            ResultRow(
                key,
                in_words(key),
                as_json(value),
                *shown_values,
                ratio,
                is_number(value),
            )
        )

    return rows


def as_json(value: Any) -> str:
    """Return a value as it is written in the record."""
    return json.dumps(value, ensure_ascii=False)


def show_value(name: str, value: Any, unit: str = "") -> Markup:
    """Return a value formatted for display.

    A number is formatted by `show_quantity`, and its tooltip shows all digits.

    Digits are grouped only visually, so that a number is copied without separators.

    >>> show_value("first_loss", 10.825839875788878)
    Markup('<span title="10.825839875788878">10.83</span>')
    """
    if is_number(value):
        first, *groups = f"{show_quantity(name, value)} {unit}".rstrip().split(",")
        grouped = Markup(first) + Markup("").join(
            Markup('<span class="g">{}</span>').format(group) for group in groups
        )
        exact = as_json(value)
        if grouped.striptags() == exact:
            return grouped
        return Markup('<span title="{}">{}</span>').format(exact, grouped)

    if value is None or isinstance(value, str):
        return escape(value or "")
    text = Markup("<code>{}</code>").format(as_json(value))
    is_long = len(text) > 200
    if is_long:
        return Markup("<details><summary>{} entries</summary>{}</details>").format(len(value), text)
    return text


def is_number(value: Any) -> bool:
    """Return whether a value is a count or a measurement."""
    return isinstance(value, int | float) and not isinstance(value, bool)


HELP_NAME = "when-it-fails.html"


def write_help(runs_folder: Path) -> Path:
    """Write the page about known failures if it is missing or out of date."""
    path = runs_folder / HELP_NAME
    rows = [(anchor(kind.name), kind.name, kind.remedy, examples_of(kind)) for kind in KINDS]
    text = page(
        "help.html.j2",
        head=head(TITLE),
        title=TITLE,
        rows=rows,
    )
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return path


def links_for(reason: str, to_runs: str) -> list[tuple[str, str]]:
    """Return the failures named in a reason, each with a link to its explanation.

    If the reason names no failure, return a link to the whole page.

    >>> links_for("CUDA out of memory", "../../")
    [('device out of memory', '../../when-it-fails.html#device-out-of-memory')]
    """
    page = f"{to_runs}{HELP_NAME}"
    named = [
        (failure.name, f"{page}#{anchor(failure.name)}")
        for failure in find_failures(reason.splitlines())
    ]
    return named or ([(TITLE, page)] if reason else [])


def write_and_note(run_folder: Path, name: str, text: str) -> Path:
    """Write a page for a run, and record the file in the manifest."""
    write_text(run_folder / name, text)
    note_files(run_folder, [run_folder / name])
    return run_folder / name
