"""Reads the parameters cell in a notebook.

The cell may have been filled by papermill, JupyterLab or our command.
"""

import ast
import contextlib
import json
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

import yaml

from runbook.core.errors import ParamsError
from runbook.core.nearest_names import nearest_names
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams, Problem, read_as_papermill, show
from runbook.params.project import RunFile, find_run_file, run_names
from runbook.params.run_loader import RunLoading
from runbook.params.settings import Settings
from runbook.params.yaml12 import YamlDocument, dotted, read_mapping, read_text

_EXAMPLES = {
    "run": "local",
    "site": "local",
    "model": "125m",
    "data": {"dataset": "corpus"},
    "parallel": {"tensor": 2},
    "training": {"iterations": 10},
    "jobs": {"smoke": {"nodes": 1}},
    "overrides": "training.iterations=10",
}
PARAMETERS = {name: type(example)() for name, example in _EXAMPLES.items()} | {"run": "local"}
"""The parameters cell in every notebook: names and defaults.

All defaults but the one for `run` are empty.
"""

_FROM_FILE = [name for name in PARAMETERS if name not in ("run", "overrides")]
_SETS_RUN = re.compile(r"(?m)^run\b *[:=]")
"""Matches a cell that sets `run`, even if the cell has a syntax error."""
_INJECTED = "# Parameters\n"
"""First line in the cell that papermill inserts below the parameters cell."""


def bind(
    namespace: Mapping[str, object],
    *,
    project: Path | None = None,
    before: YamlDocument | None = None,
) -> Settings:
    """Return the run described by the variables in a notebook; pass `globals()`.

    If a value equals the one in the run file as papermill reads it (YAML 1.1), it was not chosen in
    the notebook, so both value and origin are taken from the file. Every other value takes
    precedence over the file, and over `before`, the values given to this run earlier. Raise
    `ParamsError`, which lists everything that is wrong.
    """
    _refuse_skipped_parameters_cell(namespace)
    run = namespace.get("run", PARAMETERS["run"])
    if not isinstance(run, str):
        problems = [*_unknown_names(namespace), _wrong_type("run", run)]
        raise InvalidParams("Parameters of the notebook", problems)

    file = find_run_file(run, project)
    chosen = _chosen_values(file, namespace)
    overrides = namespace.get("overrides", "")
    ill_typed = []
    for name, value in (chosen | {"overrides": overrides}).items():
        if not isinstance(value, type(PARAMETERS[name])):
            ill_typed.append((name, value))

    problems = [
        *_syntax_errors(namespace),
        *_unknown_names(namespace),
        *_forgotten_names(namespace),
        *(_wrong_type(name, value) for name, value in ill_typed),
    ]
    for name, _ in ill_typed:
        chosen.pop(name, None)
    if isinstance(overrides, str):
        set_words = _set_words(overrides, problems)
    else:
        set_words = []

    return RunLoading(file, problems=problems, before=before).load(chosen, set_words)


