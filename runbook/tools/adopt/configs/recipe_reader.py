"""Reads the statements used to create and change a recipe in a Python file, in order."""

import ast
import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.file_functions import FileFunctions
from runbook.tools.adopt.configs.known_names import Scope, arguments_given, bound_names
from runbook.tools.adopt.configs.recipe_changes import changes_of, is_readable, starts_with
from runbook.tools.adopt.configs.recipe_values import (
    Branches,
    HeldConfig,
    OpenConfig,
    ValueReader,
    object_in,
)
from runbook.tools.adopt.configs.syntax import (
    Function,
    assigned_call,
    assigned_targets,
    dotted,
    global_names,
    head_nodes,
    is_compound,
    is_main_test,
    is_passive,
    names_in,
    returns,
    source_of,
    source_of_head,
    statements_in,
)
from runbook.tools.adopt.messages import AdoptMessage

TRAINER_CONFIG = "Trainer.Config"
"""Class used for torchtitan configurations in Python."""
PRETRAIN_COMMON = "_pretrain_common"
"""The function that each recipe in Megatron Bridge itself starts with (recipes/common.py)."""
NAMED_AFTER_FUNCTION = (TRAINER_CONFIG, PRETRAIN_COMMON)
"""Configurations named after the function that creates them.

Each call returns a new configuration.
"""
MOST_CALLS = 100
_MOST_VARIABLES = 300
_MOST_MENTIONED = 50
"""How many configurations one statement may mention.

The whole statement is searched for each name.
"""
_MOST_BRANCHES = 200
"""How many branches there may be around one statement.

An early return counts as a branch around everything after it.
"""
_NO_OBJECTS = frozenset(
    (
        "ceil",
        "float",
        "floor",
        "get",
        "getenv",
        "int",
        "join",
        "len",
        "lower",
        "max",
        "min",
        "round",
        "str",
        "sum",
    )
)
"""Functions that return a number, a string or a dictionary element."""
Makers = Mapping[str, bool]
"""Functions that create recipes, by name.

The value is True if each call creates a new configuration, as with torchtitan functions and
Megatron Bridge recipes.
"""


@dataclass(frozen=True)
class FileContext:
    """State shared by all readers for a file."""

    functions: FileFunctions
    makers: Makers
    branches: "itertools.count[int]" = field(default_factory=itertools.count)
    """Counter used to number the branches in the file."""


