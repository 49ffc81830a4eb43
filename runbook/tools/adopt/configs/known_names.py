"""Names of a Python file whose values are known without running it."""

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.tools.adopt.configs.safe_values import is_secret_name

UNKNOWN = object()
_MOST = 2**63
_MOST_NAMES = 500
_MOST_CALLS = 100
_NAMED = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.ExceptHandler
    | ast.MatchAs
    | ast.MatchStar
)
"""Nodes that set the name which they have."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Scope:
    """Values of names, as far as the statements that were read say them for sure."""

    names: dict[str, Any] = field(default_factory=dict)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression of literals, known names and arithmetic."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, ast.BinOp):
            return self._computed(node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    def _computed(self, node: ast.BinOp) -> Any:
        """Return the result of an arithmetic of known numbers; no powers, which may have no end."""
        left_value = self.value(node.left)
        right = self.value(node.right)
        if not isinstance(left_value, int | float) or not isinstance(right, int | float):
            return UNKNOWN
        if max(abs(left_value), abs(right)) > _MOST:
            return UNKNOWN
        try:
            result = _result(node.op, left_value, right)
        except (ZeroDivisionError, OverflowError):
            return UNKNOWN

        if result is UNKNOWN or not math.isfinite(result) or abs(result) > _MOST:
            return UNKNOWN
        return result

    def assign(self, statement: ast.stmt) -> None:
        """Take what a simple statement says of a name; forget each name that it sets otherwise."""
        value: Any = UNKNOWN
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = self.value(statement.value)
        self.forget(bound_names([statement]))
        is_scalar = value is None or isinstance(value, bool | int | float | str)
        # A list can be changed by its methods
        if not is_scalar or value is UNKNOWN:
            return
        for target in _targets(statement):
            # A secret under a name of its own would come out where the name is used.
            is_name = isinstance(target, ast.Name) and not is_secret_name(target.id)
            if isinstance(target, ast.Name) and is_name and len(self.names) < _MOST_NAMES:
                self.names[target.id] = value

    def forget(self, names: Iterable[str]) -> None:
        """Forget the values of names."""
        for name in names:
            self.names.pop(name, None)

    def keep_common(self, others: Iterable[Mapping[str, object]]) -> None:
        """Keep the names that have one value in every branch."""
        branches = list(others)
        self.names = {
            name: value
            for name, value in branches[0].items()
            if all(name in branch and _is_same(branch[name], value) for branch in branches)
        }

    def inside(self, function: Function, calls: Sequence[ast.Call]) -> "Scope":
        """Return what a function knows: names around it, and defaults that no call replaces."""
        inner = Scope(dict(self.names))
        inner.forget(_parameters(function))
        inner.forget(bound_names(function.body))
        if len(calls) <= _MOST_CALLS:
            defaults = _defaults(function, self)
        else:
            defaults = {}

        for call in calls[:_MOST_CALLS]:
            arguments = _arguments_given(function, call)
            defaults = {name: value for name, value in defaults.items() if name not in arguments}

        inner.names |= defaults
        return inner


def _result(operator: ast.operator, left: float, right: float) -> Any:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv):
        return left // right
    if isinstance(operator, ast.Div):
        return left / right
    return UNKNOWN


def _is_same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AnnAssign):
        return [statement.target]
    return []


def bound_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that statements set: by assignment, loop, import, definition or pattern."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]
            elif isinstance(node, _NAMED) and node.name:
                yield node.name
            elif isinstance(node, ast.MatchMapping) and node.rest:
                yield node.rest
            elif isinstance(node, ast.Global | ast.Nonlocal):
                yield from node.names


def _parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [item for item in (arguments.vararg, arguments.kwarg) if item]
    return [item.arg for item in named]


def _defaults(function: Function, scope: Scope) -> dict[str, object]:
    """Return the default value of each parameter that has one."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    pairs = [*zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)]
    for name, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            pairs.append((name, default))

    values = {name.arg: scope.value(default) for name, default in pairs}
    return {
        name: value
        for name, value in values.items()
        if value is None or isinstance(value, bool | int | float | str)
        if not is_secret_name(name)
    }


def _arguments_given(function: Function, call: ast.Call) -> set[str]:
    """Return the parameters that a call of a function may give, or a `run.Partial` of it."""
    positional = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    is_unclear = any(isinstance(item, ast.Starred) for item in call.args)
    is_unclear = is_unclear or any(keyword.arg is None for keyword in call.keywords)
    if is_unclear:
        return set(_parameters(function))
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    return names | set(positional[: len(call.args)])
