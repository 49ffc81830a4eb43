"""Writes frozen dataclasses to JSON with computed values, and reads them strictly.

The reader reports all problems in a file together.
"""

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.messages import PlanFileMessage

OPTIONAL = {"optional": True}
"""Metadata for a field that may be missing in JSON.

All other fields must be present, even if they have a default.
"""
OMIT_DEFAULT = {"optional": True, "omit_default": True}
"""Metadata for a field that is left out of JSON if it has the default value, to keep the text of
older plans the same.
"""
NOT_IN_JSON = {"not_in_json": True}
"""Metadata for a field that exists only in the program."""
FLAT = {"flat": True}
"""Metadata for a field that is itself a record. In JSON, its keys are stored among those of the
enclosing record.
"""
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}

Record = TypeVar("Record")
_hints = functools.cache(get_type_hints)


def append_line(path: Path, record: Mapping[str, object]) -> None:
    """Append a line of JSON in a single write.

    If a killed process left the last line incomplete, that line is ended first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as stream:
        torn = b""
        if stream.seek(0, 2):
            stream.seek(-1, 2)
            torn = b"" if stream.read(1) == b"\n" else b"\n"

        stream.write(torn + as_line(record) + b"\n")


def as_line(record: Mapping[str, object]) -> bytes:
    """Return a record as JSON. NaN, which JSON lacks, becomes null."""
    line = dict(record)
    for key, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            line[key] = None

    return json.dumps(line).encode()


def as_json(value: Any) -> Any:
    """Return a value as plain JSON types.

    Records become dicts, including the properties in their `COMPUTED`; tuples become lists.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        content: dict[str, Any] = {}
        for key, member in _members(type(value)).items():
            part = getattr(value, member.name)
            if member.metadata.get("flat"):
                content |= as_json(part)
                continue

            if member.default_factory is dataclasses.MISSING:
                default = member.default
            else:
                default = member.default_factory()

            if not member.metadata.get("omit_default") or part != default:
                content[key] = as_json(part)

        return content | {
            name: as_json(getattr(value, name)) for name in getattr(value, "COMPUTED", ())
        }

    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return value


def from_json(
    kind: type[Record],
    content: Any,
    *,
    name: str,
    failure: str,
) -> Record:
    """Build a record of this type from its JSON.

    Raise `RefusedError` with every unknown key, missing key and value of the wrong type. `name`
    stands for the record in problems that concern the whole record; `failure` is the first line of
    the error.
    """
    problems: list[str] = []
    record: Record = _record(
        kind,
        content,
        "",
        name,
        problems,
    )
    if problems:
        raise RefusedError("\n".join([failure, *(f"  {problem}" for problem in problems)]))
    return record


def value_at(record: Any, path: str) -> Any:
    """Return the value in a record at a JSON path, such as `model.heads` or `batch.global`.

    A path may name a property, as in `learning_rate.falls_from`.
    """
    for key in path.split("."):
        record = _value_under(record, key)

    return record


def _value_under(record: Any, key: str) -> Any:
    kind: type = type(record)
    members = _members(kind)
    if key in members:
        return getattr(record, members[key].name)
    for member in members.values():
        if member.metadata.get("flat"):
            part = getattr(record, member.name)
            part_kind: type = type(part)
            if key in _keys(part_kind) or hasattr(part_kind, key):
                return _value_under(part, key)

    return getattr(record, key)


@functools.cache
def _members(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields by JSON key; the key for `global_` is `global`."""
    members = dataclasses.fields(kind)
    by_name = {}
    for member in members:
        if not member.metadata.get("not_in_json"):
            by_name[member.name.rstrip("_")] = member

    return by_name


@functools.cache
def _keys(kind: type) -> tuple[str, ...]:
    """Return the keys a record may have in JSON, including those from flat records in it."""
    keys = list[str]()
    for key, member in _members(kind).items():
        if member.metadata.get("flat"):
            keys += _keys(_hints(kind)[member.name])
        else:
            keys.append(key)

    return tuple(keys)


def _record(
    kind: type,
    content: Any,
    where: str,
    name: str,
    problems: list[str],
) -> Any:
    if not isinstance(content, dict):
        problems.append(f"{name}: {shown(content)} is not a mapping")
        return None

    members = _members(kind)
    known_keys = _keys(kind)
    values = {}
    for key in content:
        if key not in known_keys and key not in getattr(kind, "COMPUTED", ()):
            problems.append(
                f"{where}{key}: unknown key; the known keys are {', '.join(known_keys)}"
            )

    for key, member in members.items():
        if member.metadata.get("flat"):
            part = _hints(kind)[member.name]
            part_content = {inner: content[inner] for inner in _keys(part) if inner in content}
            values[member.name] = _record(part, part_content, where, name, problems)
        elif key in content:
            values[member.name] = _value(
                _hints(kind)[member.name], content[key], f"{where}{key}", problems
            )
        elif not member.metadata.get("optional"):
            problems.append(f"{where}{key}: missing")

    return None if problems else kind(**values)


def _value(
    kind: Any,
    content: Any,
    where: str,
    problems: list[str],
) -> Any:
    """Return the value if it has the declared type; otherwise report a problem."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(
            kind,
            content,
            f"{where}.",
            where,
            problems,
        )

    if kind is Any:
        return content
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin in (Union, types.UnionType):
        if content is None:
            return None
        present_kind = next(part for part in inner if part is not type(None))
        return _value(present_kind, content, where, problems)

    if origin is Literal:
        if content not in inner:
            problems.append(f"{where}: {content!r} is not one of {', '.join(inner)}")
        return content

    if origin is dict:
        return _mapping(inner[1], content, where, problems)
    if origin is tuple:
        return _sequence(inner[0], content, where, problems)
    return _plain_value(kind, content, where, problems)


def _mapping(
    kind: Any,
    content: Any,
    where: str,
    problems: list[str],
) -> dict[str, object] | None:
    if not isinstance(content, dict):
        problems.append(f"{where}: {shown(content)} is not a mapping")
        return None

    return {key: _value(kind, part, f"{where}.{key}", problems) for key, part in content.items()}


def _sequence(
    kind: Any,
    content: Any,
    where: str,
    problems: list[str],
) -> tuple[Any, ...] | None:
    if not isinstance(content, list):
        problems.append(f"{where}: {shown(content)} is not a list")
        return None

    return tuple(
        _value(kind, part, f"{where}[{index}]", problems) for index, part in enumerate(content)
    )


def _plain_value(
    kind: Any,
    content: Any,
    where: str,
    problems: list[str],
) -> Any:
    accepted = (int, float) if kind is float else (kind,)
    # In Python, a bool is also an int.
    is_stray_bool = isinstance(content, bool) and kind is not bool
    if not isinstance(content, accepted) or is_stray_bool:
        problems.append(
            PlanFileMessage.WRONG_TYPE.fill(where=where, value=shown(content), type=_NAMES[kind])
        )
        return None

    return kind(content)


def shown(content: Any, widest: int = 60) -> str:
    """Return a value as JSON, shortened if it is long."""
    text = json.dumps(content)
    if len(text) <= widest:
        return text
    return text[: widest - 3] + "..."
