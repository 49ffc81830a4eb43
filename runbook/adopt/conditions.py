"""Whether a script's condition holds, as far as that can be told without running it."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from runbook.adopt.expansion import Variables, arithmetic, expand
from runbook.adopt.grammar import Node, Simple
from runbook.adopt.marks import is_known, plain

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def holds(condition: Sequence[Node], variables: Variables) -> bool | None:
    """True, False, or None where only running would tell; of commands joined by && and || too."""
    result: bool | None = None
    for number, node in enumerate(condition):
        if not isinstance(node, Simple):
            return None
        found = _command(node, variables)
        if number == 0:
            result = found
        elif node.after == "&&":
            result = False if False in (result, found) else None if None in (result, found) else True
        elif node.after == "||":
            result = True if True in (result, found) else None if None in (result, found) else False
        else:
            result = found
    return result


def _command(node: Simple, variables: Variables) -> bool | None:
    if not node.words:
        return None
    first = node.words[0]
    if first.kind == "arithmetic":
        value = arithmetic(first.text, variables)
        return None if value is None else bool(value)
    raw = [token.text for token in node.words]
    if raw[0] in ("true", ":"):
        return True
    if raw[0] == "false":
        return False
    if raw[0] in ("[", "[[", "test"):
        return _test([word for word in raw[1:] if word not in ("]", "]]")], variables, node.line)
    return None


def _test(raw: list[str], variables: Variables, line: int) -> bool | None:
    for joint, stop in (("-o", True), ("||", True), ("-a", False), ("&&", False)):
        if joint in raw:
            place = raw.index(joint)
            sides = (_test(raw[:place], variables, line), _test(raw[place + 1 :], variables, line))
            return stop if stop in sides else None if None in sides else not stop
    if raw[:1] == ["!"]:
        found = _test(raw[1:], variables, line)
        return None if found is None else not found
    unset = _unset(raw[-1], variables) if raw else False
    words = [plain(expand(word, variables, line)) for word in raw]
    if len(raw) == 2 and raw[0] in ("-z", "-n"):
        if unset:
            return raw[0] == "-z"
        return (not words[1]) == (raw[0] == "-z") if is_known(words[1]) else None
    if len(raw) == 1:
        return False if unset else bool(words[0]) if is_known(words[0]) else None
    return _compare(words) if len(words) == 3 else None


def _compare(words: list[str]) -> bool | None:
    left, sign, right = words
    if not (is_known(left) and is_known(right)):
        return None
    if sign in _NUMBERS:
        value = arithmetic(f"({left}) {_NUMBERS[sign]} ({right})", Variables())
        return None if value is None else bool(value)
    if sign in ("=", "=="):
        return fnmatch.fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    return None


def _unset(raw: str, variables: Variables) -> bool:
    """Whether a word is one variable that nothing in the script has set."""
    name = raw.strip('"').lstrip("$").strip("{}")
    return raw.strip('"').startswith("$") and name.isidentifier() and variables.get(name) is None
