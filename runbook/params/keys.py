"""Every key of a run file: its type, help, default and names in the documents."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runbook.params.schema import JOB_SECTIONS, Known, Run, phase_name

DURATION = ("training.iterations", "training.samples", "training.tokens")
WARMUP = (
    "training.warmup_iterations",
    "training.warmup_samples",
    "training.warmup_tokens",
    "training.warmup_fraction",
)
DECAY = ("training.decay_iterations", "training.decay_samples", "training.decay_tokens")
EXCLUSIVE = {"lengths of the training": DURATION, "lengths of the warm-up": WARMUP, "lengths of the decay": DECAY}
"""Keys of which one layer may set one; it clears the others of the layers below."""


@dataclass(frozen=True)
class Key:
    """One key a person may write."""

    name: str
    """Dotted: parallel.tensor."""

    kind: type[Any]
    """int, float, bool, str or an enumeration."""

    help: str
    default: Any
    """`...` when it must be given."""

    documents: tuple[str, ...]
    """What the five documents call it."""


@cache
def all_keys() -> dict[str, Key]:
    """Every key by its dotted name, in the schema's order."""
    return {key.name: key for key in _walk(Run, ())}


@cache
def sections() -> dict[str, str]:
    """Every section by its dotted name, with its help."""
    return dict(_sections(Run, ()))


def nearest(word: str, names: list[str] | tuple[str, ...], count: int = 3, likeness: float = 0.6) -> list[str]:
    """The names most like `word`, best first.

    >>> nearest("tenser", ["tensor", "pipeline"])
    ['tensor']
    """
    by_lower = {name.lower(): name for name in names}
    return [by_lower[name] for name in difflib.get_close_matches(word.lower(), list(by_lower), count, likeness)]


def job_section(word: str) -> str:
    """The key under `jobs` that a phase's name or number means.

    >>> job_section("03-smoke-test"), job_section("4"), job_section("data")
    ('smoke', 'training', 'data')
    """
    phase = phase_name(word)
    if phase not in JOB_SECTIONS:
        raise ValueError(f"{phase} submits no job; jobs has {', '.join(JOB_SECTIONS.values())}")
    return JOB_SECTIONS[phase]


def right_name(path: tuple[str, ...]) -> tuple[str, str]:
    """For an unknown key: (ours for a document's name, the nearest right name); either may be empty.

    >>> right_name(("training", "MPSIZE")), right_name(("parallel", "tenser"))
    (('parallel.tensor', ''), ('', 'parallel.tensor'))
    """
    word = path[-1].rpartition(".")[2]
    ours = {name.rpartition(".")[2] for name in all_keys()}
    documents = _by_document_name().get(_plain(word), []) if word not in ours else []
    parent = ".".join(path[:-1])
    if documents:
        here = [name for name in documents if name.rpartition(".")[0] == parent]
        return _joined(here or documents), ""
    return "", _nearest_key(parent, word)


def _nearest_key(parent: str, word: str) -> str:
    names = [*all_keys(), *sections()]
    if "." in word and (close := nearest(word, names, 1)):
        return close[0]
    same = [name for name in names if name.rpartition(".")[2] == word.lower()]
    if same:
        return _joined(same)
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == parent}
    if close := nearest(word, list(siblings), 1):
        return siblings[close[0]]
    elsewhere: dict[str, str] = {}
    for name in names:
        elsewhere.setdefault(name.rpartition(".")[2], name)
    close = nearest(word, list(elsewhere), 1)
    return elsewhere[close[0]] if close else ""


def _joined(names: list[str]) -> str:
    jobs = [name for name in names if name.startswith("jobs.")]
    if len(jobs) > 1:  # the same key of each phase
        names = [name for name in names if name not in jobs] + [f"jobs.<phase>.{jobs[0].rpartition('.')[2]}"]
    return " or ".join(names[:3])


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_").lower()


@cache
def _by_document_name() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in all_keys().values():
        for name in key.documents:
            names = found.setdefault(_plain(name), [])
            if key.name not in names:
                names.append(key.name)
    return found


def _walk(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        here = (*path, name)
        if _is_section(info):
            yield from _walk(_section(info), here)
        else:
            documents = tuple(word for mark in info.metadata if isinstance(mark, Known) for word in mark.names)
            default = ... if info.is_required() else info.default
            kind = info.annotation if isinstance(info.annotation, type) else object
            yield Key(".".join(here), kind, info.description or "", default, documents)


def _sections(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        if _is_section(info):
            yield ".".join((*path, name)), info.description or ""
            yield from _sections(_section(info), (*path, name))


def _is_section(info: FieldInfo) -> bool:
    return isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)


def _section(info: FieldInfo) -> type[BaseModel]:
    assert isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    return info.annotation
