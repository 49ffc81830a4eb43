"""Reads nanotron configurations in Python: files that build a `Config` and save it as YAML.

Based on huggingface/nanotron, 2026-11 (examples). Values in these files get the same dotted keys as
in the YAML files, so that both can share a table. The file is never executed.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.config_file import ConfigValue, safe
from runbook.tools.adopt.configs.known_names import UNKNOWN, Scope, bound_names
from runbook.tools.adopt.configs.safe_values import is_secret_name
from runbook.tools.adopt.configs.syntax import (
    Function,
    assigned_targets,
    dotted,
    head_nodes,
    is_main_test,
    last_name,
    source_of,
    source_of_head,
    statements_in,
)
from runbook.tools.adopt.messages import AdoptMessage

_MODULE = "nanotron"
_CONFIG = "Config"
_FIRST_PARAMETERS = {
    "TokenizerArgs": "tokenizer_name_or_path",
    "GeneralArgs": "project",
    "RandomInit": "std",
}
"""For each class, the parameter that its first positional argument sets."""
_DENSE_MODELS = ("LlamaConfig", "Qwen2Config")
_LOWER_CASE = ("tp_mode", "pp_engine")
"""Keys whose values may also be written in capital letters."""
_CHANGES_NOTHING = (
    "print",
    "assert",
    "save_as_yaml",
    "as_dict",
    "get_yaml",
    "print_config_details",
    "makedirs",
    "human_format",
    "info",
    "len",
    "sum",
    "any",
    "all",
    "str",
    "repr",
    "isinstance",
    "hasattr",
)
"""Functions and methods that do not change a configuration, by the last part of their name."""
_READS_ONLY = ("get", "items", "keys", "index", "count")
"""List and dictionary methods that do not change their object."""
_GIVES_ITEMS = ("enumerate", "reversed", "list", "tuple", "zip", "items", "values")
"""Functions and methods that yield the items in a list to a loop."""
_ANY_ITEM = "*"
"""Stands for the item index in the dotted key of a loop variable."""
_MOST_LOOPS = 3
"""How deep loops may be nested for their variables to be followed."""
_MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
"""Expressions whose values a method may change later."""
_MOST_NODES = 10_000
"""Maximum number of expressions to read. Lists that contain each other would never end."""
_MOST_DEPTH = 40
"""How deep expressions may be nested. Names that refer to each other would never end."""


def nanotron_values(tree: ast.Module, file_name: str) -> tuple[ConfigValue, ...]:
    """Return the values in the last `Config` that a file builds, under the keys in a YAML file.

    The result is empty if the file builds no `Config`. Raise `ParamsError` if the values are nested
    without end.
    """
    classes = _imported_classes(tree)
    if _CONFIG not in classes:
        return ()
    built = _last_config(tree)
    if built is None:
        return ()
    reader = _ConfigReader(file_name, classes, built.names, built.scope)
    values = list(reader.values("", built.call))
    if built.variable:
        reader.paths.setdefault(built.variable, []).append("")
    values += reader.changes(tree, built)
    return tuple(map(safe, values))


def _imported_classes(tree: ast.Module) -> set[str]:
    """Return the names that a file imports from nanotron."""
    classes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _MODULE:
            classes.update(alias.asname or alias.name for alias in node.names)
    return classes


@dataclass(frozen=True)
class _BuiltConfig:
    """A call to `Config` in nanotron, and the names known at that point in the file."""

    call: ast.Call
    variable: str
    """The variable that holds the configuration, or '' if no variable does."""
    statements: Sequence[ast.stmt]
    """The statements in the same body that always run."""
    names: Mapping[str, ast.expr]
    """The expression assigned to each name that exactly one statement sets."""
    scope: Scope


def _last_config(tree: ast.Module) -> _BuiltConfig | None:
    """Return the last `Config` built at the top level of a file, or else in a function."""
    top = _always_run(tree.body)
    built = _config_in(tree, top)
    if built:
        return built
    for node in reversed(list(ast.walk(tree))):
        if isinstance(node, Function):
            built = _config_in(tree, [*top, *_always_run(node.body)])
            if built:
                return built
    return None


def _always_run(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements in a body that always run when the file is started."""
    statements: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If) and is_main_test(statement.test):
            statements += statement.body
        else:
            statements.append(statement)
    return statements


