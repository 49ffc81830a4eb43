"""A recipe in Python, read as text: the call of a recipe, its keyword arguments and the changes after it.

Nothing of the file is executed. A value that only a running program knows is kept as its source
text, and so is each statement that does something with a recipe which adopt does not understand.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.config_file import ConfigValue, safe
from runbook.tools.adopt.configs.known_names import UNKNOWN, Function, Scope, bound_names
from runbook.tools.adopt.configs.safe_values import is_secret_name
from runbook.tools.adopt.other_sources import MASKED

_CONFIG_CALLS = ("Config", "Partial")
"""nemo_run's calls that hold the keyword arguments of another class."""
_HELPERS = ("set_primary_perf_configs",)
"""Functions that change a recipe, whose keyword arguments have rows."""
_STARTERS = ("run.run", "nemo_run.run", "run.cli.main", "pretrain", "llm.pretrain")
"""Functions that start the training of a recipe and change nothing in it."""
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
_NUMBERS = ("trainer.num_nodes", "trainer.devices", "trainer.max_steps")
"""Numbers of a recipe: to read one, for an executor, changes nothing."""
_HARMLESS = ("print", "pprint", "len", "type", "repr", "str")
_MOST_CALLS = 100
_MOST_NODES = 60_000
"""Nodes of a file's syntax tree: some 5,000 lines."""
_MOST_LETTERS = 200
_MOST_PARTS = 50
_MOST_FUNCTIONS = 20
Branches = tuple[int, ...]
"""The branches around a statement."""


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

    @property
    def is_torchtitan(self) -> bool:
        """Whether it is a torchtitan configuration, which has its function's name."""
        return self.recipe == TRAINER_CONFIG


TRAINER_CONFIG = "Trainer.Config"
"""The class of torchtitan's configurations in Python."""


def recipe_calls(text: str, file_name: str) -> list[RecipeCall]:
    """Return every call of a recipe in a Python file, in order.

    Raise `ParamsError` if it is no Python.
    """
    try:
        tree = ast.parse(text)
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            raise ParamsError(
                f"{file_name} is too long for a recipe: over {_MOST_NODES:,} expressions."
            )

        calls = [call.as_recipe_call() for call in _read_file(tree)]
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        reason = visible(mask(str(error)))[:200]
        raise ParamsError(f"{file_name} is no Python that can be read: {reason}.") from error

    if len(calls) > _MOST_CALLS:
        raise ParamsError(
            f"{file_name} calls {len(calls):,} recipes. At most {_MOST_CALLS} are read: give a "
            "file with one."
        )

    return sorted(calls, key=lambda call: call.line)


def default_factory(text: str) -> str:
    """Return the function that a file names as its default recipe; empty if it names none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "default_factory":
            return _dotted(node.value)

    return ""


@dataclass(eq=False)
class _OpenCall:
    """A recipe's call whose changes are being read."""

    recipe: str
    function: str
    line: int
    is_bridge: bool
    path: Branches
    values: list[ConfigValue] = field(default_factory=list)
    is_certain: bool = True
    """Whether changes outside of branches happen for sure."""

    def as_recipe_call(self) -> RecipeCall:
        values = tuple(map(safe, self.values))
        return RecipeCall(
            self.recipe,
            self.function,
            self.line,
            values,
            self.is_bridge,
        )


def _read_file(tree: ast.Module) -> list[_OpenCall]:
    """Return the calls of recipes at the top of a file and in its functions.

    The first reading finds the functions that make recipes, the second what their callers change.
    """
    calls_by_function = _calls_by_function(tree)
    first, _ = _read_once(tree, calls_by_function, {})
    makers = _makers(first)
    calls, callers = _read_once(tree, calls_by_function, makers)
    for _ in range(_MOST_COPIES):
        # A torchtitan function that begins with another one's configuration makes one, too.
        more_makers = _copying_functions(callers, makers)
        if not more_makers:
            break
        makers = makers | dict.fromkeys(more_makers, True)
        calls, callers = _read_once(tree, calls_by_function, makers)
    copies = [caller for caller in callers if makers[caller.recipe]]
    for caller in callers:
        if caller in copies:
            continue
        for call in calls:
            if call.function == caller.recipe:
                call.values += caller.values
    return calls + _changed_copies(calls, copies)


