"""Generates docs/keys.md, the page that lists all keys, from the docstrings in the schema.

tools/write_pages.py writes the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runbook.params.schema.run_file import JOB_SECTIONS, Run
from runbook.params.schema.site import Site

HEAD = """# Every key of a run file and of a site file

This page lists what each key means, and the value that it has if no file sets it. `runbook why RUN KEY` also shows where
a run's value was set, and what the five documents call the key. An unknown key stops every command, and the message
names the nearest valid key.

This page is written from the schema by `python tools/write_pages.py`; a test compares the two.
"""
RUN_HEAD = """## Run file

These keys belong in `params/NAME.yaml`. `--set KEY=VALUE` and a notebook's parameters cell accept the same keys.
"""
SITE_HEAD = """## Site file

These keys belong in `params/sites/NAME.yaml`. Write this file yourself, or let `runbook init --site NAME` draft it.
"""
FIRST_JOB, *OTHER_JOBS = (f"jobs.{section}" for section in JOB_SECTIONS.values())
"""Sections of `jobs` that have the same keys, which the page lists only once."""


@dataclass(frozen=True)
class Section:
    """A group of keys: its dotted name, its description, and its keys."""

    name: str
    help_text: str
    fields: dict[str, FieldInfo]


def keys_page() -> str:
    """Return docs/keys.md: a table for each section in a run file and in a site file."""
    parts = [HEAD, RUN_HEAD]
    for section in sections_of(Run):
        if section.name not in OTHER_JOBS:
            parts.append(_section_text(section))
    parts.append(SITE_HEAD)
    parts += [_section_text(section) for section in sections_of(Site)]
    return "\n".join(parts)


def sections_of(model: type[BaseModel], name: str = "", help_text: str = "") -> Iterator[Section]:
    """Yield the keys in a model, then those in each model inside it.

    >>> [section.name for section in sections_of(Run)][:3]
    ['', 'data', 'parallel']
    """
    keys: dict[str, FieldInfo] = {}
    inner_sections: list[Section] = []
    for field_name, info in model.model_fields.items():
        path = f"{name}.{field_name}".lstrip(".")
        inner_model = model_inside(info.annotation)
        if inner_model is None:
            keys[path] = info
        else:
            inner_path = path + _index_of(info.annotation)
            inner_sections += sections_of(inner_model, inner_path, _help_text(info))
    yield Section(name, help_text, keys)
    yield from inner_sections


def model_inside(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds directly, in a list, in a mapping, or optionally."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        inner_model = model_inside(argument)
        if inner_model is not None:
            return inner_model
    return None


def _index_of(annotation: Any) -> str:
    """Return the text between a field name and the keys in the field's model."""
    origin = get_origin(annotation)
    if origin is dict:
        return ".<name>"
    if origin is list:
        return "[]"
    return ""


def _section_text(section: Section) -> str:
    heading = section.name
    help_text = section.help_text
    if section.name == FIRST_JOB:
        heading = "jobs.<phase>"
        phases = ", ".join(JOB_SECTIONS.values())
        help_text = f"What one phase asks of the scheduler; `<phase>` is one of {phases}."
    lines = []
    if heading:
        lines += [f"### {_code(heading)}", "", help_text, ""]
    lines += ["| key | default | meaning |", "| --- | --- | --- |"]
    for path, info in section.fields.items():
        key = path.replace(f"{FIRST_JOB}.", "jobs.<phase>.")
        lines.append(f"| {_code(key)} | {_default(info)} | {_help_text(info)} |")
    lines.append("")
    return "\n".join(lines)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**required**"
    value = info.default
    if isinstance(value, bool):
        return _code(str(value).lower())
    if value is None or value in ("", {}, []):
        return "empty"
    return _code(str(value))


def _code(text: str) -> str:
    return f"`{text}`"


def _help_text(info: FieldInfo) -> str:
    """Return the docstring for a field as one table cell."""
    text = " ".join((info.description or "").split())
    return text.replace("|", "\\|").replace("<", "&lt;")
