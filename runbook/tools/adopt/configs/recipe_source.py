"""Reads recipes in Python files: each recipe call, its keyword arguments and later changes.

The file is parsed but never executed. Values known only at run time are kept as source text, and so
are statements that use a recipe in a way adopt does not understand.
"""

import ast
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.file_functions import functions_of
from runbook.tools.adopt.configs.known_names import Scope, bound_names
from runbook.tools.adopt.configs.recipe_reader import (
    MOST_CALLS,
    NAMED_AFTER_FUNCTION,
    PRETRAIN_COMMON,
    TRAINER_CONFIG,
    FileContext,
    Makers,
    RecipeReader,
)
from runbook.tools.adopt.configs.recipe_values import OpenConfig
from runbook.tools.adopt.configs.shared_recipes import FunctionReading, read_shared_recipes
from runbook.tools.adopt.configs.syntax import Function, dotted, source_of

_MOST_NODES = 60_000
"""How many nodes a syntax tree may have, enough for about 5,000 lines."""
_DEEPEST_FUNCTION = 20
_MOST_COPIES = 5


@dataclass(frozen=True)
class RecipeCall:
    """A call to a recipe, and the changes that the file makes to the result."""

    recipe: str
    """Recipe name: llama3_8b."""
    function: str
    """The function that contains the call, or '' at module level."""
    line: int
    values: tuple[ConfigValue, ...]
    is_bridge: bool
    """Whether the recipe is for Megatron Bridge, not for NeMo."""

    @property
    def is_torchtitan(self) -> bool:
        """Whether the call creates a torchtitan configuration, named after its function."""
        return self.recipe == TRAINER_CONFIG


def recipe_calls(text: str, file_name: str) -> list[RecipeCall]:
    """Return every call to a recipe in a Python file, in order.

    Raise `ParamsError` if the file is not valid Python.
    """
    with refused_if_unreadable(file_name):
        calls = [_as_recipe_call(config) for config in _read_file(parsed_file(text, file_name))]

    if len(calls) > MOST_CALLS:
        raise ParamsError(
            f"{file_name} calls {len(calls):,} recipes. At most {MOST_CALLS} are read: give a "
            "file with one."
        )
    return sorted(calls, key=lambda call: call.line)


@contextmanager
def refused_if_unreadable(file_name: str) -> Iterator[None]:
    """Raise `ParamsError` if a file cannot be read as Python."""
    try:
        yield
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        reason = visible(mask(str(error)))[:200]
        raise ParamsError(f"{file_name} cannot be read as Python: {reason}.") from error


def parsed_file(text: str, file_name: str) -> ast.Module:
    """Parse a Python file to a syntax tree.

    Raise `ParamsError` if the file is too long for a recipe.
    """
    tree = _parsed(text)
    if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
        raise ParamsError(
            f"{file_name} is too long for a recipe: over {_MOST_NODES:,} expressions."
        )
    return tree


def _parsed(text: str) -> ast.Module:
    """Parse a Python file.

    Suppress warnings about strings in the file, because only its author can fix them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def default_factory(text: str) -> str:
    """Return the function that a file names as its default recipe, or an empty string."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.keyword) and node.arg == "default_factory":
            return dotted(node.value)
    return ""


def _as_recipe_call(config: OpenConfig) -> RecipeCall:
    recipe = config.recipe
    if recipe == PRETRAIN_COMMON:  # For example llama3_8b_pretrain_2gpu_h100_bf16_config
        recipe = config.function.lstrip("_").partition("_pretrain")[0]
    return RecipeCall(
        recipe,
        config.function,
        config.line,
        config.safe_values(),
        config.is_bridge,
    )


@dataclass(frozen=True)
class _Reading:
    """What was found by reading a file once."""

    calls: list[OpenConfig]
    """Calls to recipes."""
    callers: list[OpenConfig]
    """Calls to functions used to create recipes."""


def _read_file(tree: ast.Module) -> list[OpenConfig]:
    """Return the calls to recipes at module level and in functions.

    The first pass finds the functions that create recipes; the second finds what their callers
    change.
    """
    makers = _makers(_read_once(tree, {}).calls)
    reading = _read_once(tree, makers)
    for _ in range(_MOST_COPIES):
        # A function that starts from the configuration in another function also creates one
        more_makers = _copying_functions(reading.callers, makers)
        if not more_makers:
            break
        makers = makers | dict.fromkeys(more_makers, True)
        reading = _read_once(tree, makers)

    copies = [caller for caller in reading.callers if makers[caller.recipe]]
    for caller in reading.callers:
        if caller not in copies:
            _count_for_maker(caller, reading.calls)
    configs = reading.calls + _changed_copies(reading.calls, copies)
    rewriting = _rewriting_calls(tree)
    for config in configs:
        config.values += rewriting
    return configs