_MOST_COPIES = 5
Makers = Mapping[str, bool]
"""Functions that make recipes; true where each call makes a configuration of its own, as torchtitan's do."""


def _makers(calls: Sequence[_OpenCall]) -> dict[str, bool]:
    return {call.function: call.recipe == TRAINER_CONFIG for call in calls if call.function}


def _copying_functions(callers: Sequence[_OpenCall], makers: Makers) -> list[str]:
    """Return the functions, not yet known as makers, that begin with a configuration of their own."""
    copying = [caller.function for caller in callers if makers[caller.recipe]]
    return [name for name in copying if name not in makers]


def _changed_copies(calls: Sequence[_OpenCall], copies: Sequence[_OpenCall]) -> list[_OpenCall]:
    """Return a configuration for each function that makes another function's and changes it.

    Each call of a torchtitan function makes a configuration of its own, and a function may begin with
    one that was changed already.
    """
    by_function = {call.function: call for call in calls if call.recipe == TRAINER_CONFIG}
    changed: list[_OpenCall] = []
    for copy in copies:
        base = by_function.get(copy.recipe)
        if base is None or not copy.function or copy.function in by_function:
            continue
        values = [*base.values, *copy.values]
        call = _OpenCall(TRAINER_CONFIG, copy.function, copy.line, False, copy.path, values)
        by_function[copy.function] = call
        changed.append(call)
    return changed


def _read_once(
    tree: ast.Module, calls_by_function: Mapping[str, list[ast.Call]], makers: Makers
) -> tuple[list[_OpenCall], list[_OpenCall]]:
    """Return the calls of recipes, and the calls of the functions that make recipes."""
    top = _Reader("", Scope(), makers, calls_by_function)
    top.read(tree.body, ())
    scope = Scope(dict(top.scope.names))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            scope.forget(node.names)

    readers = [top]
    _read_functions(tree, scope, top, readers)
    calls = []
    for reader in readers:
        for call in reader.calls:
            calls.append(call)

    return calls, [call for reader in readers for call in reader.callers]


