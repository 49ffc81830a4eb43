"""A configuration file as dotted keys with their lines.

The file is TOML, YAML, or the arguments for a recipe.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import yaml

from runbook.core.errors import ParamsError
from runbook.params.yaml12 import compose_with_aliases, scalar_value
from runbook.tools.adopt.configs.safe_values import safe_name, safe_value
from runbook.tools.adopt.messages import AdoptMessage

_MOST_VALUES = 3000
"""Maximum number of keys that have a value.

The largest public configuration that we have seen has 300.
"""
_MOST_NODES = 20_000
"""Maximum number of values, sections and list items to read.

YAML aliases can expand exponentially.
"""
_MOST_DEPTH = 40
_MOST_LETTERS = 200
"""Maximum length of a dotted key in characters."""


@dataclass(frozen=True)
class ConfigValue:
    """A value in a configuration."""

    name: str
    """Dotted key, as the program spells it."""
    value: Any
    """A number, a string, a boolean, None, or a list of these."""
    line: int
    """The line in the file, or 0 for a program default."""
    known: bool = True
    """Whether the value can be read without running the program."""

    @property
    def shown(self) -> str:
        """The value as it is written in the file, for display."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, default=str)


def toml_values(text: str, file_name: str) -> list[ConfigValue]:
    """Return the values in a TOML file. Raise `ParamsError` if it is not valid TOML."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ParamsError(
            AdoptMessage.NOT_TOML, file_name=file_name, reason=safe_value("", str(error))
        ) from error
    except (ValueError, RecursionError) as error:
        # tomllib raises these errors for a 6,000-digit number and for 3,000 nested brackets
        raise ParamsError(
            AdoptMessage.TOML_NOT_READABLE, file_name=file_name, name=type(error).__name__
        ) from error

    reader = _Reader(file_name)
    return list(reader.toml_values(tree, "", 1, _toml_lines(text)))


def yaml_values(text: str, file_name: str) -> list[ConfigValue]:
    """Return the values in a YAML file, with aliases resolved.

    Raise `ParamsError` if the file is not a mapping.
    """
    node = compose_with_aliases(text, file_name)
    if not isinstance(node, yaml.MappingNode):
        raise ParamsError(AdoptMessage.NO_KEYS, file_name=file_name)
    return list(_Reader(file_name).yaml_values(node, "", 0))


def _toml_lines(text: str) -> dict[str, int]:
    """Return the line for each key and section in a TOML file, by dotted name."""
    lines: dict[str, int] = {}
    # How many tables each array of tables has
    counts: Counter[str] = Counter()
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)([\w.\"' -]+)\]", line)
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if header:
            section = re.sub(r"[\"' ]", "", header[2])
            if header[1] == "[[":
                counts[section] += 1
                section = f"{section}.{counts[section] - 1}"

            lines.setdefault(section, number)
            section += "."
        elif key:
            lines.setdefault(section + re.sub(r"[\"']", "", key[1]), number)

    return lines


class _Reader:
    """Reads the values in a parsed file, and counts them."""

    def __init__(self, file_name: str) -> None:
        self.file_name = file_name
        self.values = 0
        self.nodes = 0

    def toml_values(
        self,
        tree: Mapping[str, object],
        prefix: str,
        line: int,
        lines: Mapping[str, int],
    ) -> Iterator[ConfigValue]:
        """Yield each value in nested tables with its dotted key.

        A value without a known line gets the line of its table.
        """
        for key, value in tree.items():
            name = f"{prefix}{key}"
            own_line = lines.get(name, line)
            if isinstance(value, Mapping) and value:
                self._count(name.count("."), name)
                yield from self.toml_values(value, f"{name}.", own_line, lines)
            elif _is_list_of_tables(value):
                for number, item in enumerate(value):
                    self._count(name.count("."), name)
                    section = f"{name}.{number}"
                    section_line = lines.get(section, own_line)
                    if item:
                        yield from self.toml_values(item, f"{section}.", section_line, lines)
                    else:
                        yield self._value(section, {}, section_line)
            else:
                yield self._value(name, self._counted(value, 0, name), own_line)

    def yaml_values(
        self,
        node: yaml.MappingNode,
        prefix: str,
        depth: int,
    ) -> Iterator[ConfigValue]:
        """Yield each value below a mapping with its dotted key and its line."""
        for key, child in node.value:
            name = f"{prefix}{self._key(key)}"
            line = key.start_mark.line + 1
            self._count(depth, name)
            if isinstance(child, yaml.MappingNode) and child.value:
                yield from self.yaml_values(child, f"{name}.", depth + 1)
            elif isinstance(child, yaml.SequenceNode) and _is_list_of_sections(child):
                for number, item in enumerate(child.value):
                    self._count(depth, name)
                    section = f"{name}.{number}"
                    if item.value:
                        yield from self.yaml_values(item, f"{section}.", depth + 1)
                    else:
                        yield self._value(section, {}, item.start_mark.line + 1)
            else:
                yield self._value(name, self._plain(child, depth, name), line)

    def _key(self, node: yaml.Node) -> str:
        """Return a YAML key.

        Raise `ParamsError` if the key is a list or a mapping.
        """
        if not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise ParamsError(AdoptMessage.LIST_AS_KEY, file_name=self.file_name, line=line)

        return str(node.value)

    def _plain(
        self,
        node: yaml.Node,
        depth: int,
        name: str,
    ) -> Any:
        """Convert a node to a plain value: a scalar, a list, or a section inside a mixed list."""
        self._count(depth, name)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, depth + 1, name) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {self._key(key): self._plain(item, depth + 1, name) for key, item in node.value}
        if not isinstance(node, yaml.ScalarNode):
            return {}
        try:
            return scalar_value(node)
        except ValueError:
            return str(node.value)

    def _counted(
        self,
        value: Any,
        depth: int,
        name: str,
    ) -> Any:
        """Convert a TOML value to a plain value, and count its items."""
        self._count(depth, name)
        if isinstance(value, list):
            return [self._counted(item, depth + 1, name) for item in value]
        if isinstance(value, dict):
            return {key: self._counted(item, depth + 1, name) for key, item in value.items()}
        return value

    def _count(self, depth: int, name: str) -> None:
        """Raise `ParamsError` if a file is nested too deeply, or has too many or too long keys."""
        self.nodes += 1
        if len(name) > _MOST_LETTERS:
            shown_name = safe_name(name[:60])
            raise ParamsError(
                AdoptMessage.KEY_TOO_LONG,
                file_name=self.file_name,
                shown_name=shown_name,
                most_letters=_MOST_LETTERS,
            )

        if depth > _MOST_DEPTH:
            raise ParamsError(
                AdoptMessage.NESTED_TOO_DEEP, file_name=self.file_name, most_depth=_MOST_DEPTH
            )
        if self.nodes > _MOST_NODES:
            raise ParamsError(
                AdoptMessage.TOO_MANY_VALUES, file_name=self.file_name, most_nodes=_MOST_NODES
            )

    def _value(
        self,
        name: str,
        value: Any,
        line: int,
    ) -> ConfigValue:
        """Return a value in a form that can be shown to the user."""
        self._count(0, name)
        self.values += 1
        if self.values > _MOST_VALUES:
            raise ParamsError(
                AdoptMessage.TOO_MANY_KEYS, file_name=self.file_name, most_values=_MOST_VALUES
            )

        try:
            return safe(ConfigValue(name, value, line))
        except OverflowError as error:
            raise ParamsError(
                AdoptMessage.YAML_ERROR,
                file_name=self.file_name,
                line=line,
                name=safe_name(name),
                error=error,
            ) from error


def _is_list_of_tables(value: object) -> TypeGuard[list[dict[str, object]]]:
    """Return whether a TOML list contains only tables."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _is_list_of_sections(node: yaml.SequenceNode) -> bool:
    """Return whether a list contains only sections, such as data_stages in nanotron."""
    return bool(node.value) and all(isinstance(item, yaml.MappingNode) for item in node.value)


def safe(value: ConfigValue) -> ConfigValue:
    """Return a value without control characters and without secrets.

    Raise OverflowError for a number with more than 64 bits.
    """
    return replace(value, name=safe_name(value.name), value=safe_value(value.name, value.value))


def by_name(values: Sequence[ConfigValue]) -> dict[str, ConfigValue]:
    """Return the last value for each key, in the order in which the file sets the keys."""
    last: dict[str, ConfigValue] = {}
    for value in values:
        last.pop(value.name, None)
        last[value.name] = value

    return last
