"""Rows that map another program's keys to keys in the run file, or say why they have none."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

UNSET = (None,)
OFF = (False,)
ON = (True,)
ZERO = (0,)
ONE = (1,)
UNSET_OR_OFF = (None, False)
UNSET_OR_ONE = (None, 1)
UNSET_OFF_OR_ONE = (None, False, 1)
"""Values that have no effect. A key with one of these values can be left out."""
ALL_EARLIER_TOKENS = (None, [-1, -1], [-1, 0], (-1, -1), (-1, 0))
"""Attention windows unbounded on the left. A GPT never attends to later tokens."""

PERFORMANCE = "this affects only speed: our trainer chooses its own kernels"
LOGGING = "our trainer writes its own log, in the run's folder"
FOLDERS = "every run has its own folders"
PROFILE = "profiling does not change the numbers of the training"
TOKENIZER_FILE = "the file tokenizer.json in that folder, or another file that you name"
STARTER = "the site's launcher starts the processes"
NO_EXPERTS = "our models have no experts"
NO_SUCH_PART = "our models have no such part, so this is a different training run"
ROTARY_SHARE = "rotary embeddings for part of each head"
QUERY_KEY_NORMS = "norms of queries and keys"
WINDOWED = "attention to a window of earlier tokens"
SCALED_ROTARY = "scaled rotary embeddings"
SOME_WITHOUT_ROTARY = "layers without rotary embeddings"
NO_KEY = "the run file has no key for it, and it may change the training run"
HEAD_WIDTH = "a head here has the model's width divided by the number of heads"
OTHER_WEIGHTS = "`runbook import` starts from other weights"
OWN_CHECKPOINT = "a restarted job continues from the run's own checkpoint"
GRADIENTS_IN_32_BITS = "gradients are summed in 32 bits"
PADDED_VOCABULARY = "the vocabulary is padded to a multiple of 128"
WHOLE_DOCUMENTS = "here, attention crosses document boundaries"
EVERY_TOKEN_COUNTS = "the loss counts every token"
WHOLE_WEIGHTS = "the distributed optimizer, with unsharded weights"
ADAMW = "our optimizer is AdamW"
FULL_RECOMPUTE_ONLY = "applies only with recompute full"
ONE_TENSOR_RANK = "one tensor rank has nothing to split"
FOLDER_OR_BLEND = "set data.folder, or data.blend with one dataset per file"
EVEN_STAGES = "parallel.first_stage_layers and last_stage_layers"
OWN_CLASS = "the program's own class"
MODEL_CLASS = "the model's class"
BATCH_RAMP = "training.rampup_start, rampup_increment, rampup_samples"
"""The reason for a batch ramp, which several programs share."""


@dataclass(frozen=True)
class KeyRow:
    """A row for one key in another program, or for all keys that match a pattern."""

    name: str
    """The dotted key; `*` stands for any text."""

    def matches(self, name: str) -> bool:
        """Return whether the row applies to a dotted key."""
        if "*" not in self.name:
            return self.name == name
        return self._pattern.fullmatch(name) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = self.name.split("*")
        return re.compile(".*".join(map(re.escape, parts)))


@dataclass(frozen=True)
class DroppedKey(KeyRow):
    """A key in the program that has no counterpart in the run file."""

    why: str = field(kw_only=True)
    """Why the value is dropped."""
    same_if: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values with which the key has no effect, so it can be dropped."""
    other_model: str = field(default="", kw_only=True)
    """The part, such as experts, that any other value adds to the model.

    Empty if no value adds a part.
    """


@dataclass(frozen=True)
class CarriedKey(KeyRow):
    """A key whose value is carried over unchanged."""

    key: str
    """Our key, or `model.FIELD` for a field in `ModelKind`."""
    why: str = field(default="", kw_only=True)
    """The reason why our value differs, if it does."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All run file keys set by the value."""
        return (self.key,)

    def read(self, value: Any) -> Any:
        """Convert a program value to ours.

        Raise ValueError or KeyError if our key cannot express the value.
        """
        return value


class IntegerKey(CarriedKey):
    """A key whose value is a whole number."""

    def read(self, value: Any) -> int:
        """Read a whole number, which may be written as 1e6."""
        return integer(value)


class DecimalKey(CarriedKey):
    """A key whose value is a number."""

    def read(self, value: Any) -> float:
        """Read a number."""
        return decimal(value)


class SwitchKey(CarriedKey):
    """A key that is true or false; null means false."""

    def read(self, value: Any) -> bool:
        """Read true, false or null."""
        return switch(value)


class TextKey(CarriedKey):
    """A key whose value is a string."""

    def read(self, value: Any) -> str:
        """Read a string."""
        return word(value)


@dataclass(frozen=True)
class ChosenKey(CarriedKey):
    """A key with a few possible values, which have different names in our key."""

    choices: Mapping[Any, Any]
    """Our value for each program value, in lower case."""

    def read(self, value: Any) -> Any:
        """Read one of the choices."""
        spelling = value.lower() if isinstance(value, str) else value
        return self.choices[spelling]


@dataclass(frozen=True)
class ConvertedKey(CarriedKey):
    """A key whose value is converted."""

    convert: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        """Convert the value."""
        return self.convert(value)


@dataclass(frozen=True)
class PairKey(CarriedKey):
    """A key with two numbers as value, each of which has a separate key in the run file."""

    second_key: str

    @property
    def keys(self) -> tuple[str, ...]:
        """Both keys."""
        return (self.key, self.second_key)

    def read(self, value: Any) -> list[float]:
        """Read a list of two numbers."""
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(value)
        return [decimal(item) for item in value]


def in_section(section: str, *rows: KeyRow) -> tuple[KeyRow, ...]:
    """Prefix the section name to the names in these rows.

    >>> in_section("train", IntegerKey("steps", "training.iterations"))[0].name
    'train.steps'
    """
    return tuple(replace(row, name=f"{section}.{row.name}") for row in rows)


_LARGEST_NUMBER = 2**63


def is_bounded(value: float) -> bool:
    """Return whether a number is finite and fits into 64 bits."""
    return math.isfinite(value) and abs(value) <= _LARGEST_NUMBER


def integer(value: Any) -> int:
    """Read a whole number, which may be written as 1e6."""
    number = decimal(value)
    if number != int(number):
        raise ValueError(value)
    return int(number)


def decimal(value: Any) -> float:
    """Read a number."""
    if isinstance(value, bool) or value is None or not is_bounded(float(value)):
        raise ValueError(value)
    return float(value)


def switch(value: Any) -> bool:
    """Read true or false; null means false.

    Raise ValueError for anything else, such as "False" or "${x:y}".
    """
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def word(value: Any) -> str:
    """Read a string.

    Raise ValueError for anything else, such as a list.
    """
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def zero_if_off(value: Any) -> int:
    """Read a switch: return interval 0 if it is off, and raise ValueError if it is on."""
    if value:
        raise ValueError(value)
    return 0


def chunks_or_one(value: Any) -> int:
    """Read how many virtual stages a pipeline rank has; null means 1."""
    return 1 if value is None else integer(value)


def at_least_zero(value: Any) -> int:
    """Read an interval; -1, which means never, becomes 0."""
    return max(0, integer(value))


def at_least_one(value: Any) -> int:
    """Read a stage count; 0, which means no pipeline, becomes 1."""
    return max(1, integer(value))


def without_spaces(value: Any) -> str:
    """Read split ratios such as `969, 30, 1`."""
    return word(value).replace(" ", "")
