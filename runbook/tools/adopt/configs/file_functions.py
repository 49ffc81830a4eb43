"""Finds functions in a Python file whose calls can be followed."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runbook.tools.adopt.configs.known_names import (
    Scope,
    arguments_given,
    bound_names,
    defaults_of,
    parameters,
)
from runbook.tools.adopt.configs.syntax import (
    Function,
    last_name,
    own_statements,
    returns,
)

_MOST_FOLLOWED = 300
_DEEPEST = 10
_MOST_NODES = 100_000
"""How many syntax nodes all followed calls together may have. A single file may have 60,000."""
_LAZY = ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal
"""Syntax that delays what a function does, or makes it depend on more than its arguments."""


@dataclass
class FileFunctions:
    """Functions and calls in a file."""

    plain: Mapping[str, ast.FunctionDef]
    """Top-level functions by name, if nothing else at the top level has the same name."""
    calls: Mapping[str, list[ast.Call]]
    """Calls to each function by name; `run.Partial(f, nodes=4)` counts as a call to `f`."""
    with_result: frozenset[str]
    """Functions that return anything but a literal."""
    changing_names: frozenset[str]
    """Module-level names set by a function, or set more than once."""
    num_followed: int = field(default=0, init=False)
    num_nodes: int = field(default=0, init=False)
    depth: int = field(default=0, init=False)

    def follow(self, call: ast.Call) -> ast.FunctionDef | None:
        """Return the function run by a call, or None if it cannot be followed.

        Call `leave` after following the function. The depth and the number of calls are limited,
        because a file could recurse forever.
        """
        function = self.plain.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is None or arguments_given(function, call) is None:
            return None
        if self.num_followed >= _MOST_FOLLOWED or self.depth >= _DEEPEST:
            return None
        self.num_nodes += sum(1 for _ in ast.walk(function))
        if self.num_nodes > _MOST_NODES:
            return None
        self.num_followed += 1
        self.depth += 1
        return function

    def leave(self) -> None:
        """Leave the function that is being followed."""
        self.depth -= 1

    def names_at_top(self, scope: Scope) -> Scope:
        """Return the module-level names that have the same value in every function."""
        names = Scope(dict(scope.names))
        names.forget(self.changing_names)
        return names

    def scope_of_call(
        self, function: ast.FunctionDef, call: ast.Call, caller: Scope, top: Scope
    ) -> Scope:
        """Return the names whose values are known inside a called function."""
        scope = self.names_at_top(top)
        scope.forget(parameters(function))
        scope.forget(bound_names(function.body))
        nodes = arguments_given(function, call) or {}
        for name, node in nodes.items():
            scope.learn(name, caller.value(node))
        for name, node in defaults_of(function).items():
            if name not in nodes:
                scope.learn(name, top.value(node))
        return scope


def functions_of(tree: ast.Module) -> FileFunctions:
    """Return the functions in a file."""
    names: Counter[str] = Counter(bound_names(tree.body))
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    plain = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not _is_plain(node):
            continue
        if names[node.name] == 1 and node.name not in arguments:
            plain[node.name] = node
    return FileFunctions(
        plain=plain,
        calls=_calls_by_function(tree),
        with_result=frozenset(_functions_with_result(tree)),
        changing_names=frozenset([*_global_names(tree), *_names_set_again(tree)]),
    )


def _is_plain(function: ast.FunctionDef) -> bool:
    """Return whether the syntax shows what calling a function does."""
    has_stars = function.args.vararg is not None or function.args.kwarg is not None
    if has_stars or function.decorator_list:
        return False
    return not any(isinstance(node, _LAZY) for node in ast.walk(function))


def _functions_with_result(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, Function):
            continue
        values = [item.value for item in returns(node.body)]
        if any(value is not None and not isinstance(value, ast.Constant) for value in values):
            yield node.name


def _global_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def _names_set_again(tree: ast.Module) -> Iterator[str]:
    """Yield each module-level name set more than once.

    A call between two assignments sees the first value.
    """
    counts: Counter[str] = Counter()
    for statement in own_statements(tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            counts.update(set(bound_names([statement])))
    for name, count in counts.items():
        if count > 1:
            yield name


def _calls_by_function(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """Return the calls to each function.

    `run.Partial(f, x)` counts as the call `f(x)`.
    """
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        calls.setdefault(last_name(node.func), []).append(node)
        if node.args and isinstance(node.args[0], ast.Name):
            partial = ast.Call(node.func, node.args[1:], node.keywords)
            calls.setdefault(node.args[0].id, []).append(partial)
    return calls
