"""Layers that values come from: built-in, site, run file, variant, notebook, --set.

Each layer is checked, and then placed on top of the layers before it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from runbook.core.errors import ParamsError
from runbook.core.nearest_names import nearest_names
from runbook.core.visible_text import find_hidden
from runbook.params.messages import ParamsMessage
from runbook.params.problems import Problem, hidden_problem, show, statement_of, token_problem
from runbook.params.schema.keys import EXCLUSIVE, all_keys, full_path, sections
from runbook.params.schema.run_file import Run
from runbook.params.schema.value_types import BrokenRuleError, is_name
from runbook.params.secrets import find_token
from runbook.params.unknown_keys import explain_unknown_job_key, explain_unknown_key, some_keys
from runbook.params.yaml12 import YamlDocument, nest, read_mapping, read_scalar
from runbook.plan_file.diagnostics import Statement

GIVEN_BEFORE = "given before"
"""The layer with the values that the user gave when the run folder was created."""
GIVEN = (GIVEN_BEFORE, "notebook", "command line")
"""Layers with values given by the user. They are on top of the files.

The files themselves are searched for secrets as text.
"""

TEXTS = ("notebook", "command line")
"""Layers in which a number may be text: `key=value` arguments of --set, and numbers such as
6e-5, which YAML 1.1 reads as text."""

SCALED_DOWN = "rehearsal"
"""The layer that adapts a run file to a different site.

