"""Values that expressions in a recipe have: literals and configurations.

A configuration is a call such as `run.Config(Data, seq_length=4096)`.
"""

import ast
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.config_file import ConfigValue, safe
from runbook.tools.adopt.configs.known_names import UNKNOWN, Scope, is_scalar
from runbook.tools.adopt.configs.syntax import last_name, source_of
from runbook.tools.adopt.messages import AdoptMessage

Branches = tuple[int, ...]
"""The branches around a statement."""
_CONFIG_CALLS = ("Config", "Partial")
"""Calls in nemo_run that wrap keyword arguments for another class."""
_MOST_LETTERS = 200
_MOST_VALUES = 5000
"""How many values a recipe may have. The largest public recipe we have seen has 200."""
_MOST_PART_VALUES = 300
"""How many values an object may have.

An object can be part of multiple other objects, so the number of values can grow exponentially.
"""


@dataclass(eq=False)
class OpenConfig:
    """A configuration whose changes are being read.

    The configuration is a recipe, or an object that may become part of a recipe.
    """

    recipe: str
    """Recipe name, or empty for an object."""
    function: str
    """The function that contains the call."""
    line: int
    path: Branches
    is_bridge: bool = False
    values: list[ConfigValue] = field(default_factory=list)
    is_certain: bool = True
    """Whether changes outside branches are certain to happen."""

    def add(self, value: ConfigValue, path: Branches) -> None:
        """Add a change by a statement inside the branches in `path`, which may not run."""
        if len(self.values) >= _MOST_VALUES:
            raise ParamsError(
                AdoptMessage.MANY_VALUES_OF_A_RECIPE, line=value.line, most=_MOST_VALUES
            )
        is_certain = self.is_certain and path == self.path[: len(path)]
        if is_certain or not value.known:
            self.values.append(value)
        else:
            source = f"{value.shown} (not always)"
            self.values.append(replace(value, value=source, known=False))

    def take_part(self, call: ast.Call, values: Iterator[ConfigValue]) -> None:
        """Read the values in the object created by a call.

        If there are too many values, use the source text of the call instead.
        """
        self.values = list(itertools.islice(values, _MOST_PART_VALUES + 1))
        if len(self.values) > _MOST_PART_VALUES:
            self.values = [ConfigValue("", source_of(call), call.lineno, known=False)]

    def safe_values(self) -> tuple[ConfigValue, ...]:
        """Return the values without secrets or control characters."""
        return tuple(map(safe, self.values))


@dataclass(frozen=True)
class HeldConfig:
    """What a variable holds: a configuration, or part of one."""

    config: OpenConfig
    prefix: str = ""
    """Dotted key for the part, or empty for the whole configuration."""

    def part(self, path: str) -> "HeldConfig":
        """Return the value of an attribute."""
        return HeldConfig(self.config, joined(self.prefix, path))

    def add(self, value: ConfigValue, path: Branches) -> None:
        """Add a change to the part."""
        self.config.add(under(self.prefix, value), path)


Bindings = Mapping[str, Sequence[HeldConfig]]
"""The configurations that each variable may hold.

A variable may hold several if it is set in different branches.
"""
Follow = Callable[[ast.Call], Sequence[HeldConfig] | None]
"""Reads the function run by a call, and returns its result."""


def object_in(held_configs: Sequence[HeldConfig]) -> OpenConfig | None:
    """Return the object that a variable holds, or None if it does not hold exactly one.

    If an object became part of a recipe, the variable also holds that part.
    """
    objects = [binding for binding in held_configs if not binding.config.recipe]
    is_part_elsewhere = all(binding.prefix for binding in held_configs if binding.config.recipe)
    if len(objects) != 1 or objects[0].prefix or not is_part_elsewhere:
        return None
    return objects[0].config


