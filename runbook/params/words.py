"""The words of `--set key=value`, and of the notebooks' `overrides`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from runbook.errors import ParamsError
from runbook.params.keys import all_keys, job_section, sections
from runbook.params.kinds import is_name
from runbook.params.layers import Layer, unknown_key
from runbook.params.problems import Problem
from runbook.params.yaml12 import read_mapping, read_scalar

LAYER = "command line"


def split_words(overrides: str) -> list[str]:
    """The words of a notebook's `overrides`, split as a shell does.

    >>> split_words("training.iterations=10 'training.sample_prompt=Once upon'")
    ['training.iterations=10', 'training.sample_prompt=Once upon']
    """
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ParamsError(f"cannot be split into words as a shell does: {error}.") from error


def take_name(words: Sequence[str], problems: list[Problem]) -> tuple[str, list[str]]:
    """The NAME of a word `as=NAME` (what `runbook run --as NAME` hands to the notebooks), and the other words.

    >>> take_name(["training.iterations=10", "as=quick"], [])
    ('quick', ['training.iterations=10'])
    """
    names = [word.removeprefix("as=").strip() for word in words if word.startswith("as=")]
    for name in names:
        if not is_name(name):
            problems.append(
                Problem("as", f"--as {name}", "must be letters, digits, '.', '_' and '-', at most 80.", name)
            )
    return names[-1] if names else "", [word for word in words if not word.startswith("as=")]


def words_layer(words: Sequence[str]) -> Layer:
    """The layer of `key=value` words; the last word on a key wins."""
    layer = Layer(LAYER)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            rule = "is not key=value, such as training.iterations=10."
            layer.problems.append(Problem(word, "--set", rule))
            continue
        _take_word(layer, _full_key(key.strip()), text.strip(), f"--set {word}")
    return layer


def _take_word(layer: Layer, key: str, text: str, where: str) -> None:
    path = tuple(key.split("."))
    if key in sections():
        try:
            value = read_mapping(f"value: {text or '{}'}", where).values["value"]
        except ParamsError as error:
            layer.problems.append(Problem(key, where, f"{error}"))
            return
        layer.take(_nested(path, value), lambda _: where)
    elif key in all_keys():
        layer.add(key, _leaf(text, all_keys()[key].kind), where)
    elif len(path) > 1 and path[0] == "jobs":
        layer.take(_nested(path, text), lambda _: where)
    else:
        layer.problems.append(unknown_key(path, where))


def _leaf(text: str, kind: type[Any]) -> Any:
    """Text for a key that takes text, else what YAML 1.2 reads; one pair of quotes is taken away."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text if kind is str else read_scalar(text) if text else text


def _full_key(key: str) -> str:
    path = key.split(".")
    if path[0] == "jobs" and len(path) > 1:
        try:
            path[1] = job_section(path[1])
        except ValueError:
            return key  # told with the phases that do submit jobs, when the key is taken
    return ".".join(path)


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)