Origins in this layer state the value from the run file, and why it was changed.
"""
Where = Callable[[tuple[str, ...]], str]


@dataclass(frozen=True)
class Origin:
    """The value that a layer has for a key, and where it was written."""

    layer: str
    """built-in, site, run file, variant, given before, notebook or command line."""
    where: str
    """params/local.yaml:12, or a description of how it was given."""
    value: Any

    def __str__(self) -> str:
        if self.layer in ("built-in", "run file"):
            return self.where
        return f"{self.where} ({self.layer})"


@dataclass
class Layer:
    """The values set by a single source, by dotted key."""

    name: str
    leaves: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(
        self,
        key: str,
        where: str,
        rule: Statement,
        value: Any = ...,
    ) -> None:
        """Record an unusable value."""
        self.problems.append(Problem(key, where, rule, value))

    def take(
        self,
        values: Mapping[str, object],
        where: Where,
        path: tuple[str, ...] = (),
    ) -> Layer:
        """Add the values of a nested mapping, and record every key that the schema does not have."""
        written: dict[str, str] = {}
        for word, value in values.items():
            key_path = (*path, str(word))
            name = self._known_name(key_path, where(key_path), value)
            if name in written:
                rule = ParamsMessage.SAME_MEANING.of(written=written[name])
                self.report(".".join(key_path), where(key_path), rule)
            elif name:
                written[name] = str(word)
                self._take_one(name, value, where, key_path)

        return self

    def _take_one(
        self,
        name: str,
        value: Any,
        where: Where,
        written: tuple[str, ...],
    ) -> None:
        if name in sections():
            if isinstance(value, Mapping):
                self.take(value, where, written)
            elif value is not None:
                # A section whose lines are all commented out is empty.
                rule = ParamsMessage.IS_A_SECTION.of(name=some_keys(name))
                self.report(name, where(written), rule, value)
        elif isinstance(value, Mapping | list | tuple):
            self.report(name, where(written), ParamsMessage.ONE_VALUE.of(), value)
        elif value is None:
            self.report(
                name,
                where(written),
                ParamsMessage.NO_VALUE.of(),
            )
        else:
            if (
                self.name in TEXTS
                and isinstance(value, str)
                and value
                and all_keys()[name].kind is not str
            ):
                value = read_scalar(value)

            self.leaves[name] = Origin(
                self.name, where(written), value
            )  # The later key takes precedence

    def _known_name(
        self,
        path: tuple[str, ...],
        where: str,
        value: Any,
    ) -> str:
        """Return the key or section that a path refers to.

        If there is no such key or section, report the path and return an empty string.
        """
        try:
            ours = full_path(path)
        except ValueError as error:
            self.report(".".join(path), where, explain_unknown_job_key(path, value, error))
            return ""

        name = ".".join(ours)
        if "." in path[-1] and name in all_keys():
            section, _, last = name.rpartition(".")
            rule = ParamsMessage.DOT_IN_KEY.of(last=last, section=section)
            self.report(name, where, rule, value)
        elif name in all_keys() or name in sections():
            return name
        else:
            self.unknown_key(ours, where, value)

        return ""

    def unknown_key(
        self,
        path: tuple[str, ...],
        where: str,
        value: Any = ...,
    ) -> None:
        """Record an unknown key, with the valid key that the user probably meant."""
        # The message does not repeat a whole section.
        shown_value = ... if isinstance(value, Mapping) else value
        self.report(".".join(path), where, explain_unknown_key(path), shown_value)


def document_layer(name: str, document: YamlDocument) -> Layer:
    """Return a layer with the values from a file."""
    return Layer(name).take(document.values, document.origin)


@dataclass
class LayerStack:
    """All layers on top of each other. Each value has a chain of origins."""

    chains: dict[str, list[Origin]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key in all_keys().values():
            if key.default is not ...:
                self.chains[key.name] = [Origin("built-in", "built-in", key.default)]

    def lay(self, layer: Layer) -> None:
        """Put a layer on top. Its values are checked, and take precedence over those below."""
        self.problems += layer.problems
        for meaning, group in EXCLUSIVE.items():
            self._clear(layer, meaning, group)
        for key, origin in layer.leaves.items():
            self.chains.setdefault(key, []).append(origin)
            if isinstance(origin.value, str):
                self._search_text(layer, key, origin)

        try:
            Run.model_validate(self.nested())
        except ValidationError as errors:
            for error in errors.errors(include_url=False):
                key = ".".join(map(str, error["loc"]))
                if key in layer.leaves:
                    origin = layer.leaves[key]
                    self.problems.append(
                        Problem(key, origin.where, rule_of(error, key), origin.value)
                    )

    def _search_text(
        self,
        layer: Layer,
        key: str,
        origin: Origin,
    ) -> None:
        if layer.name in GIVEN and find_token(origin.value):
            self.problems.append(token_problem(key, origin.where))
        character = find_hidden(origin.value)
        if character:
            self.problems.append(hidden_problem(key, origin.where, character))

    def origin(self, key: str) -> Origin | None:
        """Return where the current value comes from, or None if no layer has set the key."""
        return self.chains[key][-1] if self.chains.get(key) else None

    def value(self, key: str) -> Any:
        """Return the current value, or None if no layer has set the key."""
        origin = self.origin(key)
        return origin.value if origin else None

    def nested(self) -> dict[str, object]:
        """Return the resulting values, nested as in a run file."""
        return nest({key: chain[-1].value for key, chain in self.chains.items()})

    def _clear(
        self,
        layer: Layer,
        meaning: str,
        group: tuple[str, ...],
    ) -> None:
        """If the layer sets a key in a group, let 0 replace earlier values for the other keys."""
        stated = []
        for key in group:
            if key in layer.leaves and layer.leaves[key].value not in (0, 0.0, "0"):
                stated.append(key)

        if not stated:
            return
        if len(stated) > 1:
            wheres = dict.fromkeys(layer.leaves[key].where for key in stated)
            rule = ParamsMessage.ONE_OF_A_GROUP.of(number_of_stated=len(stated), meaning=meaning)
            self.problems.append(Problem(" and ".join(stated), ", ".join(wheres), rule))

        where = ParamsMessage.GIVEN_INSTEAD.fill(where=layer.leaves[stated[0]].where, key=stated[0])
        for key in group:
            if key not in layer.leaves and self.value(key) not in (None, 0, 0.0):
                self.chains[key].append(Origin(layer.name, where, 0))


_RULES = {
    "bool_type": ParamsMessage.NOT_A_TRUTH_VALUE,
    "missing": ParamsMessage.WITHOUT_DEFAULT,
}


def rule_of(error: Any, key: str, names: Sequence[str] = ()) -> Statement:
    """Convert a pydantic error to a rule, and keep the pydantic wording if it is clear enough.

    `names` are the keys that may be meant by an unknown key.
    """
    kind = str(error["type"])
    context = error.get("ctx") or {}
    if kind == "value_error" and isinstance(context["error"], BrokenRuleError):
        return context["error"].rule
    if kind == "value_error":
        return ParamsMessage.BROKEN_RULE.of(text=str(context["error"]).removesuffix("."))
    if kind == "string_pattern_mismatch":
        example = context["pattern"]
        if key in all_keys():
            example = show(all_keys()[key].default)
        return ParamsMessage.NOT_THIS_FORM.of(example=example)

    if kind == "string_type":
        return ParamsMessage.NOT_TEXT.of(value=error["input"])
    if kind == "extra_forbidden":
        near = nearest_names(str(error["loc"][-1]), list(names), 1)
        if near:
            return ParamsMessage.UNKNOWN_KEY.of(near=near[0])
        return ParamsMessage.UNKNOWN_KEY_ALONE.of()
    if kind in _RULES:
        return _RULES[kind].of()

    allowed_words = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    near = nearest_names(str(error["input"]), allowed_words, 1)
    text = error["msg"].replace("Input should be", "must be")
    if near:
        return ParamsMessage.NEARLY_A_WORD.of(text=text, near=near[0])
    return ParamsMessage.BROKEN_RULE.of(text=text, kind=kind, **context)


def take_name(set_words: Sequence[str], problems: list[Problem]) -> tuple[str, list[str]]:
    """Return the NAME from a word `as=NAME`, and the remaining words.

    `runbook run --as NAME` passes such a word to the notebooks.

    >>> take_name(["training.iterations=10", "as=quick"], [])
    ('quick', ['training.iterations=10'])
    """
    last_name = ""
    other_words = []
    rule = ParamsMessage.NOT_A_SET_NAME.of()
    for word in set_words:
        if not word.startswith("as="):
            other_words.append(word)
            continue

        last_name = word.removeprefix("as=").strip()
        if not is_name(last_name):
            problems.append(Problem("as", f"--as {last_name}", rule, last_name))

    return last_name, other_words


def words_layer(set_words: Sequence[str]) -> Layer:
    """Make a layer from `key=value` arguments. The last argument for a key takes precedence."""
    layer = Layer("command line")
    for word in set_words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if equals and key:
            _take_word(layer, key, text, f"--set {word}")
        else:
            layer.report(word, "--set", ParamsMessage.NOT_KEY_AND_VALUE.of())

    return layer


def _take_word(
    layer: Layer,
    key: str,
    text: str,
    where: str,
) -> None:
    path = tuple(key.split("."))
    # This error is reported when the key is added, together with the phases that do submit jobs.
    with contextlib.suppress(ValueError):
        path = full_path(path)

    key = ".".join(path)
    value: Any = text
    if key in sections():
        try:
            value = read_mapping(f"value: {text or '{}'}", where).values["value"]
        except ParamsError as error:
            layer.report(key, where, statement_of(error))
            return
    elif key in all_keys() and len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        # One pair of quotes is removed.
        value = text[1:-1]
    elif key not in all_keys() and path[0] != "jobs":
        layer.unknown_key(path, where)
        return

    layer.take(nest({key: value}), lambda _: where)