def _calls_by_function(tree: ast.Module) -> dict[str, list[ast.Call]]:
    """Return the calls of each function of a file, and of a `run.Partial` of it as a call without it."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        calls.setdefault(_dotted(node.func).rpartition(".")[2], []).append(node)
        if node.args and isinstance(node.args[0], ast.Name):
            partial = ast.Call(node.func, node.args[1:], node.keywords)
            calls.setdefault(node.args[0].id, []).append(partial)

    return calls


def _read_functions(
    node: ast.AST,
    scope: Scope,
    top: "_Reader",
    readers: list["_Reader"],
    depth: int = 0,
) -> None:
    """Read each function below a node.

    In an inner one the names of the outer ones are not known.
    """
    if depth > _MOST_FUNCTIONS:
        raise ParamsError(
            f"functions in functions, more than {_MOST_FUNCTIONS} deep, are no recipe."
        )

    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            inner = scope.inside(child, top.calls_by_function.get(child.name, []))
            reader = _Reader(child.name, inner, top.makers, top.calls_by_function)
            reader.read(child.body, ())
            readers.append(reader)
            outer = Scope(dict(scope.names))
            outer.forget(bound_names([child]))
            outer.forget(item.arg for item in ast.walk(child) if isinstance(item, ast.arg))
            _read_functions(
                child,
                outer,
                top,
                readers,
                depth + 1,
            )
        else:
            _read_functions(
                child,
                scope,
                top,
                readers,
                depth,
            )


class _Reader:
    """Reads the statements of one function in their order."""

    def __init__(
        self,
        function: str,
        scope: Scope,
        makers: Makers,
        calls_by_function: Mapping[str, list[ast.Call]],
    ) -> None:
        self.function = function
        self.scope = scope
        self.makers = makers
        """Functions of the file that make recipes."""
        self.calls_by_function = calls_by_function
        self.calls: list[_OpenCall] = []
        self.callers: list[_OpenCall] = []
        """Calls of the makers; each has its maker's name in place of a recipe's."""
        self.by_variable: dict[str, list[_OpenCall]] = {}
        self.assigned: dict[str, ast.Call] = {}
        """What a torchtitan function names before it uses it: model_spec = model_registry("8B")."""
        self.branches = 0

    def read(self, body: Sequence[ast.stmt], path: Branches) -> None:
        """Read statements below the branches of `path`."""
        for statement in body:
            if isinstance(statement, ast.If):
                self._if(statement, path)
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                self._loop(statement, path)
            elif isinstance(statement, ast.Try | ast.TryStar):
                self._try(statement, path)
            elif isinstance(statement, ast.With | ast.AsyncWith):
                self._header(statement.items, statement, path)
                self.scope.forget(bound_names(statement.items))
                self.read(statement.body, path)
            elif isinstance(statement, ast.Match):
                self._header([statement.subject], statement, path)
                self.scope.forget(bound_names([statement]))
                self._branch([[], *(case.body for case in statement.cases)], path)
            elif isinstance(statement, Function | ast.ClassDef):
                self._definition(statement, path)
            else:
                self._simple(statement, path)
                self.scope.assign(statement)

    def _if(self, statement: ast.If, path: Branches) -> None:
        if _is_main(statement.test):
            self.read(statement.body, path)
            return

        if any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(statement.test)):
            self._header([statement.test], statement, path)
        self.scope.forget(bound_names([statement.test]))
        self._branch([statement.body, statement.orelse], path)

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While, path: Branches) -> None:
        if not isinstance(statement, ast.While):
            self._header([statement.iter, statement.target], statement, path)
        elif any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(statement.test)):
            self._header([statement.test], statement, path)

        self.scope.forget(bound_names([statement]))
        self._branch([[], statement.body, statement.orelse], path)
        self.scope.forget(bound_names([statement]))

    def _try(self, statement: ast.Try | ast.TryStar, path: Branches) -> None:
        handlers = [handler.body for handler in statement.handlers]
        self.scope.forget(bound_names(statement.handlers))
        self._branch([[*statement.body, *statement.orelse], *handlers], path)
        self.scope.forget(bound_names(statement.body))
        self.read(statement.finalbody, path)

    def _branch(self, bodies: Sequence[Sequence[ast.stmt]], path: Branches) -> None:
        """Read branches of which one is taken: each begins as if the others were not there."""
        before_names = dict(self.scope.names)
        before_calls = dict(self.by_variable)
        ends = []
        after: dict[str, list[_OpenCall]] = {}
        for body in bodies:
            self.branches += 1
            self.scope.names = dict(before_names)
            self.by_variable = dict(before_calls)
            self.read(body, (*path, self.branches))
            ends.append(self.scope.names)
            for variable, calls in self.by_variable.items():
                known_calls = after.setdefault(variable, [])
                known_calls += [call for call in calls if call not in known_calls]

        self.scope.keep_common(ends)
        self.by_variable = after

    def _header(
        self,
        nodes: Sequence[ast.AST],
        statement: ast.stmt,
        path: Branches,
    ) -> None:
        """Report a statement whose head does something with a recipe: a loop over its callbacks."""
        for variable in self._mentioned(nodes):
            self._add_unread(variable, statement, path)

    def _definition(self, statement: Function | ast.ClassDef, path: Branches) -> None:
        """Report the statements of an inner function that change a recipe of the function around it."""
        own_names = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.arg):
                own_names.add(node.arg)

        own_names |= set(bound_names(statement.body))
        for variable in self._mentioned([statement]):
            if variable in own_names:
                continue
            for node in ast.walk(statement):
                is_simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
                if is_simple and variable in _names_in([node]):
                    self._add_change(variable, node, path, is_certain=False)

        self.scope.forget([statement.name])

    def _mentioned(self, nodes: Sequence[ast.AST]) -> list[str]:
        """Return the variables of recipes that an expression or a statement mentions."""
        if not self.by_variable:
            return []
        names = _names_in(nodes)
        return [variable for variable in self.by_variable if variable in names]

    def _simple(self, statement: ast.stmt, path: Branches) -> None:
        """Read a statement without statements of its own."""
        assigned = _assigned_call(statement)
        recipe = _recipe_of(assigned[1]) if assigned else ""
        if assigned and recipe:
            variable, call = assigned
            for mentioned in self._mentioned([call]):
                self._add_unread(mentioned, statement, path)
            self._open(variable, recipe, call, path)
            return

        if assigned and assigned[0] and _dotted(assigned[1].func) in self.makers:
            self._open_made(assigned[0], _dotted(assigned[1].func), assigned[1].lineno, path)
            return

        for variable in self._mentioned([statement]):
            self._add_change(variable, statement, path, is_certain=True)
        self._note_assigned(assigned, statement, path)

    def _note_assigned(
        self, assigned: tuple[str, ast.Call] | None, statement: ast.stmt, path: Branches
    ) -> None:
        """Note a call that a statement gives a name for sure; forget the names that it sets otherwise."""
        for name in bound_names([statement]):
            self.assigned.pop(name, None)
        if assigned and not path and assigned[0].isidentifier():
            self.assigned[assigned[0]] = assigned[1]

    def _open(
        self,
        variable: str,
        recipe: str,
        call: ast.Call,
        path: Branches,
    ) -> None:
        """Begin the recipe of a call; the variable's earlier one is not changed any more."""
        is_bridge = not _dotted(call.func).endswith("pretrain_recipe")
        opened = _OpenCall(
            recipe,
            self.function,
            call.lineno,
            is_bridge,
            path,
        )
        opened.values += self._keywords(call, "pretrain_recipe")
        for argument in call.args:
            source = _source(argument)
            opened.values.append(
                ConfigValue(f"line {call.lineno}", source, call.lineno, known=False)
            )

        self.calls.append(opened)
        if len(self.calls) > _MOST_CALLS:
            raise ParamsError(f"over {_MOST_CALLS} calls of recipes: give a file with one.")
        if variable:
            self.by_variable[variable] = [opened]

    def _open_made(
        self,
        variable: str,
        maker: str,
        line: int,
        path: Branches,
    ) -> None:
        """Begin the recipe that a function of the file makes.

        Only a maker's one caller is sure to count, unless each call makes a configuration of its own.
        """
        is_only_caller = len(self.calls_by_function.get(maker, [])) == 1
        open_call = _OpenCall(
            maker,
            self.function,
            line,
            False,
            path,
            is_certain=is_only_caller or self.makers[maker],
        )
        self.callers.append(open_call)
        self.by_variable[variable] = [open_call]

    def _add(
        self,
        variable: str,
        value: ConfigValue,
        path: Branches,
    ) -> None:
        """Add a change to each recipe that the variable may hold.

        Below a branch it is not certain.
        """
        for call in self.by_variable[variable]:
            is_certain = call.is_certain and path == call.path[: len(path)]
            if is_certain or not value.known:
                call.values.append(value)
            else:
                source = f"{value.shown} (not always)"
                call.values.append(ConfigValue(value.name, source, value.line, known=False))

    def _add_unread(
        self,
        variable: str,
        statement: ast.AST,
        path: Branches,
    ) -> None:
        line = getattr(statement, "lineno", 1)
        value = ConfigValue(f"line {line}", _source(statement), line, known=False)
        self._add(variable, value, path)

    def _add_change(
        self,
        variable: str,
        statement: ast.AST,
        path: Branches,
        *,
        is_certain: bool,
    ) -> None:
        """Add what a statement changes in a recipe.

        The statement itself where that is not understood.
        """
        changes = self._changes(variable, statement)
        if changes is None:
            self._add_unread(variable, statement, path)
            return

        if not is_certain:
            self.branches += 1
            path = (*path, self.branches)

        for change in changes:
            self._add(variable, change, path)

    def _changes(self, variable: str, statement: ast.AST) -> list[ConfigValue] | None:
        """Return what a statement changes in a recipe; None if that is not understood."""
        if isinstance(statement, ast.Return | ast.Expr) and _is_plain_use(statement.value):
            return []
        if isinstance(statement, ast.Assert) or _reads_numbers(statement, variable):
            return []
        if isinstance(statement, ast.Assign) and _is_truth_value(statement):
            return []
        if isinstance(statement, ast.AugAssign):
            name = _path_in(statement.target, variable)
            source = _source(statement)
            if name:
                return [ConfigValue(name, source, statement.lineno, known=False)]
            return None

        if isinstance(statement, ast.Assign):
            return self._assigned(statement.targets, statement.value, variable)
        if isinstance(statement, ast.AnnAssign) and statement.value:
            return self._assigned([statement.target], statement.value, variable)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self._given_to(statement.value, variable)
        return None

    def _assigned(
        self,
        targets: Sequence[ast.expr],
        value: ast.expr,
        variable: str,
    ) -> list[ConfigValue] | None:
        names = [_path_in(target, variable) for target in targets]
        if not all(names):
            return None
        return [change for name in names for change in self._value(name, value)]

    def _given_to(self, call: ast.Call, variable: str) -> list[ConfigValue] | None:
        """Return what a function that is given the recipe changes in it.

        None if nobody here knows it.
        """
        function = _dotted(call.func)
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_whole = [_dotted(argument) == variable for argument in values]
        if function in _HARMLESS or function.startswith(("logging.", "logger.", "log.")):
            return []
        if not any(is_whole) or _names_in([call.func]) & {variable}:
            return None
        last = function.rpartition(".")[2]
        has_executor = any(keyword.arg == "executor" for keyword in call.keywords)
        if function in _STARTERS or last == "pretrain" or (last == "add" and has_executor):
            arguments: list[ConfigValue] = []
            for keyword in call.keywords:
                if keyword.arg not in _STARTER_ARGUMENTS and _dotted(keyword.value) != variable:
                    arguments.append(
                        ConfigValue(
                            f"run.{keyword.arg}", _source(keyword.value), call.lineno, known=False
                        )
                    )

            return arguments

        is_first_alone = len(call.args) == 1 and is_whole[0]
        if last in _HELPERS and is_first_alone:
            return list(self._keywords(call, last))
        return None

    def _keywords(self, call: ast.Call, prefix: str) -> Iterator[ConfigValue]:
        """Yield the keyword arguments of a call, and those of the configurations among them."""
        for keyword in call.keywords:
            if keyword.arg is None:
                source = _source(keyword.value)
                yield ConfigValue(f"line {call.lineno}", f"**{source}", call.lineno, known=False)
            else:
                yield from self._value(f"{prefix}.{keyword.arg}", keyword.value)

    def _value(self, name: str, node: ast.expr) -> Iterator[ConfigValue]:
        """Yield the value of an expression; of a configuration each of its keyword arguments."""
        if len(name) > _MOST_LETTERS:
            raise ParamsError(f"line {node.lineno}: a key of over {_MOST_LETTERS} letters.")
        value = self.scope.value(node)
        if isinstance(node, ast.Name) and value is UNKNOWN and node.id in self.assigned:
            node = self.assigned[node.id]
        if _is_plain(value):
            plain = list(value) if isinstance(value, tuple) else value
            yield ConfigValue(name, plain, node.lineno)
        elif isinstance(node, ast.Call):
            is_config = _dotted(node.func).rpartition(".")[2] in _CONFIG_CALLS and bool(node.args)
            target = node.args[0] if is_config else node.func
            yield ConfigValue(f"{name}._target_", _source(target), node.lineno)
            for argument in node.args[1:] if is_config else node.args:
                yield ConfigValue(f"{name}.args", _source(argument), node.lineno, known=False)
            yield from self._keywords(node, name)
        else:
            yield ConfigValue(name, _source(node), node.lineno, known=False)


