"""Tokens as commands, conditions, loops and functions, as far as reading a job script needs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runbook.adopt.lexer import Token

_SEPARATORS = (";", "&", "&&", "||", "|", "|&", "(", ")", ";;")
_NAME = re.compile(r"[A-Za-z_][\w.:-]*")


@dataclass(frozen=True)
class Simple:
    """A command: its words as written, and the here-documents it reads."""

    words: tuple[Token, ...]
    heredocs: tuple[Token, ...]
    line: int
    after: str = ""
    """The operator before it: && and || make it depend on the command before."""


@dataclass(frozen=True)
class If:
    """Conditions with their bodies in order; an empty condition is `else`."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Loop:
    """A body that runs none or more times."""

    header: tuple[Token, ...]
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Case:
    """Patterns with their bodies."""

    word: Token
    branches: tuple[tuple[tuple[str, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Function:
    """A named body, run where its name is called."""

    name: str
    body: tuple[Node, ...]
    line: int


Node = Simple | If | Loop | Case | Function


def parse(found: Sequence[Token]) -> tuple[Node, ...]:
    """The commands of a script. What is no shell is passed over word by word: reading never stops a person."""
    reader = _Reader(list(found))
    nodes: list[Node] = []
    while reader.left:
        nodes += reader.body(())
        if reader.left:  # a word that closes nothing
            reader.place += 1
    return tuple(nodes)


@dataclass
class _Reader:
    found: list[Token]
    place: int = 0
    depth: int = 0
    operator: str = field(default="")

    @property
    def left(self) -> bool:
        return self.place < len(self.found)

    def peek(self, ahead: int = 0) -> Token:
        place = self.place + ahead
        return self.found[place] if place < len(self.found) else Token("newline", "\n", 0)

    def body(self, until: tuple[str, ...]) -> list[Node]:
        nodes: list[Node] = []
        while self.left:
            token = self.peek()
            if token.kind == "newline" or token.text in _SEPARATORS or token.kind.endswith("heredoc"):
                if token.text == ";;" and ";;" in until:
                    return nodes
                self.operator = token.text if token.text in ("&&", "||") else ""
                self.place += 1
            elif token.kind == "word" and token.text in until:
                return nodes
            else:
                start = self.place
                nodes.append(self.command())
                self.place = max(self.place, start + 1)
        return nodes

    def command(self) -> Node:
        token = self.peek()
        makers: dict[str, Callable[[], Node]] = {
            "if": self._if,
            "for": self._loop,
            "while": self._loop,
            "until": self._loop,
            "case": self._case,
        }
        if token.kind == "word" and token.text in makers and self.depth < 50:
            self.depth += 1
            node = makers[token.text]()
            self.depth -= 1
            return node
        if token.text == "function" or (self.peek(1).text == "(" and self.peek(2).text == ")"):
            return self._function()
        return self._simple()

    def _simple(self) -> Simple:
        words: list[Token] = []
        heredocs: list[Token] = []
        line, after = self.peek().line, self.operator
        self.operator = ""
        while self.left:
            token = self.peek()
            if token.kind.endswith("heredoc"):
                heredocs.append(token)
            elif token.kind == "newline" or token.text in _SEPARATORS:
                break
            elif token.text not in ("{", "}", "!", "then", "do", "fi", "done", "esac", "else") or words:
                words.append(token)
            self.place += 1
        while self.peek().kind.endswith("heredoc"):
            heredocs.append(self.peek())
            self.place += 1
        # A here-document starts on the line after the command, so behind what else stands in the line.
        ahead = self.place
        while ahead < len(self.found) and self.found[ahead].kind != "newline":
            if self.found[ahead].kind.endswith("heredoc"):
                heredocs.append(self.found[ahead])
            ahead += 1
        return Simple(tuple(words), tuple(heredocs), line, after)

    def _if(self) -> If:
        line = self.peek().line
        branches = []
        self.place += 1
        while True:
            condition = self.body(("then", "fi"))
            self.place += 1
            branches.append((tuple(condition), tuple(self.body(("elif", "else", "fi")))))
            word = self.peek().text
            self.place += 1
            if word == "else":
                branches.append(((), tuple(self.body(("fi",)))))
                self.place += 1
            if word != "elif" or not self.left:
                return If(tuple(branches), line)

    def _loop(self) -> Loop:
        line = self.peek().line
        header = []
        while self.left and self.peek().text != "do":
            header.append(self.peek())
            self.place += 1
        self.place += 1
        body = self.body(("done",))
        self.place += 1
        return Loop(tuple(token for token in header if token.kind == "word"), tuple(body), line)

    def _case(self) -> Case:
        line, word = self.peek().line, self.peek(1)
        while self.left and self.peek().text != "in":
            self.place += 1
        self.place += 1
        branches = []
        while self.left and self.peek().text != "esac":
            patterns = []
            while self.left and self.peek().text not in (")", "esac"):
                if self.peek().kind == "word":
                    patterns.append(self.peek().text)
                self.place += 1
            if self.peek().text != ")":
                break
            self.place += 1
            branches.append((tuple(patterns), tuple(self.body((";;", "esac")))))
            if self.peek().text == ";;":
                self.place += 1
        self.place += 1
        return Case(word, tuple(branches), line)

    def _function(self) -> Node:
        line = self.peek().line
        if self.peek().text == "function":
            self.place += 1
        name = self.peek().text
        if not _NAME.fullmatch(name):
            return self._simple()
        self.place += 1
        while self.left and (self.peek().text in ("(", ")") or self.peek().kind == "newline"):
            self.place += 1
        if self.peek().text != "{":
            return Function(name, (self.command(),), line)
        self.place += 1
        body = self.body(("}",))
        self.place += 1
        return Function(name, tuple(body), line)
