"""Finds what YAML 1.1 (papermill) and YAML 1.2 (this runbook) read differently in one text."""

from __future__ import annotations

from typing import Any

import yaml

from runbook.params.problems import Problem, show
from runbook.params.writing import write_scalar
from runbook.params.yaml12 import compose, scalar_value, scalars

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class PapermillLoader(yaml.SafeLoader):
    """YAML 1.1 as papermill reads `-f` and `-y`: PyYAML's safe loader, but dates stay text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in known if tag != _TIMESTAMP]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_as_papermill(text: str) -> Any:
    r"""What `papermill -f` makes of a file, its keys turned to text as it writes them into the notebook.

    >>> read_as_papermill("walltime: 12:00:00\nlr: 6e-5\nanswer: no")
    {'walltime': 43200, 'lr': '6e-5', 'answer': False}
    """
    return _text_keys(yaml.load(text, Loader=PapermillLoader))


def differences(text: str, where: str) -> list[Problem]:
    """Every word outside quotes that the two versions read differently, with how to write it."""
    problems = []
    nodes, old_nodes = scalars(compose(text, where)), scalars(compose(text, where, PapermillLoader))
    for (path, node), (_, old_node) in zip(nodes, old_nodes, strict=True):
        if node.style:
            continue  # quoted, or a block of text
        old, new = _read_11(old_node), scalar_value(node)
        if (type(old), old) != (type(new), new):
            rule = (
                f"YAML 1.1, as papermill -f reads, takes {node.value} for {_told(old)}; YAML 1.2 for {_told(new)}. "
                f"Write {_remedy(node.value, old, new)}."
            )
            problems.append(Problem(".".join(path), f"{where}:{node.start_mark.line + 1}", rule))
    return problems


def _read_11(node: yaml.Node) -> Any:
    try:
        return PapermillLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        return _Refused()


class _Refused:
    """YAML 1.1 has no value for this word."""


def _told(value: Any) -> str:
    if isinstance(value, _Refused):
        return "an error"
    if isinstance(value, str):
        return f'the text "{value}"'
    kind = "a truth value" if isinstance(value, bool) else "a number" if isinstance(value, int | float) else "nothing"
    return f"{show(value)} ({kind})" if value is not None else kind


def _remedy(text: str, old: Any, new: Any) -> str:
    if isinstance(new, int | float):
        return write_scalar(new)
    if isinstance(old, bool):
        return f'"{text}" for the word, or {show(old)} for the truth value'
    if isinstance(old, int | float) and ":" not in text:
        return f'"{text}" for the text, or {write_scalar(old)} for the number'
    return f'"{text}"'


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value