def _config_in(tree: ast.Module, statements: Sequence[ast.stmt]) -> _BuiltConfig | None:
    """Return the last `Config` built by these statements, and the names known at that point."""
    names, scope = _names_of(tree, statements)
    for statement in reversed(statements):
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call) and last_name(call.func) == _CONFIG and call.keywords:
            targets = assigned_targets(statement)
            variable = dotted(targets[0]) if targets else ""
            return _BuiltConfig(call, variable, statements, names, scope)
    return None


def _names_of(
    tree: ast.Module, statements: Sequence[ast.stmt]
) -> tuple[dict[str, ast.expr], Scope]:
    """Return values for names set by a single statement, with inner names resolved."""
    counts = Counter(bound_names([tree]))
    # The value for a parameter is known only in calls to its function
    counts.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    names: dict[str, ast.expr] = {}
    scope = Scope()
    for statement in statements:
        value = getattr(statement, "value", None)
        for target in assigned_targets(statement):
            if not isinstance(target, ast.Name) or counts[target.id] > 1 or value is None:
                continue
            # Otherwise, a secret would be shown as the value for every key that refers to this name
            if is_secret_name(target.id):
                continue
            names[target.id] = value
            scope.learn(target.id, scope.value(value))
    return names, scope


@dataclass
class _ConfigReader:
    """Reads the classes in a configuration, and counts what it reads."""

    file_name: str
    classes: set[str]
    """Names that the file imports from nanotron."""
    names: Mapping[str, ast.expr]
    scope: Scope
    paths: dict[str, list[str]] = field(default_factory=dict)
    """For each variable, dotted keys for the configuration parts that it holds."""
    plain_keys: set[str] = field(default_factory=set)
    """Dotted keys for values that no other statement can change, such as numbers."""
    num_nodes: int = 0
    depth: int = 0

    def values(self, path: str, node: ast.expr) -> Iterator[ConfigValue]:
        """Yield the values in an expression with their dotted keys below `path`."""
        self.num_nodes += 1
        if self.num_nodes > _MOST_NODES:
            raise ParamsError(
                AdoptMessage.TOO_MANY_VALUES, file_name=self.file_name, most_nodes=_MOST_NODES
            )
        if self.depth == _MOST_DEPTH:
            source = f"{path} = {source_of(node)} (over {_MOST_DEPTH} expressions deep)"
            yield ConfigValue("statement", source, node.lineno, known=False)
            return
        self.depth += 1
        yield from self._values_inside(path, node)
        self.depth -= 1

    def _values_inside(self, path: str, node: ast.expr) -> Iterator[ConfigValue]:
        """Yield the values in an expression that is not nested too deeply."""
        if isinstance(node, ast.Name) and node.id in self.names:
            self.paths.setdefault(node.id, []).append(path)
            yield from self.values(path, self.names[node.id])
        elif isinstance(node, ast.Call) and last_name(node.func) in self.classes:
            yield from self._values_of_class(path, node)
        elif isinstance(node, ast.List) and node.elts and all(map(self._is_class, node.elts)):
            for number, item in enumerate(node.elts):
                yield from self.values(_joined(path, str(number)), item)
        elif isinstance(node, ast.Dict) and node.keys and all(map(_is_text, node.keys)):
            for key, item in zip(node.keys, node.values, strict=True):
                yield from self.values(_joined(path, ast.literal_eval(key)), item)  # type: ignore[arg-type]
        elif isinstance(node, ast.Attribute) and self._attribute(node) is not None:
            yield from self.values(path, self._attribute(node))  # type: ignore[arg-type]
        else:
            if not isinstance(node, _MUTABLE):
                self.plain_keys.add(path)
            yield self._plain(path, node)

    def changes(self, tree: ast.Module, built: _BuiltConfig) -> Iterator[ConfigValue]:
        """Yield the changes that other statements in the file make to the configuration."""
        statements = list(statements_in(tree.body))
        num_parts = len(self.paths)
        named: set[ast.stmt] = set()
        for statement in statements:
            rows = list(self._changes_of(statement, built))
            if rows:
                named.add(statement)
            yield from rows
        if len(self.paths) == num_parts:
            return
        # This change may attach a variable that an earlier statement has changed
        for statement in statements:
            if statement not in named and list(self._changes_of(statement, built)):
                yield _unknown(statement)

    def _changes_of(self, statement: ast.stmt, built: _BuiltConfig) -> Iterator[ConfigValue]:
        """Yield the changes made by one statement to the parts known so far."""
        self._name_items(statement)
        is_certain = any(statement is other for other in built.statements)
        value: ast.expr | None = getattr(statement, "value", None)
        for target in assigned_targets(statement):
            variable, attribute = self._place(target)
            if not attribute or not dotted(target) or value is None:
                continue
            if any(_ANY_ITEM in path for path in self.paths[variable]):
                yield _unknown(statement)
            else:
                yield from self._changed(variable, attribute, value, is_certain=is_certain)
        if self._may_change(statement) or _builds_another(statement, built):
            yield _unknown(statement)

    def _name_items(self, statement: ast.stmt) -> None:
        """Record that loop variables in a statement hold items in the configuration."""
        for target, iterable in _loops_of(statement):
            keys = self._keys_of_items(iterable)
            for name in _bound_by(target):
                known_keys = self.paths.setdefault(name, []) if keys else []
                known_keys += [key for key in keys if key not in known_keys]

    def _keys_of_items(self, iterable: ast.expr) -> list[str]:
        """Return the dotted keys for the items in a loop.

        The list is empty if the loop does not iterate over part of the configuration.
        """
        keys: list[str] = []
        for part in _gone_through(iterable):
            if not self._is_part(part):
                continue
            variable, attribute = self._place(part)
            for path in self.paths[variable]:
                if path.count(_ANY_ITEM) < _MOST_LOOPS:
                    keys.append(_joined(_joined(path, attribute), _ANY_ITEM))
        return keys

    def _changed(
        self, variable: str, attribute: str, value: ast.expr, *, is_certain: bool
    ) -> Iterator[ConfigValue]:
        """Yield a change to an attribute, once for each key of the variable."""
        for path in list(dict.fromkeys(self.paths[variable])):
            name = _joined(path, attribute)
            if is_certain:
                yield from self.values(name, value)
            else:
                source = f"{source_of(value)} (not always)"
                yield ConfigValue(name, source, value.lineno, known=False)

    def _may_change(self, statement: ast.stmt) -> bool:
        """Return whether a statement may change the configuration in ways that are not followed."""
        return (
            self._sets_an_item(statement)
            or self._has_another_name(statement)
            or any(self._is_handed_on(call, statement) for call in _calls_in(statement))
        )

    def _sets_an_item(self, statement: ast.stmt) -> bool:
        """Return whether a statement sets or deletes a part without a plain assignment."""
        followed = [target for target in assigned_targets(statement) if dotted(target)]
        for node in _nodes_in(statement):
            is_load = isinstance(getattr(node, "ctx", None), ast.Load)
            if isinstance(node, ast.Attribute | ast.Subscript) and not is_load:
                is_followed = any(node is target for target in followed)
                if self._place(node)[0] and not is_followed:
                    return True
        return isinstance(statement, ast.AugAssign) and bool(self._place(statement.target)[0])

    def _has_another_name(self, statement: ast.stmt) -> bool:
        """Return whether a statement binds a part to a name that is not followed."""
        values: list[ast.expr] = []
        targets = assigned_targets(statement)
        is_new = any(not self._place(target)[0] for target in targets)
        if is_new and any(self._place(target)[0] for target in targets):
            return True
        if is_new and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            values.append(statement.value)
        for _, iterable in _loops_of(statement):
            if not self._keys_of_items(iterable):
                values.append(iterable)
        nodes = _nodes_in(statement)
        values += [node.value for node in nodes if isinstance(node, ast.NamedExpr)]
        return any(self._is_part(item) for value in values for item in _items_of(value))

    def _is_handed_on(self, call: ast.Call, statement: ast.stmt) -> bool:
        """Return whether a call may change a part.

        A call may change a part if it calls a method on it, or passes it as an argument.
        """
        name = _called_name(call)
        if name in _CHANGES_NOTHING:
            return False
        if any(call is iterable for _, iterable in _loops_of(statement)) and name in _GIVES_ITEMS:
            return False
        is_method = isinstance(call.func, ast.Attribute) and self._is_part(call.func.value)
        if is_method and name not in _READS_ONLY:
            return True
        # Classes in nanotron do not change their arguments, unless the object that they create is
        # discarded
        if name in self.classes and not isinstance(statement, ast.Expr | ast.With | ast.For):
            return False
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return any(self._is_part(item) for value in arguments for item in _items_of(value))

    def _place(self, node: ast.expr) -> tuple[str, str]:
        """Return the configuration variable that an expression starts with, and the attribute.

        Both strings are empty if there is no such variable. A list item is treated as the list.
        """
        name = dotted(_without_items(node))
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            variable = ".".join(parts[:length])
            if variable and variable in self.paths:
                return variable, ".".join(parts[length:])
        return "", ""

    def _is_part(self, node: ast.expr) -> bool:
        """Return whether an expression is a configuration part that can be changed."""
        variable, attribute = self._place(node)
        if not variable:
            return False
        paths = self.paths[variable]
        keys = (_joined(path, attribute) if attribute else path for path in paths)
        return not all(self._is_plain(key) for key in keys)

    def _is_plain(self, key: str) -> bool:
        """Return whether no other statement can change the value for a key."""
        if _ANY_ITEM not in key:
            return key in self.plain_keys
        pattern = re.compile(re.escape(key).replace(re.escape(_ANY_ITEM), r"\d+"))
        return any(pattern.fullmatch(plain_key) for plain_key in self.plain_keys)

    def _values_of_class(self, path: str, call: ast.Call) -> Iterator[ConfigValue]:
        """Yield the arguments given to a nanotron class."""
        class_name = last_name(call.func)
        if path.endswith("model_config") and class_name not in _DENSE_MODELS:
            yield ConfigValue(_joined(path, _sign_of_model(class_name)), True, call.lineno)
        for position, argument in enumerate(call.args):
            parameter = _FIRST_PARAMETERS.get(class_name) if position == 0 else None
            if parameter:
                yield from self.values(_joined(path, parameter), argument)
            else:
                name = _joined(path, f"argument_{position + 1}")
                yield ConfigValue(name, source_of(argument), argument.lineno, known=False)
        for keyword in call.keywords:
            if keyword.arg is None:
                name = _joined(path, "arguments")
                yield ConfigValue(name, source_of(keyword.value), call.lineno, known=False)
            else:
                yield from self.values(_joined(path, keyword.arg), keyword.value)

    def _plain(self, path: str, node: ast.expr) -> ConfigValue:
        """Return a value that is not a nanotron class, or its source text if it is unknown."""
        value = self.scope.value(node)
        if value is UNKNOWN:
            value = self._choice(node)
        if value is UNKNOWN:
            return ConfigValue(path, source_of(node), node.lineno, known=False)
        if path.endswith(_LOWER_CASE) and isinstance(value, str):
            value = value.lower()
        return ConfigValue(path, value, node.lineno)

    def _choice(self, node: ast.expr) -> object:
        """Return the name of an enum member or a type: `reduce_scatter`, `bfloat16`."""
        module, _, name = dotted(node).rpartition(".")
        if module == "torch" or (module in self.classes and name.isupper()):
            return name.lower()
        return UNKNOWN

    def _attribute(self, node: ast.Attribute) -> ast.expr | None:
        """Return the argument that set an attribute, as in `model_config.vocab_size`."""
        variable, _, attribute = dotted(node).partition(".")
        built = self.names.get(variable)
        if not isinstance(built, ast.Call) or is_secret_name(attribute):
            return None
        for keyword in built.keywords:
            if keyword.arg == attribute:
                return keyword.value
        return None

    def _is_class(self, node: ast.expr) -> bool:
        """Return whether an expression is a nanotron class, or names one."""
        if isinstance(node, ast.Name):
            node = self.names.get(node.id, node)
        return isinstance(node, ast.Call) and last_name(node.func) in self.classes


