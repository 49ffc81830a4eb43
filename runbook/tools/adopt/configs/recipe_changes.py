"""Changes that one statement makes to a recipe.

A statement can assign a value, add an element to a list, or call a known function.
"""

import ast
from collections.abc import Iterator, Sequence

from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.recipe_values import ValueReader, class_of, joined
from runbook.tools.adopt.configs.syntax import (
    dotted,
    is_passive,
    is_truth_value,
    names_in,
    path_in,
    source_of,
    uses_whole,
)

_HELPERS = ("set_primary_perf_configs",)
"""Functions used to change a recipe through keyword arguments listed in the key table."""
_STARTERS = ("run.run", "nemo_run.run", "run.cli.main", "pretrain", "llm.pretrain")
"""Functions that start training a recipe and do not change it."""
_STARTER_ARGUMENTS = frozenset(
    (
        "executor",
        "name",
        "direct",
        "detach",
        "dryrun",
        "tail_logs",
        "log_level",
        "forward_step_func",
    )
)
_HARMLESS = ("print", "pprint", "len", "type", "repr", "str")
_LOGGERS = ("logging.", "logger.", "log.")
_LIST_METHODS = ("append", "extend", "insert")
_READABLE = (
    "trainer.num_nodes",
    "trainer.devices",
    "trainer.max_steps",
    "data.global_batch_size",
    "data.micro_batch_size",
    "data.seq_length",
    "log.name",
)
"""Recipe attributes that are numbers or names.

A statement that only reads them, for example to create an executor, changes nothing.
"""


def changes_of(variable: str, statement: ast.AST, reader: ValueReader) -> list[ConfigValue] | None:
    """Return the changes that a statement makes to a configuration, or None if they are unclear."""
    if _changes_nothing(variable, statement):
        return []
    if isinstance(statement, ast.AugAssign):
        return _augmented(variable, statement)
    if isinstance(statement, ast.Assign):
        return _assigned(statement.targets, statement.value, variable, reader)
    if isinstance(statement, ast.AnnAssign) and statement.value:
        return _assigned([statement.target], statement.value, variable, reader)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _called(statement.value, variable, reader)
    return None


def starts_with(statement: ast.stmt, recipe: ast.Call) -> bool:
    """Return whether a statement only starts training the recipe it creates."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    has_plugins = any(keyword.arg not in _STARTER_ARGUMENTS for keyword in call.keywords)
    return recipe in arguments and not has_plugins and _is_starter(dotted(call.func), call)


def is_readable(name: str) -> bool:
    """Return whether part of a recipe is a number or a name, and therefore immutable."""
    return name in _READABLE


def _changes_nothing(variable: str, statement: ast.AST) -> bool:
    """Return whether a statement only reads values."""
    if isinstance(statement, ast.Return | ast.Expr) and is_passive(statement.value):
        return True
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, ast.stmt) and is_truth_value(statement):
        return True
    return _reads_numbers(statement, variable)


def _reads_numbers(statement: ast.AST, variable: str) -> bool:
    """Return whether a statement only reads numbers from the recipe."""
    leaves = {f"{variable}.{name}" for name in _READABLE}
    uses = 0
    reads = 0
    for item in ast.walk(statement):
        if isinstance(item, ast.Name | ast.Attribute):
            name = dotted(item)
            uses += name == variable
            reads += name in leaves and isinstance(item.ctx, ast.Load)
    return uses == reads


def _augmented(variable: str, statement: ast.AugAssign) -> list[ConfigValue] | None:
    """Return the change made by `recipe.data.global_batch_size *= 2`, with an unknown result."""
    name = path_in(statement.target, variable)
    if not name:
        return None
    return [ConfigValue(name, source_of(statement), statement.lineno, known=False)]


def _assigned(
    targets: Sequence[ast.expr], value: ast.expr, variable: str, reader: ValueReader
) -> list[ConfigValue] | None:
    """Return the changes that an assignment makes to attributes of the variable.

    Return None if the assignment does anything else.
    """
    names = [path_in(target, variable) for target in targets]
    if not all(names) or _is_given_away(value, variable, reader):
        return None
    changes: list[ConfigValue] = []
    for name in names:
        changes += reader.values(name, value)
    return changes


def _is_given_away(value: ast.expr, variable: str, reader: ValueReader) -> bool:
    """Return whether the whole recipe is passed to a function that cannot be followed."""
    if not isinstance(value, ast.Call) or not uses_whole([value], variable):
        return False
    return dotted(value.func) not in reader.plain


def _called(call: ast.Call, variable: str, reader: ValueReader) -> list[ConfigValue] | None:
    """Return the changes that a function call makes, or None if the function is unknown."""
    function = dotted(call.func)
    if function in _HARMLESS or function.startswith(_LOGGERS):
        return []
    path, _, method = path_in(call.func, variable).rpartition(".")
    if path and method in _LIST_METHODS:
        return _added(f"{path}.{method}", call, variable, reader)
    if variable in names_in([call.func]):
        return None
    return _given_to(function, call, variable, reader)


def _added(
    name: str, call: ast.Call, variable: str, reader: ValueReader
) -> list[ConfigValue] | None:
    """Return the element that a call adds to a list, as in `recipe.trainer.callbacks.append(x)`."""
    if uses_whole(call.args, variable) or call.keywords or not call.args:
        return None
    # Each element gets its own key, so that a later element does not replace an earlier one
    key = f"{name}_{call.lineno}"
    element = call.args[-1]
    items = element.elts if isinstance(element, ast.List | ast.Tuple) else [element]
    if len(items) == 1:
        return list(reader.values(key, items[0]))
    changes: list[ConfigValue] = []
    for number, item in enumerate(items):
        changes += reader.values(f"{key}_{number}", item)
    return changes


def _given_to(
    function: str, call: ast.Call, variable: str, reader: ValueReader
) -> list[ConfigValue] | None:
    """Return the changes that a function makes when it receives the whole recipe."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    is_whole = [dotted(argument) == variable for argument in arguments]
    if not any(is_whole):
        return None
    if _is_starter(function, call):
        return list(_arguments_of_starter(call, variable))

    last = function.rpartition(".")[2]
    is_first_alone = len(call.args) == 1 and is_whole[0]
    if last in _HELPERS and is_first_alone:
        return list(reader.keywords(call, last))
    return None


def _is_starter(function: str, call: ast.Call) -> bool:
    """Return whether a function starts training: `run.run`, `pretrain`, `experiment.add`."""
    last = function.rpartition(".")[2]
    has_executor = any(keyword.arg == "executor" for keyword in call.keywords)
    if last in ("add", "run") and has_executor:
        return True
    return function in _STARTERS or last == "pretrain"


def _arguments_of_starter(call: ast.Call, variable: str) -> Iterator[ConfigValue]:
    """Yield arguments to a starter that may change training, such as its plugins."""
    for keyword in call.keywords:
        if keyword.arg in _STARTER_ARGUMENTS or dotted(keyword.value) == variable:
            continue
        name = f"run.{keyword.arg}"
        if isinstance(keyword.value, ast.List | ast.Tuple):
            yield from _plugins(name, keyword.value.elts)
        else:
            source = source_of(keyword.value)
            yield ConfigValue(name, source, call.lineno, known=False)


def _plugins(name: str, items: Sequence[ast.expr]) -> Iterator[ConfigValue]:
    """Yield each plugin in a list under its class name."""
    for item in items:
        plugin = class_of(item)
        yield ConfigValue(joined(name, plugin), source_of(item), item.lineno, known=False)