def _chosen_values(file: RunFile, namespace: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that differ both from their defaults and from the run file.

    Raise `ParamsError` if they belong to a different run file.
    """
    values = {}
    for name in _FROM_FILE:
        if name in namespace:
            values[name] = _value(name, namespace[name])

    not_default = {}
    for name, value in values.items():
        if not _same(value, PARAMETERS[name]):
            not_default[name] = value

    in_file = _as_papermill(file)
    chosen = {}
    for name, value in not_default.items():
        if not _same(value, in_file.get(name)):
            chosen[name] = value

    if chosen:
        _refuse_two_runs(file, not_default, in_file)
    return chosen


def _set_words(overrides: str, problems: list[Problem]) -> list[str]:
    """Return the `key=value` arguments in `overrides`, split as in a shell.

    A string that cannot be split is reported.
    """
    try:
        return shlex.split(overrides)
    except ValueError as error:
        rule = ParamsMessage.NOT_SHELL_WORDS.of(error=error)
        problems.append(Problem("overrides", "notebook", rule, overrides))
        return []


def hand_edits(cell: str, given: Collection[str] = ()) -> dict[str, str]:
    r"""Return the parameters that a cell sets to values other than the defaults.

    The result excludes `run`, which everybody sets, and the parameters `given` to papermill, which
    override the cell.

    >>> hand_edits('run: str = "mine"\ntraining: dict = {"iterations": 30}  # quick')
    {'training': "{'iterations': 30}"}
    """
    edits = {}
    for name, value in assignments(cell).items():
        is_parameter = name in _FROM_FILE or name == "overrides"
        if not is_parameter or name in given:
            continue
        if not _same(_literal(value), PARAMETERS[name]):
            edits[name] = ast.unparse(value)

    return edits


def refuse_hand_edits(cell: str, notebook: str, given: Collection[str] = ()) -> None:
    """Raise an error if an unattended notebook has hand-written parameters.

    These parameters would silently change every run executed with this notebook.
    """
    edits = hand_edits(cell, given)
    if edits:
        shown_edits = ", ".join(f"{name} = {value}" for name, value in edits.items())
        option_words = " ".join(_as_words(cell, name) for name in edits)
        raise ParamsError(
            ParamsMessage.CELL_CHANGED_BY_HAND,
            notebook=notebook,
            shown_edits=shown_edits,
            option_words=option_words,
        )


def refuse_edits_below_papermill(namespace: Mapping[str, object], notebook: str) -> None:
    """Apply `refuse_hand_edits` from inside a kernel.

    There, papermill has inserted its parameters below the parameters cell.
    """
    sources = _executed(namespace)
    injected = 0
    for number, source in enumerate(sources):
        if source.startswith(_INJECTED):
            injected = number
            break

    for source in sources[:injected]:
        if PARAMETERS.keys() <= assignments(source).keys():
            refuse_hand_edits(source, notebook, assignments(sources[injected]))
            return


def _as_words(cell: str, name: str) -> str:
    """Return the command-line arguments that correspond to a parameters cell."""
    value = _literal(assignments(cell)[name])
    if name == "overrides":
        return " ".join(f"--set {shlex.quote(word)}" for word in shlex.split(str(value)))
    leaves = dotted("VALUE" if value is ... else value, name)
    return " ".join(f"--set {shlex.quote(f'{key}={leaf}')}" for key, leaf in leaves.items())


def _value(name: str, value: Any) -> Any:
    """Return the mapping given as a parameter.

    Text is parsed, because papermill's -p passes text unchanged.
    """
    if isinstance(PARAMETERS[name], dict) and isinstance(value, str):
        with contextlib.suppress(ParamsError):
            return read_mapping(f"value: {value.strip() or '{}'}", name).values["value"]

    return value


def _wrong_type(name: str, value: Any) -> Problem:
    kind = "text" if isinstance(PARAMETERS[name], str) else "a dict"
    return Problem(
        name,
        "notebook",
        ParamsMessage.NOTEBOOK_TYPE.of(kind=kind, name=name, example=json.dumps(_EXAMPLES[name])),
        value,
    )


def _unknown_names(namespace: Mapping[str, object]) -> list[Problem]:
    """Return a problem for each name given as a parameter that no notebook has.

    Papermill only warns about the names that it injects. In the parameters cell, a name that the
    cell itself reads counts as the author's own variable.
    """
    problems = []
    sources = _executed(namespace)
    for source in sources:
        if source.startswith(_INJECTED):
            problems += _unknown_in(assignments(source), "papermill")

    number = _parameters_cell_number(sources)
    if number is not None:
        problems += _unknown_in(_unread_assignments(sources[number]), "notebook")

    return problems


def _unread_assignments(parameters_cell: str) -> dict[str, ast.expr]:
    """Return the assignments to names that the cell does not read.

    Return nothing for a cell that sets few parameters: it is probably not a parameters cell.
    """
    assigned = assignments(parameters_cell)
    number_of_parameters = len(PARAMETERS.keys() & assigned.keys())
    if number_of_parameters <= len(PARAMETERS) // 2:
        return {}
    names_read = _names_read(parameters_cell)
    return {name: value for name, value in assigned.items() if name not in names_read}


def _unknown_in(given: Mapping[str, ast.expr], where: str) -> list[Problem]:
    problems = []
    expected = (*PARAMETERS, "PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH")
    for name, value in given.items():
        if name in expected:
            continue
        close = nearest_names(name, list(PARAMETERS), 1)
        if close:
            hint = f"Did you mean {close[0]}?"
        else:
            hint = f"It has {', '.join(PARAMETERS)}."

        rule = ParamsMessage.UNKNOWN_PARAMETER.of(hint=hint)
        problems.append(Problem(name, where, rule, _literal(value)))

    return problems


def _forgotten_names(namespace: Mapping[str, object]) -> list[Problem]:
    """Return a problem for each parameter that was deleted from the cell, but is still in force.

    The kernel still has the value from an earlier execution of the parameters cell.
    """
    sources = _executed(namespace)
    newest = _parameters_cell_number(sources)
    if newest is None:
        return []
    problems = []
    for name, default in PARAMETERS.items():
        value = namespace.get(name, default)
        if _same(value, default):
            continue
        number = _last_assigned(sources, name)
        if number is None or number >= newest:
            continue
        was_in_parameters_cell = "run" in assignments(sources[number])
        if was_in_parameters_cell:
            rule = ParamsMessage.PARAMETER_DELETED.of(name=name, default=repr(default))
            problems.append(Problem(name, "notebook", rule, value))

    return problems


def _refuse_skipped_parameters_cell(namespace: Mapping[str, object]) -> None:
    """Raise an error if a kernel, new or restarted, has not run the parameters cell.

    Without this error, the notebook would use the default run.
    """
    is_kernel = isinstance(namespace.get("In"), list)
    if not is_kernel or "run" in namespace:
        return
    skipped = Problem("run", "notebook", ParamsMessage.PARAMETERS_CELL_SKIPPED.of())
    problems = _syntax_errors(namespace) or [skipped]
    raise InvalidParams("Parameters of the notebook", problems)


def _syntax_errors(namespace: Mapping[str, object]) -> list[Problem]:
    """Return a problem if the parameters cell was not Python when it was last executed.

    The kernel then still has the values from the previous execution.
    """
    for source in reversed(_executed(namespace)):
        if not _SETS_RUN.search(source):
            continue
        try:
            ast.parse(source)
        except SyntaxError as error:
            rule = ParamsMessage.PARAMETERS_CELL_NOT_RUN.of(line=error.lineno)
            return [Problem("parameters", "notebook", rule)]
        return []

    return []


def _last_assigned(sources: list[str], name: str) -> int | None:
    """Find the newest cell that assigns to a name, and return its index."""
    for number in reversed(range(len(sources))):
        if name in assignments(sources[number]):
            return number
    return None


def _parameters_cell_number(sources: list[str]) -> int | None:
    """Find the newest cell that sets `run` and was not inserted by papermill; return its index."""
    for number in reversed(range(len(sources))):
        source = sources[number]
        if "run" in assignments(source) and not source.startswith(_INJECTED):
            return number
    return None


def _names_read(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names


def _executed(namespace: Mapping[str, object]) -> list[str]:
    history = namespace.get("In")
    if isinstance(history, list):
        return [source for source in history if isinstance(source, str)]
    return []


def assignments(source: str) -> dict[str, ast.expr]:
    """Return the assignments to names in a cell, in order.

    The mapping is empty if the cell is not Python.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return {}

    assigned: dict[str, ast.expr] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            target: ast.expr | None = statement.targets[0]
        else:
            target = getattr(statement, "target", None)

        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            assigned[target.id] = value

    return assigned


def _literal(value: ast.expr) -> Any:
    """Return the value, or `...` if it is computed."""
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ...


def _as_papermill(file: RunFile) -> dict[str, object]:
    """Return the run file as papermill would inject it.

    If the file cannot be read, return an empty mapping. Loading the run then reports the reason in
    more detail.
    """
    try:
        text = read_text(file.path, file.where)
        # Use our own reader first, because it checks depth and aliases
        read_mapping(text, file.where)
        values = read_as_papermill(text)
    except (ParamsError, yaml.YAMLError, ValueError):
        return {}

    return values if isinstance(values, dict) else {}


def _refuse_two_runs(
    file: RunFile, given_values: Mapping[str, object], in_file: Mapping[str, object]
) -> None:
    """Raise an error if the given values come mostly from a different run file.

    `papermill -p run one -f params/other.yaml` passes such values.
    """
    for name in run_names(file.project):
        other_file = RunFile(file.project / "params" / f"{name}.yaml", "", file.project)
        if other_file.path == file.path:
            continue
        foreign = _values_of_other_run(other_file, given_values, in_file)
        if foreign:
            verb = "is that" if len(foreign) == 1 else "are those"
            raise ParamsError(
                ParamsMessage.TWO_RUNS_MIXED,
                run=show(file.stem),
                foreign=", ".join(foreign),
                verb=verb,
                where=other_file.where,
                stem=file.stem,
            )


def _values_of_other_run(
    other_file: RunFile, given_values: Mapping[str, object], in_file: Mapping[str, object]
) -> list[str]:
    """Return the given keys with values from the other run file, not from this one.

    The result is empty if less than half of the values in the other run file were given.
    """
    stated = {}
    for key, value in _as_papermill(other_file).items():
        if key in _FROM_FILE:
            stated[key] = value

    equal = []
    for key, value in stated.items():
        if key in given_values and _same(given_values[key], value):
            equal.append(key)

    is_most = 2 * len(equal) > len(stated)
    if not is_most:
        return []
    return [key for key in equal if not _same(given_values[key], in_file.get(key))]


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are equal in value and type, whatever the order of keys.

    True does not equal 1.
    """
    return pformat(first) == pformat(second)
