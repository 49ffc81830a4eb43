"""Choosing the values of a run by hand: what each change does to the plan, and the run file that keeps it.

show(settings)                                  the form in JupyterLab, a table of the values elsewhere
consider(run, changes, fields) -> Answer        errors by key, and the plan in short
write(run, name, changes) -> Path               params/<name>.yaml, which `runbook check` accepts
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import Table
from runbook.display.form import Answer, Field, show_form
from runbook.errors import ParamsError, PlanError
from runbook.params import Settings
from runbook.params.catalogues import read_datasets, read_models
from runbook.params.keys import Key, all_keys
from runbook.params.kinds import is_name
from runbook.params.layers import GIVEN
from runbook.params.problems import Refused
from runbook.params.writing import write_scalar
from runbook.phases import calibrations, machine
from runbook.phases.campaign import runs_folder
from runbook.plan import make_plan
from runbook.plan.summary_text import summary_table
from runbook.records.files import write_text

FIRST = (
    *("site", "model", "data.dataset", "jobs.training.nodes", "jobs.training.devices_per_node"),
    *("parallel.tensor", "parallel.pipeline", "parallel.zero_stage", "training.engine", "training.precision"),
    *("training.iterations", "training.samples", "training.tokens", "training.micro_batch"),
    *("training.global_batch", "training.learning_rate", "training.recompute"),
)
"""What one mostly changes; every other key of the schema is in the folded sections below."""
MADE_BY = "# Written by the form of 00-plan from run "
"""First line of a file that the form may write again."""
FILE_KEYS = ("run file", "variant", *GIVEN)


def show(settings: Settings) -> None:
    """The form over a run's values; a table of them where nobody can click."""
    run = str(settings.project / "params" / f"{settings.run.run}.yaml")
    sections = fields(settings)
    keys = [one.key for group in sections.values() for one in group]
    show_form(
        sections,
        lambda changes: consider(run, changes, keys),
        lambda name, changes: said(write(run, name, changes), settings.project),
        values_table(settings),
        f"{settings.run.run}-mine",
    )


def fields(settings: Settings) -> dict[str, list[Field]]:
    """Every key of the schema as a field: the usual ones first, then by section."""
    named = {
        "site": tuple(params.site_names(settings.project)),
        "model": tuple(read_models(settings.project).names),
        "data.dataset": tuple(read_datasets(settings.project).names),
    }
    found: dict[str, list[Field]] = {"": []}
    for key in sorted(all_keys().values(), key=lambda key: FIRST.index(key.name) if key.name in FIRST else len(FIRST)):
        if key.name == "run":
            continue
        section = "" if key.name in FIRST else key.name.rpartition(".")[0]
        choices = named.get(key.name, _choices(key))
        found.setdefault(section, []).append(Field(key.name, key.help, written(settings.value(key.name)), choices))
    return found


def values_table(settings: Settings) -> Table:
    """The usual values with their origin and meaning."""
    origins = settings.parameters()
    rows = [
        {
            "key": key,
            "value": written(settings.value(key)),
            "from": origins[key]["origin"],
            "what": all_keys()[key].help,
        }
        for key in FIRST
    ]
    note = "In JupyterLab this is a form. Elsewhere: runbook plan RUN --set KEY=VALUE shows what a change would do."
    return Table(rows, "Values one mostly changes", [note])


def consider(run: str, changes: Mapping[str, str], keys: Iterable[str]) -> Answer:
    """What the changes do: the plan in short, or each error beside the field that it is about."""
    try:
        settings = params.load(run, set_words=_words(changes))
        measured = calibrations.known(settings, runs_folder(settings.project))
        plan = make_plan(settings, machine.measure(settings.site), measured).as_dict()
    except Refused as error:
        return Answer(_beside([(problem.key, problem.rule) for problem in error.problems], keys))
    except PlanError as error:
        lines = [line.strip().partition(". ")[2] for line in str(error).splitlines()[1:]]
        return Answer(_beside([(_about(line, changes, keys), line) for line in lines], keys))
    except ParamsError as error:
        return Answer({"": str(error)})
    table = summary_table(plan)
    values = {key: written(settings.value(key)) for key in keys}
    return Answer({}, Table(table.rows, table.title), values)


def write(run: str, name: str, changes: Mapping[str, str]) -> Path:
    """Write params/<name>.yaml with what the run's own file and the changes say; another person's file is kept."""
    name = name.removesuffix(".yaml")
    if not is_name(name):
        raise ParamsError(f"{name!r} cannot be a run's name: letters, digits, '.', '_' and '-', at most 80.")
    settings = params.load(run, set_words=_words(changes))
    make_plan(settings, machine.measure(settings.site))
    path = settings.project / "params" / f"{name}.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(MADE_BY):
        raise ParamsError(f"{path.name} exists already and was not written by this form. Choose another file name.")
    write_text(path, file_text(settings, name))
    params.check(str(path), project=settings.project)
    return path


def file_text(settings: Settings, name: str) -> str:
    """A run file of every value that was chosen and is not the built-in default."""
    lines = [f"{MADE_BY}{settings.run.run}; runbook check {name} says whether it still fits.", f"run: {name}"]
    before: list[str] = []
    for key, value in settings.values().items():
        if key == "run" or settings.origins[key][-1].layer not in FILE_KEYS:
            continue
        *parents, last = key.split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                lines.append(f"{'  ' * depth}{parent}:")
        before = parents
        lines.append(f"{'  ' * len(parents)}{last}: {write_scalar(value)}")
    return "\n".join(lines) + "\n"


def said(path: Path, project: Path) -> str:
    """What a person does with the file."""
    name = path.stem
    return f'{path.relative_to(project)} is written and passes runbook check. Next: run = "{name}" in the first cell.'


def written(value: Any) -> str:
    """A value as one types it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return write_scalar(value) if isinstance(value, float) else str(value)


def _choices(key: Key) -> tuple[str, ...]:
    if key.kind is bool:
        return ("false", "true")
    if isinstance(key.kind, type) and issubclass(key.kind, StrEnum):
        return tuple(str(one) for one in key.kind)
    return ("false", "true") if isinstance(key.default, bool) else ()


def _words(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def _beside(problems: Iterable[tuple[str, str]], keys: Iterable[str]) -> dict[str, str]:
    own = set(keys)
    found: dict[str, str] = {}
    for key, text in problems:
        place = key if key in own else ""
        line = text if place else f"{key}: {text}" if key else text
        found[place] = f"{found[place]}\n{line}" if place in found else line
    return found


def _about(line: str, changes: Mapping[str, str], keys: Iterable[str]) -> str:
    """The field that a broken rule is shown beside: one it names, one that was changed before others."""
    named = [key for key in keys if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", line)]
    changed = list(changes)
    return next(iter([key for key in named if key in changes] or changed[-1:] or named), "")
