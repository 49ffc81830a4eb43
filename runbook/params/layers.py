"""Layers of values, lowest first: each is checked by itself, then laid over those below it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from runbook.params.keys import EXCLUSIVE, all_keys, job_section, nearest, right_name, sections
from runbook.params.problems import Problem, show, token_problem
from runbook.params.schema import Run
from runbook.params.secrets import find_token
from runbook.params.yaml12 import Document, read_scalar

GIVEN = ("notebook", "command line")
"""Layers that are no file; a file is searched for secrets as a text."""

Where = Callable[[tuple[str, ...]], str]


@dataclass(frozen=True)
class Origin:
    """One layer's word on a value."""

    layer: str
    """built-in, site, run file, variant, notebook or command line."""

    where: str
    """params/local.yaml:12, or how it was given."""

    value: Any

    def __str__(self) -> str:
        return self.where if self.layer in ("built-in", "run file") else f"{self.where} ({self.layer})"


@dataclass
class Layer:
    """The leaves one source gives, by dotted key."""

    name: str
    leaves: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, key: str, value: Any, where: str) -> None:
        """Take one leaf; a later one wins."""
        self.leaves[key] = Origin(self.name, where, value)

    def take(self, values: Mapping[str, Any], where: Where, path: tuple[str, ...] = ()) -> Layer:
        """Take a nested mapping, noting every key the schema does not know."""
        written: dict[str, str] = {}
        for word, value in values.items():
            here = (*path, str(word))
            name = self._known_name(here, where(here), value)
            if name is None:
                continue
            if name in written:
                rule = f"means the same as {written[name]} beside it. Keep one of them."
                self.problems.append(Problem(".".join(here), where(here), rule))
                continue
            written[name] = str(word)
            self._take_one(name, value, where, here)
        return self

    def _take_one(self, name: str, value: Any, where: Where, written: tuple[str, ...]) -> None:
        if name in sections():
            if isinstance(value, Mapping):
                inner = tuple(name.split("."))
                self.take(value, lambda path: where((*written, *path[len(inner) :])), inner)
            elif value is not None:  # a section whose lines are all commented out is empty
                rule = f"is a section: write its keys below it ({_some_keys(name)})."
                self.problems.append(Problem(name, where(written), rule, value))
        elif isinstance(value, Mapping | list | tuple):
            self.problems.append(Problem(name, where(written), "takes one value, not a list or a mapping.", value))
        elif value is None:
            rule = "has no value. Give one, or leave the line out to take the default."
            self.problems.append(Problem(name, where(written), rule))
        else:
            self.add(name, value, where(written))

    def _known_name(self, path: tuple[str, ...], where: str, value: Any) -> str | None:
        if len(path) == 2 and path[0] == "jobs" and ".".join(path) not in all_keys():
            try:
                return f"jobs.{job_section(path[1])}"
            except ValueError as error:
                self.problems.append(Problem(".".join(path), where, f"{error}."))
                return None
        name = ".".join(path)
        if "." in path[-1] and name in all_keys():
            section, _, last = name.rpartition(".")
            rule = f"is one key with a dot in it. Write `{last}:` in a line of its own below `{section}:`."
            self.problems.append(Problem(name, where, rule, value))
            return None
        if name in all_keys() or name in sections():
            return name
        self.problems.append(unknown_key(path, where, value))
        return None


def unknown_key(path: tuple[str, ...], where: str, value: Any = ...) -> Problem:
    """Says which key was meant."""
    ours, near = right_name(path)
    if ours:
        rule = f"{path[-1]} is a name of the documents; here it is {ours}."
    elif near:
        rule = f"there is no such key. Did you mean {near}?"
    else:
        parent = ".".join(path[:-1])
        rule = f"there is no such key. {parent or 'A run file'} has {_some_keys(parent)}."
    return Problem(".".join(path), where, rule, value if not isinstance(value, Mapping) else ...)


def document_layer(name: str, document: Document) -> Layer:
    """The layer of a file."""
    return Layer(name).take(document.values, document.origin)


