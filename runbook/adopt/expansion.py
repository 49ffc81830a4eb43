"""Variables and arithmetic put into words as a shell would, without running a program; the rest stays unknown."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runbook.adopt.lexer import closing, quoted_end, tokens
from runbook.adopt.marks import GLUE, Word, at, is_known, plain, split, unknown

_NAME = re.compile(r"[A-Za-z_]\w*")
FROM_THE_QUEUE = ("SLURM_", "PBS_", "WORLD_SIZE", "PMI_")
"""Names that only a queue or a launcher gives a meaning."""
_LONGEST = 20_000
"""No value grows beyond this; a script that doubles a word in a loop must not fill the memory."""

_OPERATIONS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass
class Variables:
    """What a script has set so far: values with marks of where they were written."""

    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    """Names that were asked for."""

    def get(self, name: str) -> str | None:
        """The value; None where nothing set it."""
        self.read.add(name)
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        return self.values.get(name)

    def set(self, name: str, value: str) -> None:
        """A plain value in place of what was there."""
        self.arrays.pop(name, None)
        self.values[name] = value[:_LONGEST]

    def unset(self, name: str) -> None:
        """Take a name away."""
        self.arrays.pop(name, None)
        self.values.pop(name, None)


def words_of(raw: str, variables: Variables, line: int) -> list[Word]:
    """One word of a script as the words that a program would get: unquoted variables fall apart at blanks."""
    if array := _whole_array(raw, variables):
        return [word for element in array for word in split(element.replace(" ", GLUE), line)]
    return list(split(at(line) + expand(raw, variables, line, fields=True), line))


def expand(raw: str, variables: Variables, line: int, *, fields: bool = False) -> str:
    """The text of a word. With `fields`, blanks that were quoted are kept from splitting words."""
    parts: list[str] = []
    place = 0
    while place < len(raw):
        letter, start = raw[place], place
        place = max(quoted_end(raw, place), place + 1)
        piece = raw[start:place]
        if letter == "\\":
            parts.append("" if piece == "\\\n" else piece[1:])
        elif letter == "'":
            parts.append(_kept(_lined(piece[1:].removesuffix("'"), line), fields))
        elif letter == '"':
            inside = piece[1:].removesuffix('"')
            parts.append(_kept(_double_quoted(inside, variables, line), fields))
        elif letter == "`" or piece.startswith("$("):
            parts.append(_computed(piece, variables, line))
        elif letter == "$":
            if not piece.startswith("${"):
                place = _name_end(raw, start)
                piece = raw[start:place]
            parts.append(_variable(piece, variables, line))
        else:
            parts.append(piece)
        line += piece.count("\n")
        if "\n" in piece:
            parts.append(at(line))
    return "".join(parts)[:_LONGEST]


def array_of(raw: str, variables: Variables, line: int) -> list[str]:
    """The elements of `( ... )`, each with its line."""
    return [
        at(word.line) + word.text
        for token in tokens(raw, line)
        if token.kind == "word"
        for word in words_of(token.text, variables, token.line)
    ]


def arithmetic(expression: str, variables: Variables) -> int | None:
    """The value of a sum in a script, or None where a part of it is unknown.

    >>> arithmetic("300 * 1000000000 * 2 / 2048", Variables()), arithmetic("$(nproc) * 2", Variables())
    (292968750, None)
    """
    text = plain(expand(expression, variables, 0))
    text = _NAME.sub(lambda found: plain(variables.get(found[0]) or "?"), text)
    if not is_known(text) or not re.fullmatch(r"[\d\s+*/%()<>=!-]{1,200}", text):
        return None
    try:
        # Leading zeros are no Python; division in a shell is whole.
        tidy = re.sub(r"\b0+(?=\d)", "", text.replace("/", "//"))
        return _value(ast.parse(tidy.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        result = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        if abs(result) > 10**30:
            raise ValueError("too large to be meant")
        return result
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATIONS:
        return int(_OPERATIONS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError("no sum")


def _kept(text: str, fields: bool) -> str:
    """Blanks of quoted text are no separators, unless a shell is to read them again."""
    return text.replace(" ", GLUE).replace("\t", GLUE).replace("\n", GLUE) if fields else text


def _lined(text: str, line: int) -> str:
    return "".join(at(line + number) + row for number, row in enumerate(text.splitlines(keepends=True)))


def _double_quoted(inside: str, variables: Variables, line: int) -> str:
    parts: list[str] = [at(line)]
    place = 0
    while place < len(inside):
        letter, start = inside[place], place
        if letter == "\\":
            piece = inside[place : place + 2]
            parts.append({"\\\n": "", '\\"': '"', "\\$": "$", "\\`": "`", "\\\\": "\\"}.get(piece, piece))
            place += 2
        elif letter == "$" and inside[place + 1 : place + 2] not in ("(", "{"):
            place = _name_end(inside, place)
            piece = inside[start:place]
            parts.append(_variable(piece, variables, line))
        elif letter == "\ue002":
            place = quoted_end(inside, place)
            piece = inside[start:place]
            parts.append(piece)
        elif letter in "$`":
            place = quoted_end(inside, place)
            piece = inside[start:place]
            parts.append((_variable if piece.startswith("${") else _computed)(piece, variables, line))
        else:
            place += 1
            piece = letter
            parts.append(letter)
        if "\n" in piece:
            line += piece.count("\n")
            parts.append(at(line))
    return "".join(parts)


def _name_end(text: str, place: int) -> int:
    match = _NAME.match(text, place + 1)
    return match.end() if match else min(len(text), place + 2)


def _variable(piece: str, variables: Variables, line: int) -> str:
    """`$NAME` or `${NAME...}`: its value, then the mark of the line that goes on."""
    inside = piece[2:-1] if piece.startswith("${") else piece[1:]
    match = re.match(r"([#!]?)([A-Za-z_]\w*|[@*#?$!0-9-])(\[[^\]]*\])?(.*)", inside, re.DOTALL)
    if not match or match[1]:
        return unknown(piece)
    name, index, rest = match[2], match[3], match[4]
    if index in ("[@]", "[*]") and name in variables.arrays:
        value: str | None = " ".join(variables.arrays[name])
    elif index:
        value = variables.get(f"{name}{plain(expand(index, variables, line))}")
    else:
        value = variables.get(name)
    value = _changed(value, rest, name, variables, line)
    return (unknown(piece) if value is None else value) + at(line)


def _changed(value: str | None, rest: str, name: str, variables: Variables, line: int) -> str | None:
    """`:-word` and its like applied to a value."""
    match = re.match(r"(:?[-=+?]|##?|%%?)(.*)", rest, re.DOTALL)
    if not match:
        return value
    sign, word = match[1], match[2]
    empty = value is None or (sign.startswith(":") and not plain(value))
    if sign in ("-", ":-", "=", ":="):
        if not empty:
            return value
        if name.startswith(FROM_THE_QUEUE):
            return None  # a stand-in for trying the script without a queue
        made = expand(word, variables, line)
        if sign.endswith("="):
            variables.set(name, at(line) + made)
        return at(line) + made
    if sign in ("+", ":+"):
        return "" if empty else expand(word, variables, line)
    if value is None or sign.endswith("?") or not is_known(value):
        return value
    return _trimmed(plain(value), sign, plain(expand(word, variables, line)))


def _trimmed(text: str, sign: str, pattern: str) -> str:
    """Text without the shortest (# %) or longest (## %%) piece at its start or end that fits the pattern."""
    places = range(len(text) + 1)
    if sign.startswith("#"):
        fits = [place for place in places if fnmatch.fnmatchcase(text[:place], pattern)]
        return text[(max if len(sign) == 2 else min)(fits) :] if fits else text
    fits = [place for place in places if fnmatch.fnmatchcase(text[place:], pattern)]
    return text[: (min if len(sign) == 2 else max)(fits)] if fits else text


def _computed(piece: str, variables: Variables, line: int) -> str:
    """`$((sum))` where it can be known; what only a program would say stays unknown, but for plain echoes."""
    if piece.startswith("$((") and closing(piece, 1, "(", ")") == len(piece):
        found = arithmetic(piece[3:-2], variables)
        return unknown(piece) if found is None else f"{found}{at(line)}"
    if match := re.fullmatch(r"\$\(\s*echo\s+([^|;&$]*|\"?\$\{?\w+(?:\[@\])?\}?\"?)\s*\)", piece):
        return " ".join(word.text for word in words_of(match[1], variables, line))
    return unknown(piece)


def _whole_array(raw: str, variables: Variables) -> list[str]:
    match = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', raw)
    return variables.arrays.get(match[1], []) if match else []


def environment_of(values: Mapping[str, str]) -> Variables:
    """Variables that a scheduler would have set, from its directives."""
    return Variables({name: value for name, value in values.items() if value})
