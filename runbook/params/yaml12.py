"""Reads YAML 1.2 with a line number for every value, and writes YAML that means the same in 1.1."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.messages import ParamsMessage

try:
    # The loader in libyaml is ten times as fast, and gives the same nodes.
    from yaml import CSafeLoader as _Base
except ImportError:
    # PyYAML built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

_TAG = "tag:yaml.org,2002:"
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
KeyPath = tuple[str, ...]
Remark = Callable[[str, Any], str]


class CoreLoader(_Base):
    """The PyYAML loader, but with plain scalars as in the core schema of YAML 1.2.

    With it, `no` is a word and `1e-4` is a number.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_CORE = (  # YAML 1.2.2, section 10.3.2
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
for _name, _pattern, _first in _CORE:
    CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


@dataclass(frozen=True)
class YamlDocument:
    """A YAML mapping that knows where each value is."""

    where: str
    """File name as shown to people."""
    values: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """Line number for each key and value, by key path."""

    def origin(self, path: KeyPath) -> str:
        """Return where a value or its nearest section is defined, such as `params/local.yaml:12`."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.where}:{self.lines[path]}" if path else self.where


def read_text(path: Path, where: str) -> str:
    """Read a parameter file.

    Raise `ParamsError` if it is missing, too big, or not UTF-8.
    """
    if not path.is_file():
        if path.exists():
            raise ParamsError(ParamsMessage.NOT_A_FILE, where=where)
        raise ParamsError(ParamsMessage.NO_SUCH_FILE, where=where)

    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ParamsError(
                ParamsMessage.FILE_TOO_LARGE, where=where, size=size, limit=_MAX_BYTES
            )

        raw = path.read_bytes()
    except OSError as error:
        raise ParamsError(
            ParamsMessage.FILE_NOT_READABLE, where=where, reason=error.strerror
        ) from error

    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        lines = raw[: error.start].split(b"\n")
        raise ParamsError(
            ParamsMessage.NOT_UTF8,
            where=where,
            line=len(lines),
            column=len(lines[-1]) + 1,
            byte=raw[error.start],
        ) from error


def read_file(path: Path, where: str) -> YamlDocument:
    """Return the mapping in a YAML file.

    Raise `ParamsError`, which names the file, line and column where a fault is.
    """
    return read_mapping(read_text(path, where), where)


def read_mapping(text: str, where: str) -> YamlDocument:
    r"""Return the mapping in `text`.

    >>> read_mapping("lr: 1e-4\nanswer: no\nwalltime: 12:00:00\n", "x.yaml").values
    {'lr': 0.0001, 'answer': 'no', 'walltime': '12:00:00'}
    """
    node = compose(text, where)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"):
        raise ParamsError(ParamsMessage.FILE_EMPTY, where=where)

    if not isinstance(node, yaml.MappingNode):
        if isinstance(node, yaml.SequenceNode):
            kind = "a list"
        else:
            kind = "one single value"

        raise ParamsError(ParamsMessage.FILE_NOT_A_MAPPING, where=_at(where, node), kind=kind)

    lines: dict[KeyPath, int] = {}
    return YamlDocument(where, _convert(node, (), where, lines), lines)


def compose(text: str, where: str, loader: type[Any] = CoreLoader) -> yaml.Node | None:
    """Parse `text` to nodes, before they become values.

    Return None if it has only comments.
    """
    return _composed(text, where, loader, allow_aliases=False)


def compose_with_aliases(text: str, where: str) -> yaml.Node | None:
    """Compose YAML from a different program, which may have aliases.

    With an alias, a node can contain itself.
    """
    return _composed(text, where, CoreLoader, allow_aliases=True)


def _composed(
    text: str,
    where: str,
    loader: type[Any],
    *,
    allow_aliases: bool,
) -> yaml.Node | None:
    """Parse `text` to nodes.

    Raise `ParamsError` if the text is not YAML or is nested too deeply.
    """
    try:
        _refuse_depth(text, where, allow_aliases=allow_aliases)
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark:
            position = f"{where}:{mark.line + 1}:{mark.column + 1}"
        else:
            position = where

        reason = ", ".join(part for part in (error.context, error.problem) if part)
        row = ""
        if mark and mark.line < len(text.splitlines()):
            row = text.splitlines()[mark.line]
        tab = "\\t" in reason or "\t" in row[: len(row) - len(row.lstrip())]
        hint = " Indent with spaces, not with tabs." if tab else ""
        raise ParamsError(
            ParamsMessage.NOT_YAML, position=position, reason=reason, hint=hint
        ) from error
    except yaml.reader.ReaderError as error:
        lines = text[: error.position].split("\n")
        raise ParamsError(
            ParamsMessage.NOT_YAML_AT_THE_END,
            where=where,
            line=len(lines),
            column=len(lines[-1]) + 1,
            reason=error.reason,
        ) from error

    return node


def read_scalar(text: str) -> Any:
    """Return the value that `text` has outside quotes.

    >>> read_scalar("6e-5"), read_scalar("024"), read_scalar("0x1F"), read_scalar("on"), read_scalar("true")
    (6e-05, 24, 31, 'on', True)
    """
    for name, pattern, _ in _CORE:
        if re.fullmatch(pattern, text):
            return _construct(name, text)

    return text


def scalar_value(node: yaml.ScalarNode) -> Any:
    """Convert a node read by `CoreLoader` to a value.

    Raise `ValueError` for an invalid number (`!!int abc`).
    """
    name = node.tag.removeprefix(_TAG)
    if name not in ("null", "bool", "int", "float"):
        return str(node.value)
    return _construct(name, node.value)


def scalars(
    node: yaml.Node | None, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    """Yield every scalar below a node with its key path, in the order of the text.

    Keys also count as scalars.
    """
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            key_path = (*path, str(key.value))
            yield from scalars(key, key_path)
            yield from scalars(value, key_path)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from scalars(item, path)


def _refuse_depth(text: str, where: str, *, allow_aliases: bool) -> None:
    """Reject text that is nested too deeply.

    The composer in libyaml recurses in C, where a thousand open brackets crash the process.
    """
    depth = 0
    for event in yaml.parse(text, Loader=CoreLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise ParamsError(
                    ParamsMessage.NESTED_TOO_DEEP, where=_at(where, event), max_depth=_MAX_DEPTH
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent) and not allow_aliases:
            raise ParamsError(ParamsMessage.ALIAS, where=_at(where, event), anchor=event.anchor)


def _at(where: str, node: Any) -> str:
    return f"{where}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _construct(name: str, text: str) -> Any:
    if name == "null":
        return None
    if name == "bool":
        return text.lower() == "true"
    if name == "int":
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    return float(re.sub(r"\.(inf|nan)$", r"\1", text, flags=re.IGNORECASE))


def _convert(
    node: yaml.Node,
    path: KeyPath,
    where: str,
    lines: dict[KeyPath, int],
) -> Any:
    """Convert a node to a plain value, and store the line of each value in `lines`."""
    lines.setdefault(path, node.start_mark.line + 1)
    name = node.tag.removeprefix(_TAG)
    if isinstance(node, yaml.MappingNode) and name == "map":
        return _mapping(node, path, where, lines)
    if isinstance(node, yaml.SequenceNode) and name == "seq":
        items = []
        for index, item in enumerate(node.value):
            items.append(_convert(item, (*path, str(index)), where, lines))

        return items

    if not isinstance(node, yaml.ScalarNode) or name not in ("str", "null", "bool", "int", "float"):
        raise ParamsError(ParamsMessage.TAG, where=_at(where, node), tag=node.tag)

    try:
        return scalar_value(node)
    except ValueError as error:
        raise ParamsError(
            ParamsMessage.NOT_OF_ITS_TYPE, where=_at(where, node), name=name, error=str(error)[:80]
        ) from error


def _mapping(
    node: yaml.MappingNode,
    path: KeyPath,
    where: str,
    lines: dict[KeyPath, int],
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ParamsError(ParamsMessage.KEY_NOT_A_WORD, where=_at(where, key_node))

        key = str(key_node.value)
        key_path = (*path, key)
        if key in values:
            raise ParamsError(
                ParamsMessage.KEY_TWICE,
                where=_at(where, key_node),
                key=".".join(key_path),
                line=lines[key_path],
            )

        lines[key_path] = key_node.start_mark.line + 1
        values[key] = _convert(value_node, key_path, where, lines)

    return values


def nest(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by dotted key, nested as in a run file.

    >>> nest({"model": "tiny", "jobs.training.nodes": 2})
    {'model': 'tiny', 'jobs': {'training': {'nodes': 2}}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value

    return tree


def dotted(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves in nested mappings by dotted key.

    >>> dotted({"a": {"b": 1, "c": 2}, "d": 3})
    {'a.b': 1, 'a.c': 2, 'd': 3}
    """
    if not isinstance(tree, dict):
        return {prefix: tree}
    leaves = {}
    for name, value in tree.items():
        for key, leaf in dotted(value, f"{prefix}.{name}".strip(".")).items():
            leaves[key] = leaf

    return leaves


def write_tree(
    tree: Mapping[str, object],
    indent: str = "",
    remark: Remark = lambda key, value: "",
    section: str = "",
) -> str:
    r"""Return nested values as YAML lines. `remark` returns the comment for a key and its value.

    >>> write_tree({"model": "tiny", "jobs": {"training": {"walltime": "00:30:00"}}})
    'model: tiny\njobs:\n  training:\n    walltime: "00:30:00"\n'
    """
    lines = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            inner = write_tree(value, f"{indent}  ", remark, f"{section}{key}.")
            lines.append(f"{indent}{key}:\n{inner}")
        else:
            behind = remark(section + key, value)
            lines.append(f"{indent}{key}: {write_scalar(value)}{behind}\n")

    return "".join(lines)


def write_scalar(value: Any) -> str:
    """Return a value as YAML. A string that YAML 1.1 or 1.2 would misread is quoted.

    >>> write_scalar(6e-05), write_scalar("no"), write_scalar("bf16"), write_scalar("12:00:00"), write_scalar(True)
    ('6.0e-5', '"no"', 'bf16', '"12:00:00"', 'true')
    """
    if isinstance(value, float):
        mantissa, letter, exponent = repr(value).partition("e")
        if not letter:
            return mantissa
        # YAML 1.1 reads a number as a float only if it has a point and a sign: 6.0e-5.
        point = "" if "." in mantissa else ".0"
        return f"{mantissa}{point}e{int(exponent):+d}"

    text = str(value)
    if isinstance(value, int):
        return text.lower()  # true and false
    if _is_bare(text):
        return text
    quoted = str(
        yaml.dump(
            text,
            default_style='"',
            allow_unicode=True,
            width=math.inf,
        )
    )
    return visible(quoted).rstrip("\n")  # JSON escapes are valid in YAML too


def _is_bare(text: str) -> bool:
    if (
        not text
        or not text.isascii()
        or not text.replace("-", "").replace("_", "").replace(".", "").isalnum()
    ):
        return False

    try:
        return text[0].isalnum() and read_scalar(text) == text and yaml.safe_load(text) == text
    except ValueError:
        # YAML 1.1 reads 0x_ as a number and then fails on it.
        return False