def _rewriting_calls(tree: ast.Module) -> list[ConfigValue]:
    """Return each call, by line, that may set any name or change any recipe."""
    calls: list[ConfigValue] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or dotted(node.func) not in _REWRITES:
            continue
        takes_object = dotted(node.func) == "vars" and node.args
        if not takes_object and len(calls) < _MOST_REWRITING:
            name = f"line {node.lineno}"
            calls.append(ConfigValue(name, source_of(node), node.lineno, known=False))
    return calls


_REWRITES = ("exec", "eval", "globals", "locals", "vars", "execfile", "runpy.run_path")
_MOST_REWRITING = 20
"""Maximum number of calls to list. A single one is enough to reject the run file."""


def _count_for_maker(caller: OpenConfig, calls: Sequence[OpenConfig]) -> None:
    """Add changes made by a caller to the recipes in the function that it calls."""
    for call in calls:
        if call.function == caller.recipe:
            call.values += caller.values


def _makers(calls: Sequence[OpenConfig]) -> dict[str, bool]:
    return {call.function: call.recipe in NAMED_AFTER_FUNCTION for call in calls if call.function}


def _copying_functions(callers: Sequence[OpenConfig], makers: Makers) -> list[str]:
    """Return functions that start from what a maker returns and are not known as makers yet."""
    copying = [caller.function for caller in callers if makers[caller.recipe]]
    return [name for name in copying if name and name not in makers]


def _changed_copies(calls: Sequence[OpenConfig], copies: Sequence[OpenConfig]) -> list[OpenConfig]:
    """Return a configuration for each function that calls another maker and changes its result.

    Each call to such a function returns a new configuration. Functions can form a chain, where each
    starts from what the previous one returned.
    """
    by_function = {call.function: call for call in calls if call.recipe in NAMED_AFTER_FUNCTION}
    changed: list[OpenConfig] = []
    for copy in copies:
        base = by_function.get(copy.recipe)
        if base is None or not copy.function or copy.function in by_function:
            continue
        config = OpenConfig(base.recipe, copy.function, copy.line, copy.path, base.is_bridge)
        config.values = [*base.values, *copy.values]
        by_function[copy.function] = config
        changed.append(config)
    return changed


def _read_once(tree: ast.Module, makers: Makers) -> _Reading:
    """Read the module level, each function, and the changes they make to each other's recipes."""
    context = FileContext(functions_of(tree), makers)
    names = Scope()
    top = RecipeReader(context, "", names, names)
    top.read(tree.body, ())

    known_at_top = context.functions.names_at_top(top.scope)
    readings = [FunctionReading(tree, top)]
    _read_functions(tree, known_at_top, known_at_top, context, readings)
    read_shared_recipes(tree, known_at_top, context, readings)
    calls: list[OpenConfig] = []
    callers: list[OpenConfig] = []
    for reading in readings:
        calls += reading.reader.calls
        callers += reading.reader.callers
    return _Reading(calls, callers)


def _read_functions(
    node: ast.AST,
    scope: Scope,
    top: Scope,
    context: FileContext,
    readings: list[FunctionReading],
    depth: int = 0,
) -> None:
    """Read each function below a node. Inner functions do not see the outer functions' names."""
    if depth > _DEEPEST_FUNCTION:
        raise ParamsError(f"functions nested more than {_DEEPEST_FUNCTION} deep are not a recipe.")

    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            _read_functions(child, scope, top, context, readings, depth)
            continue
        calls = context.functions.calls.get(child.name, [])
        reader = RecipeReader(context, child.name, scope.inside(child, calls), top)
        reader.read(child.body, ())
        readings.append(FunctionReading(child, reader))

        outer = Scope(dict(scope.names))
        outer.forget(bound_names([child]))
        outer.forget(item.arg for item in ast.walk(child) if isinstance(item, ast.arg))
        _read_functions(child, outer, top, context, readings, depth + 1)
