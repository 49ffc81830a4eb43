"""The functions of a Python file that can be followed: plain ones, whose calls say what they get."""

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
"""Nodes of the syntax of all functions that are followed; a file may have 60,000."""
_LAZY = ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal
"""Syntax that delays a function's effect, or makes it depend on more than its arguments."""


@dataclass
class FileFunctions:
    """The functions of a file."""

    plain: Mapping[str, ast.FunctionDef]
    """Functions at the top of the file, by a name that nothing else there has."""
    calls: Mapping[str, list[ast.Call]]
    """The calls of each name; `run.Partial(f, nodes=4)` is one of `f`."""
    with_result: frozenset[str]
    """Functions that return something else than a literal."""
    changing_names: frozenset[str]
    """Names at the top of the file that functions set, or that it sets more than once."""
    num_followed: int = field(default=0, init=False)
    num_nodes: int = field(default=0, init=False)
    depth: int = field(default=0, init=False)

    def follow(self, call: ast.Call) -> ast.FunctionDef | None:
        """Return the function that a call by its name starts; None if it cannot be followed.

        `leave` ends what this begins. Calls of calls, and all of them together, are limited: a file
        could write a call without end.
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
        """End the function that is followed."""
        self.depth -= 1

    def names_at_top(self, scope: Scope) -> Scope:
        """Return the names of the top of the file whose one value functions see."""
        names = Scope(dict(scope.names))
        names.forget(self.changing_names)
        return names

    def scope_of_call(
        self, function: ast.FunctionDef, call: ast.Call, caller: Scope, top: Scope
    ) -> Scope:
        """Return what is known in a function that a call starts."""
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
    """Return the functions of a file."""
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
    """Return whether the syntax of a function says what a call of it does."""
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
    """Yield each name that the top of a file sets more than once: a call between sees the first."""
    counts: Counter[str] = Counter()
    for statement in own_statements(tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            counts.update(set(bound_names([statement])))
    for name, count in counts.items():
        if count > 1:
            yield name


def _calls_by_function(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """Return the calls of each function, and of a `run.Partial` of it as a call without it."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        calls.setdefault(last_name(node.func), []).append(node)
        if node.args and isinstance(node.args[0], ast.Name):
            partial = ast.Call(node.func, node.args[1:], node.keywords)
            calls.setdefault(node.args[0].id, []).append(partial)
    return calls
