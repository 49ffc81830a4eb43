"""Every key of a run file: its type, help, default and names in the documents."""

import difflib
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
"""Groups of keys of which a layer may set only one, which clears the others in the layers below."""


@dataclass(frozen=True)
class Key:
    """One key a person may write."""

    name: str
    """Dotted: parallel.tensor."""
    kind: Any
    """int, float, bool, str or a `Literal` of words."""
    help: str
    default: Any
    """`...` if it must be given."""
    documents: tuple[str, ...]
    """Names of the key in the five documents."""


@dataclass(frozen=True)
class DocumentName:
    """A name in the documents that is not simply another name for one of our keys.

    Its value is written differently, or it needs no key.
    """

    keys: tuple[str, ...]
    """Our keys for the same thing; there may be none."""
    meaning: str
    """What to write instead, as a sentence."""


DOCUMENT_NAMES = {
    "squashed_nemo_image": DocumentName(
        (),
        "No NeMo image is used: the runbook's own programs download, join and tokenize "
        "(docs/departures.md). "
        "jobs.image is the image of the training.",
    ),
    "gas": DocumentName(
        ("training.global_batch", "training.micro_batch"),
        "GAS is training.global_batch / (training.micro_batch x data-parallel replicas): set "
        "training.global_batch.",
    ),
    "sp_type": DocumentName(
        ("parallel.sequence", "parallel.context"),
        "SP_TYPE=megatron is parallel.sequence: true; SP_TYPE=ds is parallel.context above 1.",
    ),
    "use_flash_attn_v1": DocumentName(
        ("training.attention",), "USE_FLASH_ATTN_V1=1 is training.attention: flash1."
    ),
    "use_flash_attn_v2": DocumentName(
        ("training.attention",), "USE_FLASH_ATTN_V2=1 is training.attention: flash2."
    ),
    "use_flash_attn_triton": DocumentName(
        ("training.attention",), "USE_FLASH_ATTN_TRITON=1 is training.attention: flash-triton."
    ),
    "num_gpus": DocumentName(
        ("jobs.training.nodes", "jobs.training.devices_per_node"),
        "num_gpus is jobs.training.nodes x jobs.training.devices_per_node.",
    ),
    "gpt25b": DocumentName(("model",), "GPT25B is a value of MODEL_SIZE_KEY: write model: gpt25b."),
}
"""Such names, in lower case.

A name whose value has the same form as one of our keys is an alias of that key.
"""


def document_name(word: str) -> DocumentName | None:
    """Return the entry for a document's variable that does not correspond to one of our keys.

    >>> document_name("parallel.GAS").keys
    ('training.global_batch', 'training.micro_batch')
    """
    return DOCUMENT_NAMES.get(_plain(word.strip().rpartition(".")[2]))


@cache
def all_keys() -> dict[str, Key]:
    """Return every key by its dotted name, in the schema's order."""
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
    """Return whether a value by itself is valid for a key, by its type and range.

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
    """Return the type of a key with its rules."""
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
    """Return the docstring of a field as one line; in the schema it is wrapped."""
    return " ".join((info.description or "").split())


def nearest(
    word: str,
    names: list[str] | tuple[str, ...],
    count: int = 3,
    likeness: float = 0.6,
) -> list[str]:
    """Return the names most similar to `word`, best first.

    >>> nearest("tenser", ["tensor", "pipeline"])
    ['tensor']
    """
    by_lower = {name.lower(): name for name in names}
    return [
        by_lower[name]
        for name in difflib.get_close_matches(word.lower(), list(by_lower), count, likeness)
    ]


def job_section(word: str) -> str:
    """Return the key under `jobs` for a phase's name or number.

    >>> job_section("03-smoke-test"), job_section("4"), job_section("data")
    ('smoke', 'training', 'data')
    """
    phase = phase_name(word)
    if phase not in JOB_SECTIONS:
        raise ValueError(f"{phase} submits no job; jobs has {', '.join(JOB_SECTIONS.values())}")
    return JOB_SECTIONS[phase]


def full_path(path: Sequence[str]) -> tuple[str, ...]:
    """Return a path of keys with our names: `jobs.3` becomes jobs.smoke.

    Raise `ValueError` if `jobs` has no such phase or key.
    """
    if len(path) > 1 and path[0] == "jobs" and ".".join(path[:2]) not in all_keys():
        return ("jobs", job_section(path[1]), *path[2:])
    return tuple(path)


def right_name(path: tuple[str, ...]) -> tuple[str, str]:
    """Return the right name for an unknown key.

    The pair is our key for a document's name, and the most similar valid name; either may be empty.

    >>> right_name(("training", "MPSIZE")), right_name(("parallel", "tenser"))
    (('parallel.tensor', ''), ('', 'parallel.tensor'))
    """
    word = path[-1].rpartition(".")[2]
    ours = {name.rpartition(".")[2] for name in all_keys()}
    if word not in ours:
        documents = _by_document_name().get(_plain(word), [])
    else:
        documents = []

    parent = ".".join(path[:-1])
    if documents:
        same_section = [name for name in documents if name.rpartition(".")[0] == parent]
        return _joined(same_section or documents), ""

    return "", _nearest_key(parent, word)


def _nearest_key(parent: str, word: str) -> str:
    names = [*all_keys(), *sections()]
    if "." in word and (close := nearest(word, names, 1)):
        return close[0]
    # The first name of each.
    last_words = {name.rpartition(".")[2]: name for name in reversed(names)}
    if word.lower() in last_words:
        return _joined([name for name in names if name.rpartition(".")[2] == word.lower()])
    siblings = {}
    for name in names:
        if name.rpartition(".")[0] == parent:
            siblings[name.rpartition(".")[2]] = name

    return next(
        (
            names_by_word[close[0]]
            for names_by_word in (siblings, last_words)
            if (close := nearest(word, [*names_by_word], 1))
        ),
        "",
    )


def _joined(names: list[str]) -> str:
    jobs = [name for name in names if name.startswith("jobs.")]
    if len(jobs) > 1:  # Each phase has the same key.
        names = [name for name in names if name not in jobs] + [
            f"jobs.<phase>.{jobs[0].rpartition('.')[2]}"
        ]

    return " or ".join(names[:3])


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_").lower()


@cache
def _by_document_name() -> dict[str, list[str]]:
    keys_by_name: dict[str, list[str]] = {}
    for key in all_keys().values():
        for name in dict.fromkeys(map(_plain, key.documents)):
            keys_by_name.setdefault(name, []).append(key.name)

    return keys_by_name


def _walk(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, bool]]:
    """Yield every section and key below a model.

    Each comes with its dotted name, its field, and whether it is a section.
    """
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield path + name, info, True
            yield from _walk(kind, f"{path}{name}.")
        else:
            yield path + name, info, False
