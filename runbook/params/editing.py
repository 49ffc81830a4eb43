"""Edits a run file, but keeps its comments, its order and all other values.

edited_text(text, where, values) -> str
"""

import contextlib
import re
from collections.abc import Mapping, Sequence

import yaml

from runbook.core.errors import ParamsError
from runbook.params.layers import Layer, document_layer
from runbook.params.messages import ParamsMessage
from runbook.params.problems import differences
from runbook.params.schema.keys import full_path
from runbook.params.yaml12 import compose, nest, read_mapping, write_scalar, write_tree


def edited_text(text: str, where: str, values: Mapping[str, object]) -> str:
    r"""Edit the text of a run file so that it has exactly these values, by dotted key.

    Existing content of `text` stays unchanged. Raise `ParamsError` if the text cannot be edited
    this way, for example because a section is empty. The caller then writes the complete file.

    >>> edited_text("run: a  # mine\nmodel: tiny\n", "a.yaml", {"run": "b", "model": "tiny", "training.seed": 7})
    'run: b  # mine\nmodel: tiny\ntraining:\n  seed: 7\n'
    """
    result = text if text.endswith("\n") else text + "\n"
    before = _layer(result, where).leaves
    misread = {".".join(_our_names(problem.key.split("."))) for problem in differences(text, where)}
    for key, value in values.items():
        if key in misread or key not in before or before[key].value != value:
            result = _put(result, where, key.split("."), value)

    layer = _layer(result, where)
    if layer.problems or values_in(result, where) != dict(values):
        raise ParamsError(ParamsMessage.LINES_NOT_EDITABLE, where=where)
    return result


def values_in(text: str, where: str) -> dict[str, object]:
    """Return the values in a run file, given its text, by dotted key."""
    return {key: origin.value for key, origin in _layer(text, where).leaves.items()}


_SUM = re.compile(r"\d[\d,._]*\s*x\s|\bx\s*\d|=\s*\d|:\s*\d[\d,]{3,}")
"""A comment with a calculation: 1 micro x 8 replicas x 32 steps = 256 sequences; x 512 =
1,572,864,000 tokens.
"""


def without_sums(text: str, where: str) -> str:
    r"""Return the text of a run file without comments that contain calculations.

    The results would be wrong for other values. If a comment cannot be
    distinguished from a value with certainty, the text is returned unchanged.

    >>> without_sums("model: tiny  # ours\ntraining:\n  iterations: 4  # x 8 = 32 samples\n", "a.yaml")
    'model: tiny  # ours\ntraining:\n  iterations: 4\n'
    """
    lines = []
    for line in text.splitlines(keepends=True):
        before, comment = _split_comment(line)
        if not _SUM.search(comment):
            lines.append(line)
        elif before.strip():
            lines.append(before.rstrip() + "\n")

    result = "".join(lines)
    is_same = values_in(result, where) == values_in(text, where)
    return result if is_same else text


def _split_comment(line: str) -> tuple[str, str]:
    """Split a line at its comment, and return both parts.

    A # inside quotes does not start a comment.
    """
    for match in re.finditer(r"(?:^|(?<=\s))#", line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return before, line[match.start() :]

    return line, ""


def _layer(text: str, where: str) -> Layer:
    return document_layer("run file", read_mapping(text, where))


def _our_names(path: Sequence[str]) -> Sequence[str]:
    """Return a key path with our section names: `jobs.3` is jobs.smoke."""
    with contextlib.suppress(ValueError):
        return full_path(path)
    return path


def _put(
    text: str,
    where: str,
    path: Sequence[str],
    value: object,
) -> str:
    """Return the text with one value set.

    The value replaces the old one, or follows the last value in the innermost existing section.
    """
    node = compose(text, where)
    depth = 0
    while isinstance(node, yaml.MappingNode) and depth < len(path):
        inner = {}
        for key, below in node.value:
            inner[_our_names((*path[:depth], str(key.value)))[-1]] = below

        if path[depth] not in inner:
            return _added(text, node, nest({".".join(path[depth:]): value}))
        node = inner[path[depth]]
        depth = depth + 1
        if depth == len(path) and isinstance(node, yaml.ScalarNode):
            return text[: node.start_mark.index] + write_scalar(value) + text[node.end_mark.index :]

    raise ParamsError(ParamsMessage.LINES_NOT_EDITABLE, where=where)


def _added(text: str, section: yaml.MappingNode, tree: Mapping[str, object]) -> str:
    """Add a value below the last one in a section, in the same form, and return the text."""
    if section.flow_style:
        end = section.end_mark.index - 1
        comma = ", " if section.value else ""
        return text[:end] + comma + _inline(tree) + text[end:]

    # The last value in the section, which is a scalar or a flow collection
    last: yaml.Node = section
    while isinstance(last, yaml.MappingNode) and not last.flow_style and last.value:
        last = last.value[-1][1]
    mark = last.end_mark
    if mark.column == 0:
        end = mark.index
    else:
        end = text.index("\n", mark.index) + 1

    return text[:end] + write_tree(tree, " " * section.start_mark.column) + text[end:]


def _inline(tree: Mapping[str, object]) -> str:
    """Return nested values as YAML in one line."""
    pairs = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            pairs.append(f"{key}: {{{_inline(value)}}}")
        else:
            pairs.append(f"{key}: {write_scalar(value)}")

    return ", ".join(pairs)
