"""A configuration file as dotted keys with their lines: TOML, YAML, or the keyword arguments of a recipe."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.params.yaml12 import CoreLoader, scalar_value
from runbook.tools.adopt.other_sources import MASKED, is_secret_option

_MOST_VALUES = 20_000
"""Values of a file. Aliases of YAML can repeat each other without end."""
_MOST_DEPTH = 40


@dataclass(frozen=True)
class ConfigValue:
    """One value of a configuration."""

    name: str
    """Its dotted key, as the program spells it."""
    value: Any
    """A number, a text, a truth value, None, or a list of them."""
    line: int
    """0: the program's own default."""
    known: bool = True
    """Whether the value can be read without running the program."""

    @property
    def shown(self) -> str:
        """The value for people, as the file has it."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, default=str)


def toml_values(text: str, file_name: str) -> list[ConfigValue]:
    """Return the values of a TOML file. Raise `ParamsError` where it is none."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ParamsError(f"{file_name} is not TOML: {error}.") from error
    lines = _toml_lines(text)
    return [
        _safe(ConfigValue(name, value, lines.get(name, 0))) for name, value in _leaves(tree, "", 0)
    ]


def _toml_lines(text: str) -> dict[str, int]:
    """Return the line of each key of a TOML file, by its dotted name."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([\w.\"' -]+)\]", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if header:
            section = re.sub(r"[\"' ]", "", header[1]) + "."
        elif key:
            lines[section + re.sub(r"[\"']", "", key[1])] = number
    return lines


def _leaves(tree: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield each value of nested tables with its dotted key."""
    if depth > _MOST_DEPTH:
        raise ParamsError(f"the configuration is nested more than {_MOST_DEPTH} deep.")
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def yaml_values(text: str, file_name: str) -> list[ConfigValue]:
    """Return the values of a YAML file, aliases resolved. Raise `ParamsError` where it is no mapping."""
    try:
        node = yaml.compose(text, Loader=CoreLoader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ParamsError(f"{file_name} is not YAML: {reason}.") from error
    if not isinstance(node, yaml.MappingNode):
        raise ParamsError(f"{file_name} is no configuration: it has no `key: value` lines.")
    values = []
    for value in _node_values(node, "", 0):
        values.append(_safe(value))
        if len(values) > _MOST_VALUES:
            raise ParamsError(f"{file_name} has more than {_MOST_VALUES:,} values.")
    return values


def _node_values(node: yaml.MappingNode, prefix: str, depth: int) -> Iterator[ConfigValue]:
    """Yield each value below a mapping with its dotted key and its line."""
    if depth > _MOST_DEPTH:
        raise ParamsError(f"the configuration is nested more than {_MOST_DEPTH} deep.")
    for key, child in node.value:
        name = f"{prefix}{getattr(key, 'value', '')}"
        line = key.start_mark.line + 1
        if isinstance(child, yaml.MappingNode) and child.value:
            yield from _node_values(child, f"{name}.", depth + 1)
        elif isinstance(child, yaml.SequenceNode) and _is_list_of_sections(child):
            for number, item in enumerate(child.value):
                yield from _node_values(item, f"{name}.{number}.", depth + 1)
        else:
            yield ConfigValue(name, _plain_value(child, depth), line)


def _is_list_of_sections(node: yaml.SequenceNode) -> bool:
    """Return whether a list has sections only, as nanotron's data_stages."""
    return bool(node.value) and all(isinstance(item, yaml.MappingNode) for item in node.value)


def _plain_value(node: yaml.Node, depth: int) -> Any:
    """Return the value of a node that has no keys of its own; of a list its items."""
    if depth > _MOST_DEPTH:
        raise ParamsError(f"the configuration is nested more than {_MOST_DEPTH} deep.")
    if isinstance(node, yaml.SequenceNode):
        return [_plain_value(item, depth + 1) for item in node.value[:_MOST_ITEMS]]
    if isinstance(node, yaml.ScalarNode):
        try:
            return scalar_value(node)
        except ValueError:
            return str(node.value)
    return {}


_MOST_ITEMS = 1000
"""Items of a list that are read: weights of a blend, steps to save at."""


def _safe(value: ConfigValue) -> ConfigValue:
    """Return a value without control characters, secrets masked."""
    name = visible(value.name)
    if is_secret_option(name.rpartition(".")[2]) and isinstance(value.value, str):
        return ConfigValue(name, MASKED, value.line)
    return ConfigValue(name, _safe_text(value.value), value.line, value.known)


def _safe_text(value: Any) -> Any:
    if isinstance(value, str):
        return visible(mask(value))
    if isinstance(value, list):
        return [_safe_text(item) for item in value]
    return value


def by_name(values: Sequence[ConfigValue]) -> dict[str, ConfigValue]:
    """Return the last value of each key."""
    return {value.name: value for value in values}
