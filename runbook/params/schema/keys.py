"""Every key in a run file: its type, help, default and names in the documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from runbook.params.schema.run_file import JOB_SECTIONS, Run, phase_name
from runbook.params.schema.value_types import Aliases

DURATION = ("training.iterations", "training.samples", "training.tokens")
EXCLUSIVE = {
    "lengths of the training": DURATION,
    "lengths of the warm-up": tuple(
        f"training.warmup_{unit}" for unit in ("iterations", "samples", "tokens", "fraction")
    ),
    "lengths of the decay": tuple(
        f"training.decay_{unit}" for unit in ("iterations", "samples", "tokens")
    ),
}
"""Key groups in which a layer may set only one key.

Setting it clears the others in the layers below.
"""


@dataclass(frozen=True)
class Key:
    """A key that the user may set."""

    name: str
    """Dotted name: parallel.tensor."""
    kind: Any
    """Type: int, float, bool, str or a `Literal` of words."""
    help: str
    default: Any
    """Default value; `...` if the key is required."""
    documents: tuple[str, ...]
    """What the five documents call this key."""


@cache
def all_keys() -> dict[str, Key]:
    """Return every key by dotted name, in schema order."""
    keys = {}
    for name, info in ((name, info) for name, info, is_section in _walk(Run) if not is_section):
        documents = tuple(
            alias for mark in info.metadata if isinstance(mark, Aliases) for alias in mark.names
        )
        default = ... if info.is_required() else info.default
        keys[name] = Key(
            name,
            info.annotation,
            _help_text(info),
            default,
            documents,
        )

    return keys


def accepts(key: str, value: object) -> bool:
    """Return whether a value has a valid type and range for a key, whatever other keys are set to.

    >>> accepts("training.eval_iterations", -1), accepts("training.recompute_method", "block")
    (False, True)
    """
    try:
        _type_of(key).validate_python(value)
    except ValidationError:
        return False

    return True


@cache
def _type_of(key: str) -> TypeAdapter[Any]:
    """Return the type that a key has, with its rules."""
    for name, info, is_section in _walk(Run):
        if name == key and not is_section:
            annotation: Any = info.annotation
            for rule in info.metadata:
                annotation = Annotated[annotation, rule]
            return TypeAdapter(annotation)

    return TypeAdapter(Any)


@cache
def sections() -> dict[str, str]:
    """Return every section by its dotted name, with its help."""
    texts: dict[str, str] = {}
    for name, info, is_section in _walk(Run):
        if is_section:
            texts[name] = _help_text(info)

    return texts


def _help_text(info: FieldInfo) -> str:
    """Join the docstring for a field into one line, because schema docstrings are wrapped."""
    return " ".join((info.description or "").split())


def job_section(word: str) -> str:
    """Return the key under `jobs` for a phase, given by name or number.

    >>> job_section("03-smoke-test"), job_section("4"), job_section("data")
    ('smoke', 'training', 'data')
    """
    phase = phase_name(word)
    if phase not in JOB_SECTIONS:
        raise ValueError(f"{phase} submits no job; jobs has {', '.join(JOB_SECTIONS.values())}")
    return JOB_SECTIONS[phase]


def full_path(path: Sequence[str]) -> tuple[str, ...]:
    """Return a key path with our section names: `jobs.3` becomes jobs.smoke.

    Raise `ValueError` if `jobs` has no such phase or key.
    """
    if len(path) > 1 and path[0] == "jobs" and ".".join(path[:2]) not in all_keys():
        return ("jobs", job_section(path[1]), *path[2:])
    return tuple(path)


def _walk(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, bool]]:
    """Yield every section and key below a model.

    Each item has its dotted name, its field, and whether it is a section.
    """
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield path + name, info, True
            yield from _walk(kind, f"{path}{name}.")
        else:
            yield path + name, info, False
