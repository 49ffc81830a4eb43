"""What the HTML pages share: their templates, and how a value of a twin is shown.

page(template, title, **values) -> str      result_rows(twin) -> list[ResultRow]      show_value(value) -> Markup
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from runbook.records.twin import Twin

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ResultRow:
    """A result of a twin, with the planned value of the same key beside it."""

    key: str
    exact: str
    """The value as the twin's JSON has it."""
    value: Markup
    planned: Markup
    ratio: str
    """Value by plan; empty where one of them is missing or no number."""
    is_number: bool
    """Numbers stand to the right, text to the left."""


@cache
def environment() -> Environment:
    """The templates; a missing value stops the page instead of leaving a hole."""
    return Environment(
        loader=FileSystemLoader([TEMPLATES, TEMPLATES / "record"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )


def style() -> Markup:
    """The style sheet that stands inside every page."""
    return Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))


def page(template: str, **values: Any) -> str:
    """A page or a piece of one."""
    return environment().get_template(template).render(**values)


def head(title: str, extra_style: str = "", script: bool = False) -> str:
    """The inside of a page's <head>: everything is in the page, and the browser is told to fetch nothing."""
    module: Any = environment().get_template("parts.j2").module
    return str(module.head(title, style() + Markup(extra_style), script))


def result_rows(twin: Twin) -> list[ResultRow]:
    """Results in the order they were recorded."""
    return [
        ResultRow(
            key,
            as_json(value),
            show_value(value),
            _planned(twin, key),
            _ratio(value, twin.plan.get(key)),
            is_number(value),
        )
        for key, value in twin.results.items()
    ]


def as_json(value: Any) -> str:
    """A value as it stands in the twin."""
    return json.dumps(value, ensure_ascii=False)


def show_value(value: Any) -> Markup:
    """A value for reading; the digits are those of the twin, large whole numbers only look grouped.

    >>> str(show_value(64633856)), Markup(show_value(64633856)).striptags()
    ('64<span class="g">633</span><span class="g">856</span>', '64633856')
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        first, *groups = f"{value:,}".split(",")
        return Markup(first) + Markup("").join(Markup('<span class="g">{}</span>').format(group) for group in groups)
    return escape(value if isinstance(value, str) else as_json(value))


def is_number(value: Any) -> bool:
    """Whether a value counts or measures something."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _planned(twin: Twin, key: str) -> Markup:
    return show_value(twin.plan[key]) if key in twin.plan else Markup("")


def _ratio(value: Any, planned: Any) -> str:
    if not is_number(value) or not is_number(planned) or not planned:
        return ""
    ratio = value / planned
    return f"{ratio:.3g}" if math.isfinite(ratio) else ""
