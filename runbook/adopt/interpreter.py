"""A script followed from top to bottom without running anything: what it sets, and which commands it would start."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.adopt.conditions import holds
from runbook.adopt.expansion import Variables, array_of, expand, words_of
from runbook.adopt.grammar import Case, Function, If, Loop, Node, Simple, parse
from runbook.adopt.lexer import Token, tokens
from runbook.adopt.marks import Word, at, first_line, is_known, plain

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_PROGRAM = re.compile(r"\.(py|sh|slurm|sbatch|pbs)\b")
"""Commands whose surroundings somebody will ask for."""
_DECLARES = ("export", "declare", "typeset", "local", "readonly")
_DEEPEST = 12
_MOST_COMMANDS = 2_000


@dataclass(frozen=True)
class Command:
    """A command that the script would start."""

    words: tuple[Word, ...]
    line: int
    environment: Mapping[str, Word]
    """What is set for this command alone."""
    certain: bool
    """Whether it is sure to be reached."""
    values: Mapping[str, Word] = field(default_factory=dict)
    """All variables as they are then."""


@dataclass(frozen=True)
class Setting:
    """A value given to a variable."""

    name: str
    value: str
    line: int
    raw: str
    certain: bool
    default: bool
    """Whether it only fills in what the environment leaves open: NAME=${NAME:-value}."""
    exported: bool = False


@dataclass
class Followed:
    """Everything that a script was seen to do."""

    variables: Variables
    commands: list[Command] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    unsets: list[Word] = field(default_factory=list)
    heredocs: list[Word] = field(default_factory=list)
    functions: dict[str, tuple[Node, ...]] = field(default_factory=dict)


def follow(text: str, variables: Variables) -> Followed:
    """Read a script to its end; exit and return are passed over, since who ran it got past them."""
    followed = Followed(variables)
    _Walk(followed).nodes(parse(tokens(text)), certain=True, depth=0)
    return followed


class _Walk:
    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.variables = followed.variables
        self.running: set[str] = set()

    def nodes(self, found: Iterable[Node], *, certain: bool, depth: int) -> None:
        for node in found:
            if depth > _DEEPEST or len(self.followed.commands) > _MOST_COMMANDS:
                return
            if isinstance(node, Simple):
                self.simple(node, certain=certain, depth=depth)
            elif isinstance(node, Function):
                self.followed.functions[node.name] = node.body
            elif isinstance(node, Loop):
                self.loop(node, depth=depth)
            else:
                self.branches(node, certain=certain, depth=depth)

    def branches(self, node: If | Case, *, certain: bool, depth: int) -> None:
        """Of conditions the branch that is taken; where that cannot be known all of them, marked as not certain."""
        for condition, body in self._conditions(node):
            if condition is True:
                self.nodes(body, certain=certain, depth=depth + 1)
                return
            if condition is None:
                self.nodes(body, certain=False, depth=depth + 1)
                certain = False

    def _conditions(self, node: If | Case) -> Iterable[tuple[bool | None, tuple[Node, ...]]]:
        if isinstance(node, If):
            for condition, body in node.branches:
                yield (holds(condition, self.variables) if condition else True), body
            return
        word = plain(expand(node.word.text, self.variables, node.line))
        for patterns, body in node.branches:
            fits = any(fnmatch.fnmatchcase(word, plain(expand(one, self.variables, node.line))) for one in patterns)
            yield (fits if is_known(word) else None), body

    def loop(self, node: Loop, *, depth: int) -> None:
        header = [token.text for token in node.header]
        if header[:1] == ["for"] and len(header) > 3 and header[2] == "in":
            first = words_of(header[3], self.variables, node.line)
            if first:
                self.variables.set(header[1], at(node.line) + first[0].text)
        self.nodes(node.body, certain=False, depth=depth + 1)

    def simple(self, node: Simple, *, certain: bool, depth: int) -> None:
        for document in node.heredocs:
            text = document.text
            if document.kind == "heredoc":
                text = plain(expand('"' + text.replace('"', '\\"') + '"', self.variables, document.line))
            if not any(kept.line == document.line for kept in self.followed.heredocs):
                self.followed.heredocs.append(Word(text, document.line))
        words = list(node.words)
        assigned: list[Token] = []
        while words and _ASSIGNMENT.fullmatch(words[0].text):
            assigned.append(words.pop(0))
        if not words:
            for token in assigned:
                self.assign(token, certain=certain)
            return
        if words[0].text in _DECLARES:
            self.declare(words[1:], certain=certain, exported=words[0].text == "export")
        elif words[0].text == ":" and len(words) > 1:
            self.fill_in(words[1], certain=certain)
        elif words[0].text == "unset":
            self.unset(words[1:])
        else:
            self.start(words, assigned, node, certain=certain, depth=depth)

    def declare(self, words: Sequence[Token], *, certain: bool, exported: bool) -> None:
        for token in words:
            if _ASSIGNMENT.fullmatch(token.text):
                self.assign(token, certain=certain, exported=exported)

    def fill_in(self, token: Token, *, certain: bool) -> None:
        r""": "${NAME:=value}": what the environment leaves open."""
        match = re.match(r'"?\$\{(\w+):?=', token.text)
        expand(token.text, self.variables, token.line)
        if match and (value := self.variables.get(match[1])) is not None:
            setting = Setting(match[1], plain(value), token.line, token.text, certain, default=True)
            self.followed.settings.append(setting)

    def unset(self, words: Sequence[Token]) -> None:
        for token in words:
            if not token.text.startswith("-"):
                self.followed.unsets.append(Word(token.text, token.line))
                self.variables.unset(token.text)

    def assign(self, token: Token, *, certain: bool, exported: bool = False) -> None:
        match = _ASSIGNMENT.fullmatch(token.text)
        assert match is not None
        name, index, plus, raw = match[1], match[2] or "", match[3], match[4]
        key = name if not index else f"{name}{plain(expand(index, self.variables, token.line))}"
        if not certain and self.variables.get(key) is not None and not plus:
            return  # a branch that may not be taken does not overwrite what is sure
        if raw.startswith("("):
            elements = array_of(raw[1:-1], self.variables, token.line)
            self.variables.values.pop(key, None)
            self.variables.arrays[key] = (self.variables.arrays.get(key, []) if plus else []) + elements
            return
        value = at(token.line) + expand(raw, self.variables, token.line)
        own_default = re.match(rf'"?\$\{{{re.escape(name)}:?[-=]', raw)
        self.variables.set(key, (self.variables.get(key) or "") + value if plus else value)
        line = first_line(value, token.line)
        setting = Setting(key, plain(value), line, raw, certain, bool(own_default), exported)
        self.followed.settings.append(setting)

    def start(
        self, words: Sequence[Token], assigned: Sequence[Token], node: Simple, *, certain: bool, depth: int
    ) -> None:
        environment = {}
        for token in assigned:
            match = _ASSIGNMENT.fullmatch(token.text)
            assert match is not None
            value = expand(match[4], self.variables, token.line)
            environment[match[1]] = Word(plain(value), first_line(value, token.line))
        found = [word for token in words for word in words_of(token.text, self.variables, token.line)]
        if not found:
            return
        body = self.followed.functions.get(found[0].text)
        if body is not None:
            self.call(found, body, certain=certain, depth=depth)
            return
        if node.after == "||":
            certain = False
        values = self._values(node.line) if any(_PROGRAM.search(word.text) for word in found) else {}
        inside = _shell_inside(words, self.variables)
        self.followed.commands.append(Command(tuple(found), node.line, environment, certain, values))
        if inside:
            self.inside(inside, len(self.followed.commands) - 1, certain=certain, depth=depth)

    def call(self, found: Sequence[Word], body: Sequence[Node], *, certain: bool, depth: int) -> None:
        """A function's body with its arguments; one that calls itself is followed once."""
        name = found[0].text
        if name in self.running:
            return
        for number, word in enumerate(found[1:], 1):
            self.variables.set(str(number), at(word.line) + word.text)
        self.running.add(name)
        self.nodes(body, certain=certain, depth=depth + 1)
        self.running.discard(name)

    def _values(self, line: int) -> dict[str, Word]:
        return {name: Word(plain(value), first_line(value, line)) for name, value in self.variables.values.items()}

    def inside(self, script: Token, outer: int, *, certain: bool, depth: int) -> None:
        """What `bash -c` would run, with the program around it put before each of its commands."""
        around = self.followed.commands[outer]
        start = len(self.followed.commands)
        self.nodes(parse(tokens(script.text, script.line)), certain=certain, depth=depth + 1)
        place = next((n for n, word in enumerate(around.words) if word.text.rpartition("/")[2] in SHELLS), 0)
        before = around.words[:place]
        for number in range(start, len(self.followed.commands)):
            command = self.followed.commands[number]
            self.followed.commands[number] = Command(
                (*before, *command.words), command.line, command.environment, command.certain, command.values
            )


SHELLS = ("bash", "sh")


def _shell_inside(words: Sequence[Token], variables: Variables) -> Token | None:
    """The script that `bash -c '...'` gets, where the words say so."""
    for number, token in enumerate(words[:-2]):
        option = words[number + 1].text
        if token.text.rpartition("/")[2] in SHELLS and re.fullmatch(r"-[a-z]*c", option):
            script = words[number + 2]
            return Token("word", expand(script.text, variables, script.line), script.line)
    return None