def mapping_layer(name: str, values: Mapping[str, Any], prefix: str) -> Layer:
    """The layer of values given as Python objects; numbers that YAML 1.1 left as text (6e-5) become numbers."""
    layer = Layer(name).take(values, lambda path: f"{prefix}{path[0]}")
    for key, origin in layer.leaves.items():
        if isinstance(origin.value, str) and all_keys()[key].kind in (int, float):
            number = read_scalar(origin.value)
            if isinstance(number, int | float) and not isinstance(number, bool):
                layer.leaves[key] = Origin(origin.layer, origin.where, number)
    return layer


@dataclass
class Stack:
    """All layers laid over one another, with the chain of origins of each value."""

    chains: dict[str, list[Origin]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key in all_keys().values():
            if key.default is not ...:
                self.chains[key.name] = [Origin("built-in", "built-in", _plain(key.default))]

    def lay(self, layer: Layer) -> None:
        """Put a layer on top: its values win, and are checked."""
        self.problems += layer.problems
        for what, group in EXCLUSIVE.items():
            self._clear(layer, what, group)
        for key, origin in layer.leaves.items():
            self.chains.setdefault(key, []).append(origin)
            if layer.name in GIVEN and isinstance(origin.value, str) and find_token(origin.value):
                self.problems.append(token_problem(key, origin.where))
        self._check(layer)

    def value(self, key: str) -> Any:
        """The value that wins so far; None where none was given."""
        chain = self.chains.get(key)
        return chain[-1].value if chain else None

    def nested(self) -> dict[str, Any]:
        """The winning values as a run file nests them."""
        result: dict[str, Any] = {}
        for key, chain in self.chains.items():
            *parents, last = key.split(".")
            inner = result
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = chain[-1].value
        return result

    def _clear(self, layer: Layer, what: str, group: tuple[str, ...]) -> None:
        given = [key for key in group if key in layer.leaves and layer.leaves[key].value not in (0, 0.0, "0")]
        if len(given) > 1:
            wheres = dict.fromkeys(layer.leaves[key].where for key in given)
            rule = f"these are {len(given)} {what}. Give one of them."
            self.problems.append(Problem(" and ".join(given), ", ".join(wheres), rule))
        if not given:
            return
        winner = layer.leaves[given[0]]
        for key in group:
            if key not in layer.leaves and self.value(key) not in (None, 0, 0.0):
                where = f"{winner.where}, where {given[0]} is given instead"
                self.chains[key].append(Origin(layer.name, where, 0))

    def _check(self, layer: Layer) -> None:
        try:
            Run.model_validate(self.nested())
        except ValidationError as errors:
            for error in errors.errors(include_url=False):
                key = ".".join(str(part) for part in error["loc"])
                if key in layer.leaves:
                    origin = layer.leaves[key]
                    self.problems.append(Problem(key, origin.where, rule_of(error, key), origin.value))


def rule_of(error: Any, key: str) -> str:
    """Pydantic's error as a rule in our words."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "value_error":
        text = str(context["error"])
        return f"{text}." if not text.endswith(".") else text
    if kind == "enum":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        near = nearest(str(error["input"]), choices, 1)
        return f"must be one of {', '.join(choices)}." + (f" Did you mean {near[0]}?" if near else "")
    if kind == "string_pattern_mismatch":
        return f"must look like {show(all_keys()[key].default) if key in all_keys() else context['pattern']}."
    if kind == "string_type":
        return f'must be text; put it in quotes: "{error["input"]}".'
    return {
        "greater_than": "must be more than {gt}.",
        "greater_than_equal": "must be {ge} or more.",
        "less_than": "must be less than {lt}.",
        "less_than_equal": "must be {le} or less.",
        "int_from_float": "must be a whole number.",
        "int_type": "must be a whole number.",
        "int_parsing": "must be a whole number.",
        "float_type": "must be a number.",
        "float_parsing": "must be a number.",
        "finite_number": "must be a finite number.",
        "bool_type": "must be true or false.",
        "bool_parsing": "must be true or false.",
        "missing": "is missing; it has no default.",
        "extra_forbidden": "there is no such key.",
    }.get(kind, f"{error['msg']}.").format(**context)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value


def _some_keys(section: str) -> str:
    names = [name for name in (*all_keys(), *sections()) if name.rpartition(".")[0] == section]
    words = [name.rpartition(".")[2] for name in names]
    return ", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")