def _is_main(test: ast.expr) -> bool:
    """Return whether a test asks whether the file is the program that was started."""
    return ast.unparse(test).replace('"', "'") == "__name__ == '__main__'"


def _is_plain_use(node: ast.expr | None) -> bool:
    """Return whether an expression names the recipe, or reads of it, and calls nothing."""
    return node is not None and not any(
        isinstance(item, ast.Call | ast.NamedExpr | ast.Await | ast.Yield)
        for item in ast.walk(node)
    )


def _is_truth_value(statement: ast.Assign) -> bool:
    """Return whether a statement gives a plain name a truth value that calls nothing."""
    is_name = all(isinstance(target, ast.Name) for target in statement.targets)
    is_truth = isinstance(statement.value, ast.BoolOp | ast.Compare)
    return is_name and is_truth and _is_plain_use(statement.value)


def _reads_numbers(statement: ast.AST, variable: str) -> bool:
    """Return whether a statement only reads numbers of the recipe."""
    leaves = {f"{variable}.{name}" for name in _NUMBERS}
    uses = 0
    reads = 0
    for item in ast.walk(statement):
        if isinstance(item, ast.Name | ast.Attribute):
            name = _dotted(item)
            uses += name == variable
            reads += name in leaves and isinstance(item.ctx, ast.Load)

    return uses == reads


