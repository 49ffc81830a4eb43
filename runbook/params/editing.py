"""A run file with other values: its comments, its order and the values that stay are kept as they are written.

edited_text(text, where, values) -> str
"""

import contextlib
from collections.abc import Iterator, Mapping, Set

import yaml

from runbook.core.errors import ParamsError
from runbook.params.layers import document_layer
from runbook.params.problems import differences
from runbook.params.schema.keys import full_path
from runbook.params.yaml12 import KeyPath, compose, nest, read_mapping, scalar_value, write_scalar, write_tree

Change = tuple[int, int, int, str]
"""Where it begins in the text, what comes first of several at one place, where it ends, and the new words."""


def edited_text(text: str, where: str, values: Mapping[str, object]) -> str:
    r"""The text of a run file that says these values, by dotted key, and nothing else.

    What `text` says already stays as it stands there. `ParamsError` where the text cannot be edited so, such as a
    section that is empty; it is then written whole.

    >>> edited_text("run: a  # mine\nmodel: tiny\n", "a.yaml", {"run": "b", "model": "tiny", "training.seed": 7})
    'run: b  # mine\nmodel: tiny\ntraining:\n  seed: 7\n'
    """
    root = compose(text, where)
    if not isinstance(root, yaml.MappingNode):
        raise ParamsError(f"{where}: is not a mapping of `key: value` lines.")
    result = text if text.endswith("\n") else text + "\n"
    changes: list[Change] = []
    misread = {problem.key for problem in differences(text, where)}
    sections: dict[KeyPath, yaml.MappingNode] = {(): root}
    there: set[str] = set()
    for path, written, node in _below(root):
        key = ".".join(path)
        if isinstance(node, yaml.MappingNode):
            sections[path] = node
        elif isinstance(node, yaml.ScalarNode) and key in values:
            there.add(key)
            if scalar_value(node) != values[key] or ".".join(written) in misread:
                changes.append((node.start_mark.index, 0, node.end_mark.index, write_scalar(values[key])))
    changes += [_addition(result, sections[path], tree) for path, tree in _missing(values, there, sections).items()]
    for start, _, end, words in sorted(changes, reverse=True):
        result = result[:start] + words + result[end:]
    layer = document_layer("run file", read_mapping(result, where))
    if layer.problems or {key: origin.value for key, origin in layer.leaves.items()} != dict(values):
        raise ParamsError(f"{where}: its lines cannot be edited one by one.")
    return result


def _addition(text: str, section: yaml.MappingNode, tree: Mapping[str, object]) -> Change:
    """Keys that are written below the last one of a section, in its form."""
    if section.flow_style:
        end = section.end_mark.index - 1
        return (end, 0, end, (", " if section.value else "") + _inline(tree))
    last: yaml.Node = section  # the scalar or flow collection that ends the section
    while isinstance(last, yaml.MappingNode) and not last.flow_style and last.value:
        last = last.value[-1][1]
    column, mark = section.start_mark.column, last.end_mark
    end = mark.index if mark.column == 0 else text.index("\n", mark.index) + 1
    return (end, -column, end, write_tree(tree, " " * column))  # an inner section ends first


def _below(
    node: yaml.MappingNode, path: KeyPath = (), written: KeyPath = ()
) -> Iterator[tuple[KeyPath, KeyPath, yaml.Node]]:
    """Every node below a section: its path by our names, its path as it is written, and itself."""
    for key, value in node.value:
        here, there = (*path, str(key.value)), (*written, str(key.value))
        with contextlib.suppress(ValueError):
            here = full_path(here)  # `jobs.3` is jobs.smoke
        yield here, there, value
        if isinstance(value, yaml.MappingNode):
            yield from _below(value, here, there)


def _missing(
    values: Mapping[str, object], there: Set[str], sections: Mapping[KeyPath, yaml.MappingNode]
) -> dict[KeyPath, dict[str, object]]:
    """What the text lacks, nested, by the innermost section of it that is there."""
    flat: dict[KeyPath, dict[str, object]] = {}
    for key, value in values.items():
        if key not in there:
            path = tuple(key.split("."))
            depth = max(number for number in range(len(path)) if path[:number] in sections)
            flat.setdefault(path[:depth], {})[".".join(path[depth:])] = value
    return {section: nest(missing) for section, missing in flat.items()}


def _inline(tree: Mapping[str, object]) -> str:
    return ", ".join(
        f"{key}: {{{_inline(value)}}}" if isinstance(value, Mapping) else f"{key}: {write_scalar(value)}"
        for key, value in tree.items()
    )