@dataclass
class RecipeReader:
    """Reads the statements in one function, or at module level."""

    context: FileContext
    function: str
    """The function name, or empty at module level."""
    scope: Scope
    top: Scope
    """The module-level names."""
    start: Branches = ()
    """The branches around the call that led to this function, if there was one."""
    is_followed: bool = False
    bindings: dict[str, list[HeldConfig]] = field(default_factory=dict)
    """The configurations that variables hold."""
    calls: list[OpenConfig] = field(default_factory=list)
    """Calls to recipes."""
    callers: list[OpenConfig] = field(default_factory=list)
    """Calls to functions used to create recipes; `recipe` is then the function name."""
    returned: list[tuple[Branches, list[HeldConfig]]] = field(default_factory=list)
    """For each return statement that was read, its value and the branches around it."""

    def read(self, body: Sequence[ast.stmt], path: Branches) -> None:
        """Read statements that are inside the branches in `path`."""
        for statement in body:
            self._statement(statement, path)
            if self._may_have_left(statement):
                path = self._new_branch(path, statement)

    def _statement(self, statement: ast.stmt, path: Branches) -> None:
        """Read a statement and the statements inside it."""
        if isinstance(statement, ast.If):
            self._if(statement, path)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            self._loop(statement, path)
        elif isinstance(statement, ast.Try | ast.TryStar):
            self._try(statement, path)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            self._header(statement.items, statement, path)
            self._forget(statement.items)
            self.read(statement.body, path)
        elif isinstance(statement, ast.Match):
            self._header([statement.subject], statement, path)
            self._forget([statement])
            self._branch([[], *(case.body for case in statement.cases)], statement, path)
        elif isinstance(statement, Function | ast.ClassDef):
            self._definition(statement, path)
        else:
            self._simple(statement, path)
            self.scope.assign(statement)

    def _may_have_left(self, statement: ast.stmt) -> bool:
        """Return whether a branch may have left the function, so that later statements may not run.

        A branch that returns without using a recipe does not start training, so it is ignored.
        """
        if isinstance(statement, Function | ast.ClassDef | ast.Return):
            return False
        if isinstance(statement, ast.If) and self.scope.truth(statement.test) is not None:
            return False
        if not returns([statement]):
            return False
        return self.is_followed or bool(self._mentioned([statement]))

    def _new_branch(self, path: Branches, statement: ast.stmt) -> Branches:
        if len(path) >= _MOST_BRANCHES:
            raise ParamsError(
                AdoptMessage.MANY_BRANCHES, line=statement.lineno, most=_MOST_BRANCHES
            )
        return (*path, next(self.context.branches))

    def _if(self, statement: ast.If, path: Branches) -> None:
        truth = True if is_main_test(statement.test) else self.scope.truth(statement.test)
        if truth is not None:
            self.read(statement.body if truth else statement.orelse, path)
            return
        if not is_passive(statement.test):
            self._header([statement.test], statement, path)
        self._forget([statement.test])
        self._branch([statement.body, statement.orelse], statement, path)

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While, path: Branches) -> None:
        if not isinstance(statement, ast.While):
            self._header([statement.iter, statement.target], statement, path)
        elif not is_passive(statement.test):
            self._header([statement.test], statement, path)

        self._forget([statement])
        self._branch([[], statement.body, statement.orelse], statement, path)
        self._forget([statement])

    def _try(self, statement: ast.Try | ast.TryStar, path: Branches) -> None:
        handlers = [handler.body for handler in statement.handlers]
        self._forget(statement.handlers)
        self._branch([[*statement.body, *statement.orelse], *handlers], statement, path)
        self._forget(statement.body)
        self.read(statement.finalbody, path)

    def _branch(
        self, bodies: Sequence[Sequence[ast.stmt]], statement: ast.stmt, path: Branches
    ) -> None:
        """Read the alternative branches, each starting from the same state."""
        names_before = dict(self.scope.names)
        bindings_before = dict(self.bindings)
        names_after = []
        bindings_after = []
        for body in bodies:
            self.scope.names = dict(names_before)
            self.bindings = dict(bindings_before)
            self.read(body, self._new_branch(path, statement))
            names_after.append(self.scope.names)
            bindings_after.append(self.bindings)

        self.scope.keep_common(names_after)
        self.bindings = _merged(bindings_after)

    def _forget(self, nodes: Sequence[ast.AST]) -> None:
        """Forget the names that the nodes set."""
        names = list(bound_names(nodes))
        self.scope.forget(names)
        self._forget_objects(names)

    def _forget_objects(self, names: Sequence[str]) -> None:
        """Forget the objects that variables hold. A variable that holds a recipe keeps it."""
        for name in names:
            if name in self.bindings and not self._is_recipe(name):
                del self.bindings[name]

    def _header(self, nodes: Sequence[ast.AST], statement: ast.stmt, path: Branches) -> None:
        """Report a compound statement whose head uses a recipe, such as a loop over its callbacks."""
        mentioned = self._mentioned(nodes)
        if not mentioned:
            return
        unread = _unread(statement)
        for variable in mentioned:
            self._add(variable, unread, path)

    def _definition(self, statement: Function | ast.ClassDef, path: Branches) -> None:
        """Report statements in an inner function that change a recipe in an outer function.

        A default argument, as in `def tune(r=recipe)`, is bound when the function is defined.
        """
        self._header(head_nodes(statement), statement, path)
        if self._mentioned(statement.body):
            arguments = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
            local_names = arguments | set(bound_names(statement.body))
            local_names -= global_names(statement)
            later = self._new_branch(path, statement)
            for node in statements_in(statement.body):
                self._later_statement(node, local_names, later)

        self.scope.forget([statement.name])
        self._forget_objects([statement.name])

    def _later_statement(
        self, statement: ast.stmt, local_names: Container[str], path: Branches
    ) -> None:
        """Report the changes that a statement in an inner function makes to an outer recipe."""
        if isinstance(statement, ast.If | ast.While) and is_passive(statement.test):
            return
        mentioned = self._mentioned(head_nodes(statement))
        outer = [variable for variable in mentioned if variable not in local_names]
        if not is_compound(statement):
            self._add_changes(outer, statement, path)
        elif outer:
            unread = _unread(statement)
            for variable in outer:
                self._add(variable, unread, path)

    def _mentioned(self, nodes: Sequence[ast.AST]) -> list[str]:
        """Return the variables in an expression or a statement that hold configurations."""
        if not self.bindings:
            return []
        names = names_in(nodes)
        return [variable for variable in self.bindings if variable in names]

    def _is_recipe(self, variable: str) -> bool:
        """Return whether a variable holds a recipe or part of one, not just a separate object."""
        return _has_recipe(self.bindings[variable])

    def _is_object(self, variable: str) -> bool:
        """Return whether a variable holds an object, which may have become part of a recipe."""
        held_configs = self.bindings[variable]
        return object_in(held_configs) is not None or not _has_recipe(held_configs)

    def _simple(self, statement: ast.stmt, path: Branches) -> None:
        """Read a simple statement."""
        assigned = assigned_call(statement)
        if assigned is None:
            self._changes(statement, path)
            self._rebind(statement)
        elif recipe_of(assigned[1]):
            self._open_recipe(statement, *assigned, path)
        elif self._is_maker(*assigned):
            self._open_made(statement, *assigned, path)
        elif assigned[0].isidentifier() or isinstance(statement, ast.Return):
            self._call(statement, *assigned, path)
        else:
            self._changes(statement, path)
            assigned = None
        self._open_nested(statement, assigned[1] if assigned else None, path)
        if isinstance(statement, ast.Return):
            self._return(statement, path)

    def _return(self, statement: ast.Return, path: Branches) -> None:
        """Record what a statement returns."""
        held_configs: list[HeldConfig] = []
        if isinstance(statement.value, ast.Name):
            held_configs = self.bindings.get(statement.value.id, [])
        elif isinstance(statement.value, ast.Call):
            held_configs = self.bindings.pop("", [])
        self.returned.append((path, held_configs))

    def _changes(self, statement: ast.stmt, path: Branches) -> None:
        """Add the changes that a statement makes to the configurations it mentions."""
        mentioned = self._mentioned([statement])
        if not mentioned:
            return
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and self._follow(call, path) is not None:
            return
        changed = [
            variable
            for variable in mentioned
            if not self._is_object(variable) or not _only_gives(statement, variable)
        ]
        self._add_changes(changed, statement, path)

    def _rebind(self, statement: ast.stmt) -> None:
        """Forget what the variables set by a statement held, or record an object's new name."""
        value = getattr(statement, "value", None)
        held_configs: list[HeldConfig] = []
        if isinstance(value, ast.Name):
            held_configs = self.bindings.get(value.id, [])
        names = list(bound_names([statement]))
        self._forget_objects(names)
        if held_configs and not _has_recipe(held_configs):
            self.bindings |= dict.fromkeys(names, held_configs)

    def _open_nested(self, statement: ast.stmt, call: ast.Call | None, path: Branches) -> None:
        """Track the recipes created inside a statement, as in `run.run(tune(pretrain_recipe()))`.

        Report the statement as not understood, unless it passes such a recipe directly to a
        function that starts the training.
        """
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call) or node is call:
                continue
            recipe = recipe_of(node)
            if recipe and recipe not in NAMED_AFTER_FUNCTION:
                opened = self._opened(recipe, node, path)
            elif self._returns_recipe(node):
                opened = self._opened_made(node, path)
            else:
                continue
            if not starts_with(statement, node):
                opened.add(_unread(statement), path)

    def _open_recipe(
        self, statement: ast.stmt, variable: str, call: ast.Call, path: Branches
    ) -> None:
        """Track the recipe created by a call.

        Later statements no longer change the recipe that the variable held before.
        """
        self._add_unread_arguments(statement, call, path)
        opened = self._opened(recipe_of(call), call, path)
        targets = assigned_targets(statement)
        names = [name for name in map(dotted, targets) if name]
        names += bound_names([statement])
        if isinstance(statement, ast.Return):
            names = [""]
        elif not names:
            # Changes to a target such as `recipes["base"]` are not followed
            opened.add(_unread(statement), path)
        self.bindings |= {name: [HeldConfig(opened)] for name in names}

    def _returns_recipe(self, call: ast.Call) -> bool:
        """Return whether a call returns a recipe that a function in the file creates."""
        maker = dotted(call.func)
        is_maker = self.context.makers.get(maker) is False
        return is_maker and maker in self.context.functions.with_result

    def _add_unread_arguments(self, statement: ast.stmt, call: ast.Call, path: Branches) -> None:
        """Report a statement that passes a recipe to a function used to create another recipe."""
        for variable in self._mentioned([call]):
            if self._is_recipe(variable):
                self._add_unread(variable, statement, path)

    def _opened(self, recipe: str, call: ast.Call, path: Branches) -> OpenConfig:
        """Track the recipe that a call creates from its arguments."""
        opened = OpenConfig(recipe, self.function, call.lineno, path)
        opened.is_bridge = not dotted(call.func).endswith("pretrain_recipe")
        reader = self._value_reader(path)
        opened.values += reader.keywords(call, "pretrain_recipe")
        for argument in call.args:
            name = f"line {call.lineno}"
            opened.values.append(ConfigValue(name, source_of(argument), call.lineno, known=False))

        self.calls.append(opened)
        if len(self.calls) > MOST_CALLS:
            raise ParamsError(AdoptMessage.MANY_CALLS_OF_RECIPES, most=MOST_CALLS)
        self._bind_parts(reader, [HeldConfig(opened)])
        return opened

    def _is_maker(self, variable: str, call: ast.Call) -> bool:
        """Return whether a call creates a recipe for a variable with a function in the file.

        The variable is not needed if each call creates a new configuration.
        """
        makes_own = self.context.makers.get(dotted(call.func))
        return makes_own is not None and (bool(variable) or makes_own)

    def _open_made(
        self, statement: ast.stmt, variable: str, call: ast.Call, path: Branches
    ) -> None:
        """Track the recipe that a function in the file creates for a variable."""
        self._add_unread_arguments(statement, call, path)
        opened = self._opened_made(call, path)
        if variable:
            self.bindings[variable] = [HeldConfig(opened)]

    def _opened_made(self, call: ast.Call, path: Branches) -> OpenConfig:
        """Track the recipe that a function in the file creates.

        Changes to the recipe are certain only if the function is called once, or if each call
        creates a new configuration.
        """
        maker = dotted(call.func)
        num_calls = len(self.context.functions.calls.get(maker, []))
        opened = OpenConfig(maker, self.function, call.lineno, path)
        opened.is_certain = num_calls == 1 or self.context.makers[maker]
        self.callers.append(opened)
        return opened

    def _call(self, statement: ast.stmt, variable: str, call: ast.Call, path: Branches) -> None:
        """Read a statement that assigns a call result to a variable."""
        inner = self._follow(call, path)
        if inner is None:
            self._changes(statement, path)
            held_configs = [HeldConfig(self._object_of(call, path))]
        else:
            held_configs = inner.result()

        holds_recipe = variable in self.bindings and self._is_recipe(variable)
        if holds_recipe and variable in names_in([call]) and not _has_recipe(held_configs):
            # Keep the recipe, because the call may only copy it, in which case later changes to the
            # variable still count
            if inner is not None:
                self._add_unread(variable, statement, path)
            return
        self.bindings.pop(variable, None)
        if held_configs and len(self.bindings) < _MOST_VARIABLES:
            self.bindings[variable] = held_configs

    def _object_of(self, call: ast.Call, path: Branches) -> OpenConfig:
        """Return the object that a call creates: `run.Config(Data, seq_length=4096)`."""
        new_object = OpenConfig("", self.function, call.lineno, path)
        function = dotted(call.func)
        if function in self.context.functions.plain or not _makes_object(function):
            new_object.values.append(ConfigValue("", source_of(call), call.lineno, known=False))
        else:
            new_object.take_part(call, self._value_reader(path).values("", call))
        return new_object

    def _follow(self, call: ast.Call, path: Branches) -> "RecipeReader | None":
        """Read the function that a call runs in this file; return None if it cannot be followed."""
        functions = self.context.functions
        function = functions.follow(call)
        if function is None:
            return None
        bindings = self._bindings_given(function, call)
        if bindings is None:
            functions.leave()
            return None

        scope = functions.scope_of_call(function, call, self.scope, self.top)
        inner = RecipeReader(
            self.context,
            function.name,
            scope,
            self.top,
            start=path,
            is_followed=True,
            bindings=bindings,
        )
        inner.read(function.body, path)
        functions.leave()
        return inner

    def _bindings_given(
        self, function: ast.FunctionDef, call: ast.Call
    ) -> dict[str, list[HeldConfig]] | None:
        """Return the configurations that a call passes, by parameter.

        Return None if an argument uses a recipe in any other way.
        """
        by_parameter: dict[str, list[HeldConfig]] = {}
        for name, node in (arguments_given(function, call) or {}).items():
            variable, _, part = dotted(node).partition(".")
            if variable in self.bindings and not is_readable(part):
                by_parameter[name] = [binding.part(part) for binding in self.bindings[variable]]
            elif variable not in self.bindings and any(
                self._is_recipe(mentioned) for mentioned in self._mentioned([node])
            ):
                return None
        return by_parameter

    def result(self) -> list[HeldConfig]:
        """Return the value returned by a followed function.

        The list is empty if the value is uncertain.
        """
        if len(self.returned) != 1:
            return []
        path, held_configs = self.returned[0]
        return held_configs if path == self.start else []

    def _value_reader(self, path: Branches) -> ValueReader:
        """Return a reader for expressions at this point in the file."""

        def follow(call: ast.Call) -> list[HeldConfig] | None:
            functions = self.context.functions
            if not isinstance(call.func, ast.Name) or call.func.id not in functions.plain:
                return None
            inner = self._follow(call, path)
            held_configs = inner.result() if inner else []
            if object_in(held_configs) is not None:
                return held_configs
            unknown = OpenConfig("", self.function, call.lineno, path)
            unknown.values.append(ConfigValue("", source_of(call), call.lineno, known=False))
            return [HeldConfig(unknown)]

        return ValueReader(self.scope, self.bindings, self.context.functions.plain, follow)

    def _bind_parts(self, reader: ValueReader, held_configs: Sequence[HeldConfig]) -> None:
        """Apply later changes to objects to the configurations that now contain these objects."""
        for variable, name in reader.used:
            parts = [binding.part(name) for binding in held_configs]
            self.bindings[variable] = [*self.bindings.get(variable, []), *parts]

    def _add(self, variable: str, value: ConfigValue, path: Branches) -> None:
        """Add a change to each configuration that the variable may hold."""
        for binding in self.bindings[variable]:
            binding.add(value, path)

    def _add_changes(self, variables: Sequence[str], statement: ast.stmt, path: Branches) -> None:
        """Add the changes that a statement makes to configurations in several variables."""
        if len(variables) > _MOST_MENTIONED:
            raise ParamsError(
                AdoptMessage.MANY_RECIPES_IN_A_STATEMENT,
                line=statement.lineno,
                most=_MOST_MENTIONED,
            )
        for variable in variables:
            self._add_change(variable, statement, path)

    def _add_unread(self, variable: str, statement: ast.AST, path: Branches) -> None:
        """Add a statement that is not understood."""
        self._add(variable, _unread(statement), path)

    def _add_change(self, variable: str, statement: ast.AST, path: Branches) -> None:
        """Add the changes that a statement makes to the configuration in a variable.

        If the statement is not understood, add the statement itself.
        """
        reader = self._value_reader(path)
        changes = changes_of(variable, statement, reader)
        if changes is None:
            self._add_unread(variable, statement, path)
            return
        held_configs = list(self.bindings[variable])
        for change in changes:
            self._add(variable, change, path)
        self._bind_parts(reader, held_configs)


