"""A shell script's text as tokens: words with their quotes, operators, here-documents; nothing is expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile("\ue000(\\d+)\ue001")
_ARRAY = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_ENDS_WORD = " \t\n;&|<>()"
_OPERATORS = (";;", "&&", "||", "|&", ";", "&", "|", "(", ")")


@dataclass(frozen=True)
class Token:
    """A piece of a script."""

    kind: str
    """word, operator, newline, arithmetic, heredoc or quoted-heredoc."""

    text: str
    line: int


def tokens(text: str, line: int = 1) -> list[Token]:
    """All tokens of a script that starts in this line; comments and redirections are left out."""
    return list(_Lexer(text, line).run())


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.place = 0
        self.line = line
        self.waiting: list[tuple[str, bool, bool]] = []

    def run(self) -> Iterator[Token]:
        text = self.text
        command_start = True
        while self.place < len(text):
            letter = text[self.place]
            if mark := _LINE.match(text, self.place):  # text that was put together: this is where it comes from
                self.place, self.line = mark.end(), int(mark[1])
            elif text.startswith("\\\n", self.place):
                self._skip(2)
            elif letter in " \t\r":
                self.place += 1
            elif letter == "#":
                end = text.find("\n", self.place)
                self.place = len(text) if end < 0 else end
            elif letter == "\n":
                yield from self._end_of_line()
                command_start = True
            elif command_start and text.startswith("((", self.place):
                end = closing(text, self.place, "(", ")")
                yield Token("arithmetic", text[self.place + 2 : end - 2], self.line)
                self._skip(end - self.place)
            elif letter in "<>" or text.startswith("&>", self.place):
                self._redirection()
            else:
                token = self._operator_or_word()
                command_start = token.kind == "operator" or token.text in ("then", "do", "else", "if", "elif", "while")
                yield token
        yield from self._end_of_line()

    def _operator_or_word(self) -> Token:
        line = self.line
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.place):
                self.place += len(operator)
                return Token("operator", operator, line)
        end = word_end(self.text, self.place)
        if end == self.place:  # a letter that fits nowhere; not our business to judge
            end += 1
        word = self.text[self.place : end]
        self._skip(end - self.place)
        return Token("word", word, line)

    def _redirection(self) -> None:
        text = self.text
        if text.startswith("<<", self.place) and not text.startswith("<<<", self.place):
            self._here_document()
            return
        if re.match(r"[<>]\(", text[self.place : self.place + 2]):
            self._skip(closing(text, self.place + 1, "(", ")") - self.place)
            return
        while self.place < len(text) and text[self.place] in "<>&|":
            self.place += 1
        while self.place < len(text) and text[self.place] in " \t":
            self.place += 1
        if self.place < len(text) and text[self.place] not in "\n<>(":
            self._skip(word_end(text, self.place) - self.place)

    def _here_document(self) -> None:
        self.place += 2
        dash = self.text.startswith("-", self.place)
        self.place += dash
        while self.text.startswith((" ", "\t"), self.place):
            self.place += 1
        end = word_end(self.text, self.place)
        word = self.text[self.place : end]
        self._skip(end - self.place)
        self.waiting.append((re.sub(r"[\\'\"]", "", word), bool(re.search(r"[\\'\"]", word)), dash))

    def _end_of_line(self) -> Iterator[Token]:
        line = self.line
        self._skip(1)
        for delimiter, quoted, dash in self.waiting:
            start, body = self.line, []
            while self.place < len(self.text):
                end = self.text.find("\n", self.place)
                end = len(self.text) if end < 0 else end
                row = self.text[self.place : end]
                self._skip(end + 1 - self.place)
                if (row.lstrip("\t") if dash else row).rstrip("\r") == delimiter:
                    break
                body.append(row)
            yield Token("quoted-heredoc" if quoted else "heredoc", "\n".join(body), start)
        self.waiting.clear()
        yield Token("newline", "\n", line)

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.place, self.place + count)
        self.place += count


def word_end(text: str, place: int) -> int:
    """Where the word that starts at `place` ends.

    >>> word_end("a='b c'$(d e) f", 0)
    13
    """
    start = place
    while place < len(text) and text[place] not in _ENDS_WORD:
        place = quoted_end(text, place)
        if text[place : place + 1] == "(" and _ARRAY.fullmatch(text[start:place]):
            place = closing(text, place, "(", ")", comments=True)
    return min(place, len(text))


def quoted_end(text: str, place: int) -> int:
    """The place after one letter, or after everything that its quotes or brackets hold together."""
    letter = text[place]
    if letter == "\\":
        return place + 2
    if letter == "\ue002":  # an unknown part is one letter to us
        end = text.find("\ue003", place)
        return len(text) if end < 0 else end + 1
    if letter in "'`":
        end = text.find(letter, place + 1)
        return len(text) if end < 0 else end + 1
    if letter == '"':
        return _double_quoted_end(text, place)
    if text.startswith("$(", place):
        return closing(text, place + 1, "(", ")")
    if text.startswith("${", place):
        return closing(text, place + 1, "{", "}")
    return place + 1


def closing(text: str, place: int, opening: str, close: str, *, comments: bool = False) -> int:
    """The place after the bracket that closes the one at `place`; the end of the text where none does."""
    depth = 0
    while place < len(text):
        letter = text[place]
        if letter == opening:
            depth += 1
        elif letter == close:
            depth -= 1
            if not depth:
                return place + 1
        elif comments and letter == "#" and text[place - 1] in " \t\n(":
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
            continue
        if letter in "\\'`\"\ue002" or (letter == "$" and text[place + 1 : place + 2] in ("(", "{")):
            place = quoted_end(text, place)
        else:
            place += 1
    return len(text)


def _double_quoted_end(text: str, place: int) -> int:
    place += 1
    while place < len(text) and text[place] != '"':
        if text[place] in "\\`\ue002" or text.startswith(("$(", "${"), place):
            place = quoted_end(text, place)
        else:
            place += 1
    return place + 1
