"""Explains unknown keys: misspellings, names from the documents, or keys from another section."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from runbook.core.nearest_names import nearest_names
from runbook.params.messages import ParamsMessage
from runbook.params.schema.keys import all_keys, sections
from runbook.plan_file.diagnostics import Statement


def explain_unknown_key(path: tuple[str, ...]) -> Statement:
    """Return the rule broken by an unknown key, with the key that was probably meant."""
    ours, near = right_name(path)
    explained = document_name(path[-1])
    if explained:
        return ParamsMessage.NAME_OF_THE_DOCUMENTS.of(word=path[-1], meaning=explained.meaning)
    if ours:
        return ParamsMessage.OTHER_NAME_OF_THE_DOCUMENTS.of(word=path[-1], ours=ours)
    if near:
        return ParamsMessage.UNKNOWN_KEY.of(near=near)
    parent = ".".join(path[:-1])
    return ParamsMessage.UNKNOWN_KEY_OF_SECTION.of(
        section=parent or "A run file", parent=some_keys(parent)
    )


def explain_unknown_job_key(path: tuple[str, ...], value: Any, error: ValueError) -> Statement:
    """Explain an unknown key in `jobs`.

    The key may belong to each phase, belong to `jobs`, or name a phase.
    """
    right_key = ""
    if not isinstance(value, Mapping):
        right_key = "".join(right_name(path))
    right_key = right_key.replace("jobs.<phase>.", "jobs.training.").replace(
        "jobs.environment.", "jobs.training."
    )
    if right_key.startswith("jobs.training."):
        return ParamsMessage.KEY_OF_ANOTHER_PHASE.of(right_key=right_key)
    if right_key.startswith("jobs.") and right_key in all_keys():
        near = right_key
        return ParamsMessage.UNKNOWN_KEY.of(near=near)
    return ParamsMessage.BROKEN_RULE.of(text=error)


def some_keys(section: str) -> str:
    """Return the first keys in a section, as text."""
    last_parts = []
    for name in (*all_keys(), *sections()):
        parent, _, last_part = name.rpartition(".")
        if parent == section:
            last_parts.append(last_part)

    text = ", ".join(last_parts[:8])
    if len(last_parts) > 8:
        text += f" and {len(last_parts) - 8} more"
    return text


def right_name(path: tuple[str, ...]) -> tuple[str, str]:
    """Return the right name for an unknown key.

    The pair is our key for a name in the documents, and the most similar valid name; either may be
    empty.

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
    if "." in word and (close := nearest_names(word, names, 1)):
        return close[0]
    # If several keys end with the same word, use the first
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
            if (close := nearest_names(word, [*names_by_word], 1))
        ),
        "",
    )


def _joined(names: list[str]) -> str:
    jobs = [name for name in names if name.startswith("jobs.")]
    if len(jobs) > 1:  # Every phase has this key
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


@dataclass(frozen=True)
class DocumentName:
    """A name in the documents that is not just a different name for one of our keys.

    Its value is written differently here, or no key is needed.
    """

    keys: tuple[str, ...]
    """Our keys with the same meaning; may be empty."""
    meaning: str
    """What to write instead, as a sentence."""


DOCUMENT_NAMES = {
    "squashed_nemo_image": DocumentName(
        (),
        "No NeMo image is used: the runbook's own programs download, join and tokenize "
        "(docs/departures.md). jobs.image is the image that training runs in.",
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
"""The names in the documents that are not aliases, in lower case.

A name whose value has the same form as one of our keys is an alias for that key.
"""


def document_name(word: str) -> DocumentName | None:
    """Return the entry for a name in the documents that is not an alias for one of our keys.

    >>> document_name("parallel.GAS").keys
    ('training.global_batch', 'training.micro_batch')
    """
    return DOCUMENT_NAMES.get(_plain(word.strip().rpartition(".")[2]))
