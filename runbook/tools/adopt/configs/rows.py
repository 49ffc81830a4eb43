"""Rows that give a key of another program its key in the run file, or why it has none."""

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
"""Values that ask for nothing, so that a key with one of them can be left out without a loss."""

PERFORMANCE = "how fast, not what: our trainer chooses its own kernels"
LOGGING = "our trainer logs by itself, into the run's folder"
FOLDERS = "every run has folders of its own"
PROFILE = "a profile changes no number of the training"
TOKENIZER_FILE = "the file tokenizer.json in that folder, or the file that you give"
STARTER = "the site's launcher starts the processes"
NO_EXPERTS = "our models have no experts"
NO_SUCH_PART = "our models have no such part: the training is another one"
OTHER_WEIGHTS = "`runbook import` begins with other weights"
OWN_CHECKPOINT = "a job that is started again goes on from the run's own checkpoint"
GRADIENTS_IN_32_BITS = "gradients are summed in 32 bits"
PADDED_VOCABULARY = "the vocabulary is padded to a multiple of 128"
WHOLE_DOCUMENTS = "attention looks over the ends of documents here"
EVERY_TOKEN_COUNTS = "the loss counts every token"
WHOLE_WEIGHTS = "the distributed optimizer, with whole weights"
ADAMW = "our optimizer is AdamW"
FULL_RECOMPUTE_ONLY = "counts with recompute full only"
ONE_TENSOR_RANK = "one tensor rank has nothing to cut"
FOLDER_OR_BLEND = "set data.folder, or data.blend with one dataset for each"
EVEN_STAGES = "parallel.first_stage_layers and last_stage_layers"
OWN_CLASS = "the program's own class"
MODEL_CLASS = "the model's class"
BATCH_RAMP = "training.rampup_start, rampup_increment, rampup_samples"
"""Reasons that several programs share."""


@dataclass(frozen=True)
class KeyRow:
    """One key of another program, or several by a pattern."""

    name: str
    """The dotted key; `*` stands for any text."""

    def matches(self, name: str) -> bool:
        """Return whether a dotted key is this row's."""
        if "*" not in self.name:
            return self.name == name
        return self._pattern.fullmatch(name) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = self.name.split("*")
        return re.compile(".*".join(map(re.escape, parts)))


@dataclass(frozen=True)
class DroppedKey(KeyRow):
    """A key that no key of the run file has."""

    why: str = field(kw_only=True)
    """Why its value is dropped."""
    same_if: tuple[Any, ...] = field(default=(), kw_only=True)
    """Values with which nothing is lost."""
    other_model: str = field(default="", kw_only=True)
    """What other values add to the model, so that it is no dense GPT: experts. Empty: nothing."""


@dataclass(frozen=True)
class CarriedKey(KeyRow):
    """A key whose value is taken as it stands."""

    key: str
    """Our key; `model.FIELD` for a property of the model's kind."""
    why: str = field(default="", kw_only=True)
    """Why our value differs, where it does."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of ours that the value sets."""
        return (self.key,)

    def read(self, value: Any) -> Any:
        """Return our value for the program's. Raise ValueError or KeyError where we have none."""
        return value


class IntegerKey(CarriedKey):
    """A key with a whole number."""

    def read(self, value: Any) -> int:
        """Read a whole number, also one written as 1e6."""
        return integer(value)


class DecimalKey(CarriedKey):
    """A key with a number."""

    def read(self, value: Any) -> float:
        """Read a number."""
        return decimal(value)


class SwitchKey(CarriedKey):
    """A key that is true or false; null is off."""

    def read(self, value: Any) -> bool:
        """Read true, false or null."""
        return switch(value)


class TextKey(CarriedKey):
    """A key with a text."""

    def read(self, value: Any) -> str:
        """Read a text."""
        return word(value)


@dataclass(frozen=True)
class ChosenKey(CarriedKey):
    """A key with one of a few values, each of which has another name here."""

    choices: Mapping[Any, Any]
    """Our value for each of the program's, which are spelled with small letters."""

    def read(self, value: Any) -> Any:
        """Read one of the choices."""
        spelling = value.lower() if isinstance(value, str) else value
        return self.choices[spelling]


@dataclass(frozen=True)
class ConvertedKey(CarriedKey):
    """A key whose value becomes another one."""

    convert: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        """Convert the value."""
        return self.convert(value)


@dataclass(frozen=True)
class PairKey(CarriedKey):
    """A key with two numbers, each of which has a key here."""

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
    """Return rows whose names begin with a section's.

    >>> in_section("train", IntegerKey("steps", "training.iterations"))[0].name
    'train.steps'
    """
    return tuple(replace(row, name=f"{section}.{row.name}") for row in rows)


_LARGEST_NUMBER = 2**63


def is_bounded(value: float) -> bool:
    """Return whether a number has an end, and one that 64 bits hold: .nan and .inf have none."""
    return math.isfinite(value) and abs(value) <= _LARGEST_NUMBER


def integer(value: Any) -> int:
    """Read a whole number, also one written as 1e6."""
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
    """Read true or false; null is off.

    Raise ValueError for anything else, such as "False" or "${x:y}".
    """
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def word(value: Any) -> str:
    """Read a text. Raise ValueError for anything else: a list would become one text."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def zero_if_off(value: Any) -> int:
    """Read a switch that is off as an interval of 0. Raise ValueError if it is on."""
    if value:
        raise ValueError(value)
    return 0


def chunks_or_one(value: Any) -> int:
    """Read the virtual stages of a pipeline rank; null is one."""
    return 1 if value is None else integer(value)


def at_least_zero(value: Any) -> int:
    """Read an interval; -1 is never."""
    return max(0, integer(value))


def at_least_one(value: Any) -> int:
    """Read a number of stages; 0 is no pipeline."""
    return max(1, integer(value))


def without_spaces(value: Any) -> str:
    """Read shares such as `969, 30, 1`."""
    return word(value).replace(" ", "")
