"""Every name that documents and programs use for a key in the run file.

All names are in a single table, and each reader uses part of it.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain

from runbook.frameworks import megatron, nemo
from runbook.frameworks.option_rows import Option
from runbook.params.schema.keys import all_keys


@cache
def option_names(key: str) -> tuple[str, ...]:
    """Return the option names used to set a key, in lower case, with `_` between words.

    They are the names that occur in the five documents, and in Megatron-LM, Megatron-DeepSpeed and
    NeMo.

    >>> option_names("parallel.context")
    ('spsize', 'context_parallel_size', 'ds_sequence_parallel_size')
    >>> option_names("training.precision")
    ('precision',)
    """
    options = [option.name for option in _options(key) if option.means is None]
    names = [*all_keys()[key].documents, *options]
    return tuple(dict.fromkeys(map(_plain, names)))


@cache
def option_flags(key: str) -> dict[str, str]:
    """Return the value to which each flag sets a key.

    >>> option_flags("training.precision")
    {'fp16': 'fp16', 'bf16': 'bf16'}
    """
    flags = [option for option in _options(key) if option.means is not None]
    return {_plain(option.name): str(option.means) for option in flags}


def _options(key: str) -> Iterator[Option]:
    """Yield the options that set only this key."""
    for option in chain(megatron.OPTIONS.values(), nemo.READ.values()):
        if option.keys == [key]:
            yield option


def _plain(name: str) -> str:
    """Return a name without its section."""
    return name.rpartition(".")[2].lower().replace("-", "_")
