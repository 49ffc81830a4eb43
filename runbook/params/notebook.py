"""Binds the parameters cell of a notebook, whichever way papermill, JupyterLab or our command filled it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runbook.errors import ParamsError
from runbook.params.keys import nearest
from runbook.params.loading import load_file
from runbook.params.portable import read_as_papermill
from runbook.params.problems import Problem, Refused, show
from runbook.params.project import RunFile, find_run_file, run_names
from runbook.params.settings import Settings
from runbook.params.words import split_words
from runbook.params.yaml12 import read_mapping, read_text

PARAMETERS: dict[str, Any] = {
    "run": "local",
    "site": "",
    "model": "",
    "data": {},
    "parallel": {},
    "training": {},
    "jobs": {},
    "overrides": "",
}
"""The parameters cell of every notebook: names and defaults."""

_FROM_FILE = [name for name in PARAMETERS if name not in ("run", "overrides")]
_EXAMPLES = {
    "run": '"local"',
    "site": '"local"',
    "model": '"125m"',
    "data": '{"dataset": "corpus"}',
    "parallel": '{"tensor": 2}',
    "training": '{"iterations": 10}',
    "jobs": '{"smoke": {"nodes": 1}}',
    "overrides": '"training.iterations=10"',
}
_PAPERMILL = ("PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")


def bind(namespace: Mapping[str, Any], *, project: Path | None = None) -> Settings:
    """The run that a notebook's variables name; pass `globals()`.

    What equals the run file as papermill reads it (YAML 1.1) was not chosen in the notebook: its value and origin come
    from the file. Everything else given wins over the file. `ParamsError` lists all that is wrong.
    """
    run = namespace.get("run", PARAMETERS["run"])
    if not isinstance(run, str):
        raise Refused("Parameters of the notebook", [*_unknown_names(namespace), _wrong_type("run", run)])
    file = find_run_file(run, project)
    given = {name: namespace[name] for name in _FROM_FILE if _is_given(namespace, name)}
    own = _as_papermill(file)
    chosen = {name: value for name, value in given.items() if not _same(value, own.get(name))}
    if chosen:
        _refuse_two_runs(file, given, own)
    problems = _unknown_names(namespace)
    problems += [_wrong_type(name, value) for name, value in chosen.items() if not _fits(name, value)]
    chosen = {name: value for name, value in chosen.items() if _fits(name, value)}
    return load_file(file, chosen, _words(namespace, problems), problems)


def _words(namespace: Mapping[str, Any], problems: list[Problem]) -> list[str]:
    overrides = namespace.get("overrides", "")
    if not isinstance(overrides, str):
        problems.append(_wrong_type("overrides", overrides))
        return []
    try:
        return split_words(overrides)
    except ParamsError as error:
        problems.append(Problem("overrides", "notebook", str(error), overrides))
        return []


def _is_given(namespace: Mapping[str, Any], name: str) -> bool:
    return name in namespace and not _same(namespace[name], PARAMETERS[name])


def _fits(name: str, value: Any) -> bool:
    return isinstance(value, type(PARAMETERS[name]))


def _wrong_type(name: str, value: Any) -> Problem:
    example = _EXAMPLES.get(name, "{}")
    kind = "text" if isinstance(PARAMETERS[name], str) else "a dict"
    return Problem(name, "notebook", f"must be {kind}, such as {name} = {example}.", value)


def _unknown_names(namespace: Mapping[str, Any]) -> list[Problem]:
    """Names that papermill injected and no notebook has: papermill itself only warns of them."""
    problems = []
    history = namespace.get("In")
    for source in history if isinstance(history, list) else []:
        if not isinstance(source, str) or not source.startswith("# Parameters\n"):
            continue
        for name, value in _assigned(source).items():
            if name not in PARAMETERS and name not in _PAPERMILL:
                near = nearest(name, list(PARAMETERS), 1)
                meant = f"Did you mean {near[0]}?" if near else f"It has {', '.join(PARAMETERS)}."
                rule = f"a notebook has no such parameter. {meant}"
                problems.append(Problem(name, "papermill", rule, value))
    return problems


def _assigned(source: str) -> dict[str, Any]:
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return {}
    found: dict[str, Any] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                found[statement.targets[0].id] = ...
    return found


def _as_papermill(file: RunFile) -> dict[str, Any]:
    """The run file as papermill would inject it; nothing where it cannot be read, which loading then tells better."""
    try:
        text = read_text(file.path, file.where)
        read_mapping(text, file.where)  # our own reader's guards first: depth, aliases
        values = read_as_papermill(text)
    except (ParamsError, yaml.YAMLError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _refuse_two_runs(file: RunFile, given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """`-p run one -f params/other.yaml`: most of what another run file says was given, and it is not this run's."""
    for name in run_names(file.project):
        other = RunFile(file.project / "params" / f"{name}.yaml", "", file.project)
        if other.path == file.path:
            continue
        says = {key: value for key, value in _as_papermill(other).items() if key in _FROM_FILE}
        equal = [key for key, value in says.items() if key in given and _same(given[key], value)]
        foreign = [key for key in equal if not _same(given[key], own.get(key))]
        if foreign and 2 * len(equal) > len(says):
            raise ParamsError(
                f"Two runs are mixed: run is {show(file.stem)}, but {', '.join(foreign)} "
                f"{'is that' if len(foreign) == 1 else 'are those'} of {other.where}. Name one: -p run {file.stem}, or "
                f"-f {other.where}, but not both. Nothing was written."
            )


def _same(one: Any, other: Any) -> bool:
    """Equal in value and type: True is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(_same(left, right) for left, right in zip(one, other, strict=True))
    return bool(one == other)