def _makes_object(function: str) -> bool:
    """Return whether a function may create a configuration object, not a number or a string."""
    return bool(function) and function.rpartition(".")[2] not in _NO_OBJECTS


def _has_recipe(held_configs: Sequence[HeldConfig]) -> bool:
    """Return whether a variable may hold a recipe or part of one."""
    return any(binding.config.recipe for binding in held_configs)


def _unread(statement: ast.AST) -> ConfigValue:
    """Return a statement that is not understood, identified by its line.

    For a loop, return only the head.
    """
    line = getattr(statement, "lineno", 1)
    return ConfigValue(f"line {line}", source_of_head(statement), line, known=False)


def _merged(ends: Sequence[Mapping[str, list[HeldConfig]]]) -> dict[str, list[HeldConfig]]:
    """Merge the values that variables have where alternative branches end.

    A variable that holds an object in only some branches may also hold an unknown object.
    """
    merged: dict[str, list[HeldConfig]] = {}
    for variable in dict.fromkeys(itertools.chain.from_iterable(ends)):
        in_branches = [end[variable] for end in ends if variable in end]
        is_in_all = len(in_branches) == len(ends)
        first = in_branches[0]
        if is_in_all and all(held_configs is first for held_configs in in_branches):
            merged[variable] = first
            continue

        held_configs = list(dict.fromkeys(itertools.chain.from_iterable(in_branches)))
        if not is_in_all and not _has_recipe(held_configs):
            held_configs.append(HeldConfig(OpenConfig("", "", 0, ())))
        merged[variable] = held_configs
    return merged


def _only_gives(statement: ast.stmt, variable: str) -> bool:
    """Return whether a statement only stores an object elsewhere, as in `recipe.data = data`."""
    if isinstance(statement, ast.Return):
        return True
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return variable not in names_in(targets)


def recipe_of(call: ast.Call) -> str:
    """Return the recipe name in a call: `llama3_8b` for `llm.llama3_8b.pretrain_recipe(...)`."""
    *modules, function = dotted(call.func).split(".")
    module = modules[-1] if modules else function
    if f"{module}.{function}" == TRAINER_CONFIG:
        return TRAINER_CONFIG
    if function == PRETRAIN_COMMON:
        return PRETRAIN_COMMON
    if function in ("pretrain_recipe", "pretrain_config"):
        return module
    name, is_config, _ = function.partition("_pretrain_config")
    return name if is_config else ""
