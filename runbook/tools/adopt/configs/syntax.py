"""Answers questions about syntax in a Python file, which is parsed but never executed."""

import ast
import copy
import re
from collections.abc import Iterator, Sequence

from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.safe_values import is_secret_name
from runbook.tools.adopt.processes_and_logs import MASKED

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LARGEST_PATH = 50
_SHOWN_LETTERS = 80
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_OF_BODIES = ast.stmt | ast.ExceptHandler | ast.match_case
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_ACTIVE = ast.Call | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom
"""Expressions that may have a side effect."""


def dotted(node: ast.AST) -> str:
    """Return a dotted name such as `recipe.trainer`, or '' for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _LARGEST_PATH:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name, such as `Config` for `run.Config`."""
    return dotted(node).rpartition(".")[2]


def names_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return all names and dotted names in these syntax trees."""
    names: set[str] = set()
    for node in nodes:
        for item in ast.walk(node):
            if isinstance(item, ast.Name | ast.Attribute):
                names.add(dotted(item))
    return names - {""}


def global_names(node: ast.AST) -> set[str]:
    """Return the names that a function declares global or nonlocal."""
    names: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Global | ast.Nonlocal):
            names |= set(item.names)
    return names


def uses_whole(nodes: Sequence[ast.AST], variable: str) -> bool:
    """Return whether syntax trees use a variable itself, not only its attributes."""
    uses = 0
    for node in nodes:
        for item in ast.walk(node):
            if isinstance(item, ast.Name):
                uses += item.id == variable
            elif isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
                uses -= item.value.id == variable
    return uses > 0


def path_in(target: ast.expr, variable: str) -> str:
    """Return the dotted key if the target is an attribute of the recipe, or '' otherwise."""
    name = dotted(target)
    if name.startswith(f"{variable}."):
        return name.removeprefix(f"{variable}.")
    return ""


def assigned_call(statement: ast.stmt) -> tuple[str, ast.Call] | None:
    """Return the variable and the call in `variable = call(...)` or `return call(...)`."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call):
        return None
    if isinstance(statement, ast.Return):
        return "", value
    if isinstance(statement, ast.AnnAssign):
        return dotted(statement.target), value
    if isinstance(statement, ast.Assign):
        return dotted(statement.targets[0]), value
    return None


def assigned_targets(statement: ast.stmt) -> list[ast.expr]:
    """Return the targets of an assignment."""
    if isinstance(statement, ast.AnnAssign):
        return [statement.target]
    return statement.targets if isinstance(statement, ast.Assign) else []


def is_compound(statement: ast.stmt) -> bool:
    """Return whether a statement contains other statements, as a loop or a function does."""
    return isinstance(statement, ast.Match) or hasattr(statement, "body")


def head_nodes(statement: ast.stmt) -> list[ast.AST]:
    """Return the expressions in the head of a loop or a function, or a simple statement itself."""
    if not is_compound(statement):
        return [statement]
    children = ast.iter_child_nodes(statement)
    return [child for child in children if not isinstance(child, _OF_BODIES)]


def statements_in(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and all statements inside them, including functions and classes."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt):
                yield node


def is_main_test(test: ast.expr) -> bool:
    """Return whether a test is `__name__ == "__main__"`."""
    return ast.unparse(test).replace('"', "'") == "__name__ == '__main__'"


def is_passive(node: ast.AST | None) -> bool:
    """Return whether an expression only reads values: it calls nothing and sets no name."""
    return node is not None and not any(isinstance(item, _ACTIVE) for item in ast.walk(node))


def is_truth_value(statement: ast.stmt) -> bool:
    """Return whether a statement only assigns a boolean to a plain name."""
    if not isinstance(statement, ast.Assign):
        return False
    is_name = all(isinstance(target, ast.Name) for target in statement.targets)
    is_truth = isinstance(statement.value, ast.BoolOp | ast.Compare)
    return is_name and is_truth and is_passive(statement.value)


def own_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and all statements inside them, except those in functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, _DEFINITIONS):
            continue
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from own_statements([child])
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from own_statements(child.body)


def returns(body: Sequence[ast.stmt]) -> list[ast.Return]:
    """Return the return statements in a function body."""
    return [item for item in own_statements(body) if isinstance(item, ast.Return)]


def source_of(node: ast.AST) -> str:
    """Return the source text for an expression or a statement, shortened.

    Literals are masked if the source names a secret.
    """
    text = " ".join(ast.unparse(node).split())
    names = re.findall(r"[\w-]+", text)
    if any(map(is_secret_name, names)):
        return _without_literals(node)
    return visible(mask(text)[:_SHOWN_LETTERS])


def source_of_head(statement: ast.AST) -> str:
    """Return the source text for a simple statement, or only the head of a compound statement."""
    if not isinstance(statement, ast.stmt) or not is_compound(statement):
        return source_of(statement)
    head = copy.copy(statement)
    for name in _BODIES:
        if hasattr(head, name):
            setattr(head, name, [])
    return source_of(head)


def _without_literals(node: ast.AST) -> str:
    """Return the names and calls in an expression, with each literal masked."""
    literals = [item for item in ast.walk(node) if isinstance(item, ast.Constant)]
    values = [item.value for item in literals]
    for item in literals:
        if item.value is not None and not isinstance(item.value, bool):
            item.value = MASKED

    text = " ".join(ast.unparse(node).split())[:_SHOWN_LETTERS]
    for item, value in zip(literals, values, strict=True):
        item.value = value
    return visible(mask(text))