@dataclass
class ValueReader:
    """Evaluates expressions if the values of some names are known."""

    scope: Scope
    bindings: Bindings
    plain: Container[str]
    """Functions in the file that can be followed."""
    follow: Follow
    used: list[tuple[str, str]] = field(default_factory=list)
    """Variables that became part of a configuration, each with the dotted key for the part."""

    def values(self, name: str, node: ast.expr) -> Iterator[ConfigValue]:
        """Yield the value of an expression, or each keyword argument in a configuration."""
        if len(name) > _MOST_LETTERS:
            raise ParamsError(
                AdoptMessage.MANY_LETTERS_OF_A_KEY, line=node.lineno, most=_MOST_LETTERS
            )
        if isinstance(node, ast.IfExp):
            node = self._chosen(node)

        value = self.scope.value(node)
        if _is_plain(value):
            plain = list(value) if isinstance(value, tuple) else value
            yield ConfigValue(name, plain, node.lineno)
        elif isinstance(node, ast.Name) and node.id in self.bindings:
            yield from self._values_of_variable(name, node)
        elif isinstance(node, ast.Call):
            yield from self._values_of_call(name, node)
        else:
            yield ConfigValue(name, source_of(node), node.lineno, known=False)

    def keywords(self, call: ast.Call, prefix: str) -> Iterator[ConfigValue]:
        """Yield a call's keyword arguments, and recursively those of configurations among them."""
        for keyword in call.keywords:
            if keyword.arg is None:
                source = f"**{source_of(keyword.value)}"
                yield ConfigValue(f"line {call.lineno}", source, call.lineno, known=False)
            else:
                yield from self.values(joined(prefix, keyword.arg), keyword.value)

    def _chosen(self, node: ast.IfExp) -> ast.expr:
        """Return the branch that a conditional expression takes.

        If the test in the expression is unknown, return the whole expression.
        """
        truth = self.scope.truth(node.test)
        if truth is None:
            return node
        return node.body if truth else node.orelse

    def _values_of_variable(self, name: str, node: ast.Name) -> Iterator[ConfigValue]:
        """Yield the values in the single object that a variable holds."""
        held_object = object_in(self.bindings[node.id])
        if held_object is None:
            yield ConfigValue(name, source_of(node), node.lineno, known=False)
            return
        self.used.append((node.id, name))
        for value in list(held_object.values):
            yield under(name, value)

    def _values_of_call(self, name: str, call: ast.Call) -> Iterator[ConfigValue]:
        """Yield the values in a configuration, or in the result of a function in the file."""
        returned = self.follow(call)
        if returned is not None:
            for binding in returned:
                yield from [under(name, value) for value in binding.config.values]
            return

        positional = call.args[1:] if _is_config(call) else call.args
        yield ConfigValue(joined(name, "_target_"), source_of(_target(call)), call.lineno)
        for argument in positional:
            source = source_of(argument)
            yield ConfigValue(joined(name, "args"), source, call.lineno, known=False)
        yield from self.keywords(call, name)


def class_of(node: ast.expr) -> str:
    """Return the class of a configuration: `Data` for `Data(...)` or `run.Config(Data, ...)`."""
    return last_name(_target(node)) if isinstance(node, ast.Call) else ""


def _is_config(call: ast.Call) -> bool:
    """Return whether a call comes from nemo_run and wraps the arguments for another class."""
    return last_name(call.func) in _CONFIG_CALLS and bool(call.args)


def _target(call: ast.Call) -> ast.expr:
    """Return the class that a call creates, or whose arguments it wraps."""
    return call.args[0] if _is_config(call) else call.func


def joined(prefix: str, name: str) -> str:
    """Join two parts of a dotted key, either of which may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def under(prefix: str, value: ConfigValue) -> ConfigValue:
    """Return a value with a prefix before its key.

    A statement is named by its line, and this name stays unchanged.
    """
    if value.name.startswith("line "):
        return value
    return replace(value, name=joined(prefix, value.name))


def _is_plain(value: Any) -> bool:
    return value is not UNKNOWN and (is_scalar(value) or isinstance(value, list | tuple))