def _dotted(node: ast.AST) -> str:
    """Return a name with its attributes, `recipe.trainer`; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MOST_PARTS:
        parts.append(node.attr)
        node = node.value

    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _names_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return each name, and each name with attributes, that is used below nodes."""
    return {
        name
        for node in nodes
        for item in ast.walk(node)
        if isinstance(item, ast.Name | ast.Attribute) and (name := _dotted(item))
    }


def _path_in(target: ast.expr, variable: str) -> str:
    """Return the dotted key of a recipe's attribute; empty if the target is something else."""
    name = _dotted(target)
    if name.startswith(f"{variable}."):
        return name.removeprefix(f"{variable}.")
    return ""


def _assigned_call(statement: ast.stmt) -> tuple[str, ast.Call] | None:
    """Return the variable and the call of `variable = call(...)` or `return call(...)`."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
        return "", statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call):
        return _dotted(statement.target), statement.value
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        return _dotted(statement.targets[0]), statement.value
    return None


def _recipe_of(call: ast.Call) -> str:
    """Return the recipe that a call makes: `llm.llama3_8b.pretrain_recipe` or `llama3_8b_pretrain_config`."""
    parts = _dotted(call.func).split(".")
    if ".".join(parts[-2:]) == TRAINER_CONFIG:
        return TRAINER_CONFIG
    if parts[-1] == "pretrain_recipe":
        return parts[-2] if len(parts) > 1 else "pretrain_recipe"
    name, is_config, _ = parts[-1].partition("_pretrain_config")
    if is_config:
        return name
    if parts[-1] == "pretrain_config":
        return parts[-2] if len(parts) > 1 else "pretrain_config"
    return ""


def _is_plain(value: Any) -> bool:
    is_known = value is not UNKNOWN
    return is_known and (
        value is None or isinstance(value, bool | int | float | str | list | tuple)
    )


def _source(node: ast.AST) -> str:
    """Return an expression or a statement as it is written, short.

    Without literals where it names a secret.
    """
    text = " ".join(ast.unparse(node).split())
    if any(map(is_secret_name, re.findall(r"[\w-]+", text))):
        return _without_literals(node)
    return visible(mask(text)[:80])


def _without_literals(node: ast.AST) -> str:
    """Return the names and calls of an expression, each literal masked."""
    literals = [item for item in ast.walk(node) if isinstance(item, ast.Constant)]
    values = [item.value for item in literals]
    for item in literals:
        if item.value is not None and not isinstance(item.value, bool):
            item.value = MASKED

    text = " ".join(ast.unparse(node).split())[:80]
    for item, value in zip(literals, values, strict=True):
        item.value = value
    return visible(mask(text))
