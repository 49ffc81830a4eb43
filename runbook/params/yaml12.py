"""YAML read by the 1.2 core rules, with the line of every value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runbook.errors import ParamsError

try:
    from yaml import CSafeLoader as _Base  # ten times faster, same nodes
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

_TAG = "tag:yaml.org,2002:"
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
Path_ = tuple[str, ...]


class CoreLoader(_Base):
    """PyYAML's loader with the plain words of YAML 1.2 core, so `no` is a word and `1e-4` a number."""

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
class Document:
    """A YAML mapping and where each of its values stands."""

    where: str
    """The file as it is shown to people."""

    values: dict[str, Any]
    lines: Mapping[Path_, int] = field(default_factory=dict)
    """Line of each key and value, by its path of keys."""

    def origin(self, path: Path_) -> str:
        """`params/local.yaml:12` of a value, or of the nearest section above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.where}:{self.lines[path]}" if path else self.where


def read_text(path: Path, where: str) -> str:
    """The text of a parameter file; `ParamsError` when it is missing, too big, or not UTF-8."""
    if not path.exists():
        raise ParamsError(f"{where}: there is no such file.")
    if not path.is_file():
        raise ParamsError(f"{where}: is not a file.")
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ParamsError(
                f"{where}: {size} bytes; a parameter file has at most {_MAX_BYTES}. Is it the right file?"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise ParamsError(f"{where}: cannot be read: {error.strerror}.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise ParamsError(
            f"{where}:{line}:{column}: byte 0x{raw[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        ) from error


def read_file(path: Path, where: str) -> Document:
    """The mapping in a YAML file; `ParamsError` names file, line and column of what is wrong."""
    return read_mapping(read_text(path, where), where)


def read_mapping(text: str, where: str) -> Document:
    r"""The mapping that `text` is.

    >>> read_mapping("lr: 1e-4\nanswer: no\nwalltime: 12:00:00\n", "x.yaml").values
    {'lr': 0.0001, 'answer': 'no', 'walltime': '12:00:00'}
    """
    node = compose(text, where)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"):
        raise ParamsError(f"{where}: is empty. Write `key: value` lines, beginning with `run:` in a run file.")
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "one single value"
        raise ParamsError(f"{_at(where, node)}: is {kind}, not a mapping of `key: value` lines.")
    lines: dict[Path_, int] = {}
    values = _Converter(where, lines).convert(node, ())
    return Document(where, values, lines)


def compose(text: str, where: str, loader: type[Any] = CoreLoader) -> yaml.Node | None:
    """The nodes of `text` before they become values; None when there is nothing but comments."""
    try:
        _refuse_depth(text, where)
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        said = ", ".join(part for part in (error.context, error.problem) if part)
        hint = " Indent with spaces, not with tabs." if "\\t" in said or _tab_at(text, mark) else ""
        raise ParamsError(f"{place}: is not YAML: {said}.{hint}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        raise ParamsError(f"{where}:{line}:{column}: is not YAML: {error.reason}.") from error
    return node


def read_scalar(text: str) -> Any:
    """The value that `text` has outside quotes.

    >>> read_scalar("6e-5"), read_scalar("024"), read_scalar("0x1F"), read_scalar("on"), read_scalar("true")
    (6e-05, 24, 31, 'on', True)
    """
    for name, pattern, _ in _CORE:
        if re.fullmatch(pattern, text):
            return _construct(name, text)
    return text


def scalar_value(node: yaml.ScalarNode) -> Any:
    """The value of a node read by `CoreLoader`; `ValueError` for a number that is none (`!!int abc`)."""
    name = node.tag.removeprefix(_TAG)
    return str(node.value) if name not in ("null", "bool", "int", "float") else _construct(name, node.value)


def scalars(node: yaml.Node | None, path: Path_ = ()) -> Iterator[tuple[Path_, yaml.ScalarNode]]:
    """Every scalar below a node with its path of keys, the keys included, in the order of the text."""
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield from scalars(key, here)
            yield from scalars(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from scalars(item, path)


def _refuse_depth(text: str, where: str) -> None:
    """Stop here before libyaml's composer recurses in C, where a thousand open brackets end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=CoreLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise ParamsError(f"{_at(where, event)}: is nested more than {_MAX_DEPTH} deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise ParamsError(
                f"{_at(where, event)}: *{event.anchor} repeats another value. Parameter files have no aliases: "
                "write the value out."
            )


def _tab_at(text: str, mark: Any) -> bool:
    if mark is None:
        return False
    line = (text.splitlines() or [""])[min(mark.line, max(len(text.splitlines()) - 1, 0))]
    return "\t" in line[: len(line) - len(line.lstrip())]


def _at(where: str, node: Any) -> str:
    return f"{where}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _construct(name: str, text: str) -> Any:
    if name == "null":
        return None
    if name == "bool":
        return text.lower() == "true"
    if name == "int":
        return int(text, 8 if text[:2] == "0o" else 16 if text[:2] == "0x" else 10)
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if text.lower()[-3:] in ("inf", "nan") else text)


class _Converter:
    """Nodes to plain values; keeps the line of each."""

    def __init__(self, where: str, lines: dict[Path_, int]) -> None:
        self.where = where
        self.lines = lines

    def convert(self, node: yaml.Node, path: Path_) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.convert(item, (*path, str(index))) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ParamsError(f"{_at(self.where, key_node)}: a key must be one word, not a list or a mapping.")
            key = str(key_node.value)
            here = (*path, key)
            if key in values:
                raise ParamsError(
                    f"{_at(self.where, key_node)}: {'.'.join(here)} is given twice; first in line {self.lines[here]}. "
                    "Keep one of them."
                )
            self.lines[here] = key_node.start_mark.line + 1
            values[key] = self.convert(value_node, here)
        return values

    def _scalar(self, node: yaml.Node) -> Any:
        name = node.tag.removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or name not in ("str", "null", "bool", "int", "float"):
            raise ParamsError(f"{_at(self.where, node)}: the tag {node.tag} is not used here. Write a plain value.")
        try:
            return scalar_value(node)
        except ValueError as error:
            raise ParamsError(f"{_at(self.where, node)}: is not {name}: {str(error)[:80]}.") from error