def _unknown(statement: ast.stmt) -> ConfigValue:
    """Return a value that represents a statement with an unknown effect on the configuration."""
    return ConfigValue("statement", source_of_head(statement), statement.lineno, known=False)


def _nodes_in(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions in a statement, except those in nested statements."""
    for head in head_nodes(statement):
        yield from ast.walk(head)


def _loops_of(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the variable for each loop in a statement, and the expression to iterate over."""
    if isinstance(statement, ast.For | ast.AsyncFor):
        yield statement.target, statement.iter
    for node in _nodes_in(statement):
        if isinstance(node, ast.comprehension):
            yield node.target, node.iter


def _bound_by(target: ast.expr) -> list[str]:
    """Return the names that a loop binds to its items, such as `number` and `stage`."""
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _gone_through(iterable: ast.expr) -> list[ast.expr]:
    """Return the lists that a loop iterates over, such as `stages` for `enumerate(stages)`."""
    if not isinstance(iterable, ast.Call) or _called_name(iterable) not in _GIVES_ITEMS:
        return [iterable]
    if isinstance(iterable.func, ast.Attribute):
        return [iterable.func.value]
    return iterable.args


def _called_name(call: ast.Call) -> str:
    """Return the last part of the function name in a call.

    For a call such as `a[0].get()`, the result is `get`.
    """
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return last_name(call.func)


def _calls_in(statement: ast.stmt) -> list[ast.Call]:
    """Return the calls in a statement, except those in nested statements."""
    return [node for node in _nodes_in(statement) if isinstance(node, ast.Call)]


def _items_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the values that an expression may have, such as a, b and d for `[a, b if c else d]`."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        children = node.elts
    elif isinstance(node, ast.Dict | ast.BoolOp):
        children = node.values
    elif isinstance(node, ast.IfExp):
        children = [node.body, node.orelse]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        children = [node.elt]
    elif isinstance(node, ast.DictComp):
        children = [node.key, node.value]
    elif isinstance(node, ast.Starred | ast.NamedExpr):
        children = [node.value]
    else:
        yield node
        return
    for child in children:
        yield from _items_of(child)


def _without_items(node: ast.expr) -> ast.expr:
    """Return an expression up to its first `[...]`."""
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute | ast.Subscript):
        if isinstance(inner, ast.Subscript):
            node = inner.value
        inner = inner.value
    return node


def _builds_another(statement: ast.stmt, built: _BuiltConfig) -> bool:
    """Return whether a later statement may assign a different `Config` to the variable."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call) or last_name(value.func) != _CONFIG:
        return False
    targets = [dotted(target) for target in assigned_targets(statement)]
    return built.variable in targets and value.lineno > built.call.lineno


def _joined(path: str, name: str) -> str:
    """Return the dotted key for a name below a path."""
    return f"{path}.{name}" if path else name


def _is_text(node: ast.expr | None) -> bool:
    """Return whether a dictionary key is a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _sign_of_model(class_name: str) -> str:
    """Return the key that identifies the model in a YAML file.

    >>> _sign_of_model("MambaModelConfig"), _sign_of_model("Starcoder2Config")
    ('is_mamba_config', 'is_starcoder2_config')
    """
    stem = class_name.removesuffix("Config").removesuffix("Model")
    snake = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", stem).lower()
    return f"is_{snake}_config"
