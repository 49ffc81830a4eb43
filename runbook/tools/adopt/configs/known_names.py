"""Determines which names in a Python file have a known value. The file is not run."""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.tools.adopt.configs.safe_values import is_secret_name
from runbook.tools.adopt.configs.syntax import Function

UNKNOWN = object()
_LARGEST_NUMBER = 2**63
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
"""Syntax node types that bind the name they contain."""


@dataclass
class Scope:
    """The names whose values are determined by the statements read so far."""

    names: dict[str, Any] = field(default_factory=dict)

    def value(self, node: ast.expr) -> Any:
        """Evaluate an expression that has only literals, known names and arithmetic."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, ast.BinOp):
            return self._computed(node)
        if isinstance(node, ast.IfExp):
            return self._chosen(node)
        if isinstance(node, ast.Compare) or _is_negation(node):
            truth = self.truth(node)
            return UNKNOWN if truth is None else truth
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    def truth(self, test: ast.expr) -> bool | None:
        """Return whether a test is true, or None if that is known only at run time."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            truth = self.truth(test.operand)
            return None if truth is None else not truth
        if isinstance(test, ast.BoolOp):
            return self._truth_of_several(test)
        if isinstance(test, ast.Compare):
            return self._compared(test)
        value = self.value(test)
        return None if value is UNKNOWN else bool(value)

    def _chosen(self, node: ast.IfExp) -> Any:
        """Evaluate a conditional expression if its test is known."""
        truth = self.truth(node.test)
        if truth is None:
            return UNKNOWN
        return self.value(node.body if truth else node.orelse)

    def _truth_of_several(self, test: ast.BoolOp) -> bool | None:
        """Return whether tests joined by `and` or `or` are true; one test may decide the result."""
        truths = [self.truth(value) for value in test.values]
        deciding = isinstance(test.op, ast.Or)
        if deciding in truths:
            return deciding
        return None if None in truths else not deciding

    def _compared(self, test: ast.Compare) -> bool | None:
        """Return whether a comparison of known values is true."""
        left_value = self.value(test.left)
        right_value = self.value(test.comparators[0])
        if len(test.ops) > 1 or left_value is UNKNOWN or right_value is UNKNOWN:
            return None
        try:
            return _comparison(test.ops[0], left_value, right_value)
        except TypeError:
            return None

    def _computed(self, node: ast.BinOp) -> Any:
        """Evaluate an arithmetic operation on known numbers.

        Powers are not computed, because their results may be enormous.
        """
        left_value = self.value(node.left)
        right_value = self.value(node.right)
        if not isinstance(left_value, int | float) or not isinstance(right_value, int | float):
            return UNKNOWN
        if max(abs(left_value), abs(right_value)) > _LARGEST_NUMBER:
            return UNKNOWN
        try:
            result = _result(node.op, left_value, right_value)
        except (ZeroDivisionError, OverflowError):
            return UNKNOWN

        if result is UNKNOWN or not math.isfinite(result) or abs(result) > _LARGEST_NUMBER:
            return UNKNOWN
        return result

    def assign(self, statement: ast.stmt) -> None:
        """Record the value that a simple statement assigns.

        Forget each name set by the statement in any other way.
        """
        value: Any = UNKNOWN
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = self.value(statement.value)
        self.forget(bound_names([statement]))
        for target in _targets(statement):
            if isinstance(target, ast.Name):
                self.learn(target.id, value)

    def learn(self, name: str, value: Any) -> None:
        """Record the value for a name if the value is immutable. A method could change a list.

        Secrets are not recorded: if a secret had an innocuous name, it would be shown wherever the
        name is used.
        """
        has_room = len(self.names) < _MOST_NAMES
        if is_scalar(value) and has_room and not is_secret_name(name):
            self.names[name] = value

    def forget(self, names: Iterable[str]) -> None:
        """Forget the values for these names; `*` means all, as in `from settings import *`."""
        for name in names:
            if name == "*":
                self.names.clear()
            self.names.pop(name, None)

    def keep_common(self, others: Iterable[Mapping[str, object]]) -> None:
        """Keep only the names that have the same value in every branch."""
        first, *branches = list(others)
        common = {}
        for name, value in first.items():
            if all(name in branch and _is_same(branch[name], value) for branch in branches):
                common[name] = value
        self.names = common

    def inside(self, function: Function, calls: Sequence[ast.Call]) -> "Scope":
        """Return the names whose values are known inside a function.

        These are the known names in the surrounding code, and the parameters that have the same
        argument in all calls.
        """
        inner = Scope(dict(self.names))
        inner.forget(parameters(function))
        inner.forget(bound_names(function.body))
        if len(calls) <= _MOST_CALLS:
            for name, value in self._values_given(function, calls).items():
                inner.learn(name, value)
        return inner

    def _values_given(self, function: Function, calls: Sequence[ast.Call]) -> dict[str, object]:
        """Return the value of each parameter that has the same value in all calls of a function."""
        defaults = {name: self.value(node) for name, node in defaults_of(function).items()}
        if not calls:
            return defaults

        values = _literals_given(function, calls[0], defaults)
        for call in calls[1:]:
            others = _literals_given(function, call, defaults)
            for name, value in others.items():
                if not _is_same(values[name], value):
                    values[name] = UNKNOWN
        return values


