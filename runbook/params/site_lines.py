"""Changes single values in a YAML file, and leaves all other lines unchanged."""

from collections.abc import Sequence

import yaml

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.messages import ParamsMessage
from runbook.params.yaml12 import compose, write_scalar

INDENT = "  "


def set_value(
    text: str,
    path: Sequence[str],
    value: object,
    comment: str,
) -> str:
    r"""Return the text with the key at `path` set to a scalar, followed by a comment.

    An existing key is replaced together with its comment. A new key becomes the first in its
    section, which is added if it does not exist. Raise `ParamsError` if the section is not a block
    with one key per line.

    >>> set_value("hardware:\n  device: cpu\n", ("hardware", "cores_per_node"), 2, "measured")
    'hardware:\n  cores_per_node: 2  # measured\n  device: cpu\n'
    >>> set_value("a:\n  b: 1  # guessed\n  c: 2\n", ("a", "b"), 3, "measured")
    'a:\n  b: 3  # measured\n  c: 2\n'
    >>> set_value("a:\n  b: 1\n", ("d", "e"), 3, "measured")
    'a:\n  b: 1\nd:\n  e: 3  # measured\n'
    >>> set_value("a:\n  b: 1\n", ("a", "b"), 3, "node n1\nsetup: [evil]")
    'a:\n  b: 3  # node n1 setup: [evil]\n'
    """
    # The text comes from a node, and must not start a new line
    comment = " ".join(visible(comment).split())
    lines = text.splitlines()
    mapping, missing = _nearest_section(compose(text, "the site file"), path)
    column = mapping.value[0][0].start_mark.column
    key = missing[0]
    old = _child(mapping, key)
    if old is not None:
        is_one_line = old.start_mark.line == old.end_mark.line
        if len(missing) > 1 or not isinstance(old, yaml.ScalarNode) or not is_one_line:
            raise ParamsError(ParamsMessage.KEY_NOT_ON_ITS_OWN_LINE, path=".".join(path), key=key)
        lines[old.start_mark.line] = f"{' ' * column}{key}: {write_scalar(value)}  # {comment}"
        return "\n".join(lines) + "\n"

    block = [f"{' ' * column}{INDENT * depth}{name}:" for depth, name in enumerate(missing)]
    block[-1] += f" {write_scalar(value)}  # {comment}"
    is_top = len(missing) == len(path)
    line_number = len(lines) if is_top else mapping.value[0][0].start_mark.line
    return "\n".join([*lines[:line_number], *block, *lines[line_number:]]) + "\n"


def _nearest_section(
    node: yaml.Node | None, path: Sequence[str]
) -> tuple[yaml.MappingNode, list[str]]:
    """Return the deepest existing mapping on the way to a key, and the missing keys below it."""
    missing = list(path)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise ParamsError(ParamsMessage.SITE_WITHOUT_KEYS)
    while len(missing) > 1:
        child = _child(node, missing[0])
        if not isinstance(child, yaml.MappingNode) or child.flow_style or not child.value:
            break
        node = child
        missing.pop(0)

    return node, missing


def _child(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    """Return the value for a key, or None if there is none."""
    return next((value for name, value in node.value if name.value == key), None)
