"""A recipe in Python, read as text: the call of a recipe, its keyword arguments and the assignments after it.

Nothing of the file is executed. A value that only a running program knows is kept as its source text.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.config_file import ConfigValue

_UNKNOWN = object()
_CONFIG_CALLS = ("Config", "Partial")
"""nemo_run's calls that hold the keyword arguments of another class."""


@dataclass(frozen=True)
class RecipeCall:
    """One call of a recipe, and what its file changes in it."""

    recipe: str
    """The recipe's name: llama3_8b."""
    function: str
    """The function around the call; empty at the top of the file."""
    line: int
    values: tuple[ConfigValue, ...]
    is_bridge: bool
    """Whether it is Megatron Bridge's, not NeMo's."""


@dataclass
class _Scope:
    """Values of names that are known without running anything."""

    names: dict[str, Any] = field(default_factory=dict)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression of literals, known names and arithmetic."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name):
            return self.names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.BinOp):
            return self._computed(node)
        if isinstance(node, ast.Attribute):
            return self.names.get(ast.unparse(node), _UNKNOWN)
        return _UNKNOWN

    def _computed(self, node: ast.BinOp) -> Any:
        """Return the result of an arithmetic of known numbers; no powers, which may have no end."""
        left = self.value(node.left)
        right = self.value(node.right)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return _UNKNOWN
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        if isinstance(node.op, ast.Div) and right:
            return left / right
        return _UNKNOWN


def recipe_calls(text: str, file_name: str) -> list[RecipeCall]:
    """Return every call of a recipe in a Python file, in order. Raise `ParamsError` where it is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParamsError(f"{file_name} is not Python: {error}.") from error
    top = _Scope()
    _assign_constants(tree.body, top)
    calls = list(_calls_in(tree.body, "", top))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            scope = _Scope({**top.names, **_defaults(function, top)})
            calls += _calls_in(function.body, function.name, scope)
    return sorted(calls, key=lambda call: call.line)


def default_factory(text: str) -> str:
    """Return the function that a file names as its default recipe; empty where it names none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "default_factory":
            return ast.unparse(node.value)
    return ""


def _defaults(function: ast.FunctionDef, scope: _Scope) -> dict[str, object]:
    """Return the default value of each argument of a function that has one."""
    arguments = function.args.args
    defaults = function.args.defaults
    names = arguments[len(arguments) - len(defaults) :]
    pairs = [*zip(names, defaults, strict=True)]
    pairs += [
        (name, node)
        for name, node in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if node
    ]
    return {
        name.arg: value
        for name, node in pairs
        if node is not None and (value := scope.value(node)) is not _UNKNOWN
    }


def _assign_constants(body: Sequence[ast.stmt], scope: _Scope) -> None:
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            value = scope.value(statement.value)
            if isinstance(target, ast.Name) and value is not _UNKNOWN:
                scope.names[target.id] = value


def _calls_in(body: Sequence[ast.stmt], function: str, scope: _Scope) -> Iterator[RecipeCall]:
    """Yield the recipe calls of a function's statements, with the assignments that follow each."""
    statements = list(_flat(body))
    for place, statement in enumerate(statements):
        _assign_constants([statement], scope)
        assigned = _assigned_call(statement)
        if assigned is None:
            continue
        variable, call = assigned
        recipe = _recipe_of(call)
        if recipe:
            values = list(_keywords(call, "pretrain_recipe", scope))
            values += _changes(statements[place + 1 :], variable, scope)
            is_bridge = not ast.unparse(call.func).endswith("pretrain_recipe")
            yield RecipeCall(recipe, function, call.lineno, tuple(values), is_bridge)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those inside of `if`, `with` and `try`, but not of inner functions."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.With | ast.Try | ast.For):
            yield from _flat(statement.body)
            yield from _flat(getattr(statement, "orelse", []))


def _assigned_call(statement: ast.stmt) -> tuple[str, ast.Call] | None:
    """Return the variable and the call of `variable = call(...)` or `return call(...)`."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
        return "", statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.target), statement.value
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.targets[0]), statement.value
    return None


def _recipe_of(call: ast.Call) -> str:
    """Return the recipe that a call makes: `llm.llama3_8b.pretrain_recipe` or `llama3_8b_pretrain_config`."""
    parts = ast.unparse(call.func).split(".")
    if parts[-1] == "pretrain_recipe":
        return parts[-2] if len(parts) > 1 else "pretrain_recipe"
    name, is_config, _ = parts[-1].partition("_pretrain_config")
    if is_config:
        return name
    if parts[-1] == "pretrain_config":
        return parts[-2] if len(parts) > 1 else "pretrain_config"
    return ""


def _keywords(call: ast.Call, prefix: str, scope: _Scope) -> Iterator[ConfigValue]:
    """Yield the keyword arguments of a call, and those of the configurations among them."""
    for keyword in call.keywords:
        if keyword.arg is None:
            yield ConfigValue(f"{prefix}.**", _source(keyword.value), call.lineno, known=False)
        else:
            yield from _value(f"{prefix}.{keyword.arg}", keyword.value, scope)


def _value(name: str, node: ast.expr, scope: _Scope) -> Iterator[ConfigValue]:
    """Yield the value of an expression; of a configuration each of its keyword arguments."""
    value = scope.value(node)
    if value is not _UNKNOWN and _is_plain(value):
        yield ConfigValue(name, _plain(value), node.lineno)
    elif isinstance(node, ast.Call) and node.keywords:
        yield ConfigValue(f"{name}._target_", _target(node), node.lineno)
        yield from _keywords(node, name, scope)
    elif isinstance(node, ast.Call):
        yield ConfigValue(f"{name}._target_", _target(node), node.lineno)
    else:
        yield ConfigValue(name, _source(node), node.lineno, known=False)


def _target(call: ast.Call) -> str:
    """Return the class that a configuration is of, or the function that is called."""
    function = ast.unparse(call.func)
    if function.rpartition(".")[2] in _CONFIG_CALLS and call.args:
        return _source(call.args[0])
    return _source(call.func)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | tuple)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return visible(mask(value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _source(node: ast.expr) -> str:
    """Return an expression as it is written, short."""
    return visible(mask(" ".join(ast.unparse(node).split())[:80]))


def _changes(statements: Sequence[ast.stmt], variable: str, scope: _Scope) -> Iterator[ConfigValue]:
    """Yield what the statements after a recipe's call change in it."""
    if not variable:
        return
    for statement in statements:
        _assign_constants([statement], scope)
        assigned = _assigned_call(statement)
        if assigned and assigned[0] == variable and _recipe_of(assigned[1]):
            return  # another recipe takes its place
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            path = ast.unparse(statement.targets[0])
            if path.startswith(f"{variable}."):
                yield from _value(path.removeprefix(f"{variable}."), statement.value, scope)
        call = _call_with(statement, variable)
        if call is not None:
            yield from _keywords(call, ast.unparse(call.func).rpartition(".")[2], scope)


def _call_with(statement: ast.stmt, variable: str) -> ast.Call | None:
    """Return the call that a statement makes with the recipe as its first argument; None where it makes none."""
    node = getattr(statement, "value", None)
    if not isinstance(node, ast.Call) or not node.args:
        return None
    return node if ast.unparse(node.args[0]) == variable else None


def names_of(calls: Sequence[RecipeCall]) -> Mapping[int, str]:
    """Return what each call is called in a report."""
    return {
        number: f"{call.recipe} in {call.function or 'the file'}"
        for number, call in enumerate(calls, 1)
    }