def is_scalar(value: Any) -> bool:
    """Return whether a value is known, and is None, a number, a string or a boolean."""
    return value is None or isinstance(value, bool | int | float | str)


def parameters(function: Function) -> list[str]:
    """Return the parameter names of a function."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [item for item in (arguments.vararg, arguments.kwarg) if item]
    return [item.arg for item in named]


def defaults_of(function: Function) -> dict[str, ast.expr]:
    """Return the default for each parameter that has one."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    last_arguments = arguments[len(arguments) - len(defaults) :]
    nodes = {item.arg: node for item, node in zip(last_arguments, defaults, strict=True)}
    for item, node in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if node is not None:
            nodes[item.arg] = node
    return nodes


def arguments_given(function: Function, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return the argument for each parameter, or None if the arguments cannot be matched."""
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    has_stars = any(isinstance(item, ast.Starred) for item in call.args)
    if has_stars or len(call.args) > len(names):
        return None
    nodes = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in nodes or keyword.arg not in parameters(function):
            return None
        nodes[keyword.arg] = keyword.value
    return nodes


def _literals_given(
    function: Function, call: ast.Call, defaults: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments that a call gives as literals, by parameter."""
    nodes = arguments_given(function, call)
    values: dict[str, object] = dict.fromkeys(parameters(function), UNKNOWN)
    if nodes is None:
        return values
    values |= defaults
    # `run.Partial(function, nodes=4)` and `other.function(nodes=4)` do not call this name directly.
    is_by_name = isinstance(call.func, ast.Name) and call.func.id == function.name
    for name, node in nodes.items():
        values[name] = Scope().value(node) if is_by_name else UNKNOWN
    return values


def bound_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that statements set by assignment, loop, import, definition or pattern."""
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


def _is_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _result(sign: ast.operator, left_value: float, right_value: float) -> Any:
    if isinstance(sign, ast.Add):
        return left_value + right_value
    if isinstance(sign, ast.Sub):
        return left_value - right_value
    if isinstance(sign, ast.Mult):
        return left_value * right_value
    if isinstance(sign, ast.FloorDiv):
        return left_value // right_value
    if isinstance(sign, ast.Div):
        return left_value / right_value
    return UNKNOWN


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


def _comparison(sign: ast.cmpop, left_value: Any, right_value: Any) -> bool | None:
    """Return whether a comparison is true, or None if it depends on the identity of objects."""
    compare = _COMPARISONS.get(type(sign))
    if compare is not None:
        return bool(compare(left_value, right_value))
    if left_value is not None and right_value is not None:
        return None
    is_same = left_value is right_value
    return is_same if isinstance(sign, ast.Is) else not is_same


def _is_same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.AnnAssign):
        return [statement.target]
    return []
