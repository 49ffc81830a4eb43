"""Handles recipes that several functions can reach, through an attribute or a global name."""

import ast
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.known_names import Scope, bound_names
from runbook.tools.adopt.configs.recipe_reader import MOST_CALLS, FileContext, RecipeReader
from runbook.tools.adopt.configs.recipe_values import HeldConfig, OpenConfig
from runbook.tools.adopt.configs.syntax import (
    Function,
    assigned_targets,
    global_names,
    names_in,
)
from runbook.tools.adopt.messages import AdoptMessage


@dataclass(frozen=True)
class FunctionReading:
    """A function in a file, or the module level, together with its reader."""

    node: Function | ast.Module
    reader: RecipeReader


@dataclass(frozen=True)
class _SharedRecipe:
    """A recipe, and the name under which several functions use it."""

    name: str
    held_configs: list[HeldConfig]
    binder: Function | ast.Module
    """The function, or the module level, that binds the recipe to its name."""

    def reaches(self, function: Function) -> bool:
        """Return whether a function may change the recipe and has not been read yet.

        Module-level statements after the recipe have already been read.
        """
        return self.binder is not function and bool(self.unread_in(function))

    def unread_in(self, function: Function) -> list[HeldConfig]:
        """Return the configurations that a function may change in ways not read yet."""
        if not isinstance(self.binder, ast.Module):
            return self.held_configs
        return [held for held in self.held_configs if held.config.line > function.lineno]


def read_shared_recipes(
    tree: ast.Module, top: Scope, context: FileContext, readings: Sequence[FunctionReading]
) -> None:
    """Add the changes that functions make to recipes created elsewhere in the file.

    It is unknown when these functions are called, so these changes are never certain.
    """
    shared = [recipe for reading in readings for recipe in _recipes_of(reading)]
    if not shared:
        return
    _check_number(shared)
    configs = {held.config for recipe in shared for held in recipe.held_configs}
    num_values = {config: len(config.values) for config in configs}
    for function in _outer_functions(tree):
        scope = top.inside(function, context.functions.calls.get(function.name, []))
        bindings = _bindings_in(function, shared)
        _read_later(function.name, function.body, scope, top, context, bindings)

    made_inside = [recipe for recipe in shared if recipe.binder is not tree]
    body = [item for item in tree.body if not _is_before_calls(item)]
    bindings = _merged_bindings(made_inside, names_in(body))
    _read_later("", body, Scope(), top, context, bindings)
    for config, number in num_values.items():
        _drop_repeated(config, number)


def _check_number(shared: Sequence[_SharedRecipe]) -> None:
    """Raise `ParamsError` if a name may refer to too many recipes.

    Every change would be added to each list.
    """
    num_recipes = Counter[str]()
    for recipe in shared:
        num_recipes[recipe.name] += len(recipe.held_configs)
        if num_recipes[recipe.name] > MOST_CALLS:
            raise ParamsError(
                AdoptMessage.MANY_RECIPES_OF_A_NAME, most=MOST_CALLS, name=recipe.name[:50]
            )


def _recipes_of(reading: FunctionReading) -> Iterator[_SharedRecipe]:
    """Yield the recipes in a function that other functions can reach."""
    outer_names = global_names(reading.node)
    for name, held_configs in reading.reader.bindings.items():
        is_shared = "." in name or name in outer_names or isinstance(reading.node, ast.Module)
        if name and is_shared and any(held.config.recipe for held in held_configs):
            yield _SharedRecipe(name, held_configs, reading.node)


def _outer_functions(node: ast.AST) -> Iterator[Function]:
    """Yield the functions that are not inside another function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        else:
            yield from _outer_functions(child)


def _bindings_in(
    function: Function, shared: Sequence[_SharedRecipe]
) -> dict[str, list[HeldConfig]]:
    """Return the shared recipes used in a function through names that it does not define."""
    own_names = set(bound_names(function.body)) - global_names(function)
    own_names |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    names = names_in([function]) - own_names
    bindings: dict[str, list[HeldConfig]] = {}
    for recipe in shared:
        if recipe.name in names and recipe.reaches(function):
            bindings.setdefault(recipe.name, []).extend(recipe.unread_in(function))
    return bindings


def _is_before_calls(statement: ast.stmt) -> bool:
    """Return whether a module-level statement leaves the recipes that functions use unchanged.

    For example, `recipe = None` only declares the name.
    """
    if isinstance(statement, Function | ast.ClassDef):
        return True
    is_literal = isinstance(getattr(statement, "value", None), ast.Constant)
    return is_literal and all(isinstance(item, ast.Name) for item in assigned_targets(statement))


def _merged_bindings(
    shared: Sequence[_SharedRecipe], names: Container[str]
) -> dict[str, list[HeldConfig]]:
    bindings: dict[str, list[HeldConfig]] = {}
    for recipe in shared:
        if recipe.name in names:
            bindings.setdefault(recipe.name, []).extend(recipe.held_configs)
    return bindings


def _read_later(
    name: str,
    body: Sequence[ast.stmt],
    scope: Scope,
    top: Scope,
    context: FileContext,
    bindings: dict[str, list[HeldConfig]],
) -> None:
    """Read the changes that statements make to shared recipes, as if they might not run."""
    if bindings:
        reader = RecipeReader(context, name, scope, top, bindings=bindings)
        reader.read(body, (next(context.branches),))


def _drop_repeated(config: OpenConfig, number: int) -> None:
    """Drop later values in a configuration that only repeat one of the first `number` values."""
    earlier = config.values[:number]
    known = {(value.line, value.name, repr(value.value)) for value in earlier}
    for value in config.values[number:]:
        if (value.line, value.name, repr(value.value)) not in known:
            earlier.append(value)
    config.values = earlier
