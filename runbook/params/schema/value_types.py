"""Value types: names, counts, durations, choices, dataset blends."""

import math
import re
import unicodedata
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from runbook.core.units import parse_bytes, parse_count, parse_duration
from runbook.params.messages import ParamsMessage
from runbook.params.secrets import is_reference
from runbook.plan_file.schema import TRACKERS


class BrokenRuleError(ValueError):
    """Raised if a value breaks a rule, which the error contains as data."""

    def __init__(self, message: ParamsMessage, /, **values: object) -> None:
        self.rule = message.of(**values)
        super().__init__(str(self.rule))


class Strict(BaseModel):
    """Base class for all sections. They are frozen, and an unknown key is an error.

    The docstring for a field is its help text.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class Aliases:
    """Annotates a field with the names that the five documents use for it."""

    def __init__(self, *names: str) -> None:
        self.names = names


class OnlyOwnTrainer:
    """Marks a key that only our own trainer supports. The plan warns if a framework ignores it."""


def is_name(value: object) -> bool:
    """Return whether `value` may be the name of a run, site, model or dataset. A path may not.

    >>> is_name("lumi-13b"), is_name("../lumi"), is_name("")
    (True, False, False)
    """
    return (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", value) is not None
    )


def suggested_name(text: str) -> str:
    """Return a valid name that resembles a text, or `my-run` if nothing of it is valid.

    >>> suggested_name("größe 1"), suggested_name("大")
    ('grosse-1', 'my-run')
    """
    letters = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    ascii_text = "".join(letter for letter in letters if not unicodedata.combining(letter))
    name = re.sub(r"[^A-Za-z0-9._]+", "-", ascii_text).strip("-._")
    return name if is_name(name) else "my-run"


def _name(value: str) -> str:
    if not is_name(value):
        stem = PurePath(value).stem
        hint = f". Write {stem}" if value.endswith(".yaml") and is_name(stem) else ""
        raise ValueError(
            f"{value!r} is not a name: letters, digits, '.', '_' and '-', starting with a letter "
            f"or digit, at most 80{hint}"
        )

    return value


def _dataset_name(value: str) -> str:
    """Refuse a path, because the folder with a text belongs in another key."""
    if "/" in value:
        folder = value if value.endswith("/") else str(PurePath(value).parent)
        raise BrokenRuleError(ParamsMessage.DATASET_IS_A_PATH, value=value, folder=folder)

    return _name(value)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    if isinstance(value, str):
        raise BrokenRuleError(
            ParamsMessage.TEXT_NOT_A_NUMBER, value=value, hint=_hint_for_number(value)
        )

    return value


def _hint_for_number(text: str) -> str:
    """Return how to write a number written as text; empty if the text is not a number."""
    if _is_number(text):
        return ParamsMessage.WITHOUT_QUOTES.fill()

    without_separators = re.sub(r"(?<=[0-9])[ _,'](?=[0-9]{3})", "", text.strip())
    if _is_number(without_separators):
        return ParamsMessage.WITHOUT_SEPARATORS.fill(number=without_separators)

    return ""


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?\s*", text) is not None


def _fraction(value: Any) -> Any:
    """Refuse text as `_number` does, and show the fraction that a percentage means."""
    percentage = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", str(value))
    if percentage:
        fraction = f"{float(percentage[1]) / 100:.10g}"
        raise BrokenRuleError(ParamsMessage.PERCENTAGE, value=value, fraction=fraction)

    return _number(value)


def _secret_reference(text: str) -> str:
    if text and not is_reference(text):
        raise ValueError(
            "write env:NAME or file:PATH: the address is a secret, and a run file is copied to its "
            "records"
        )

    return text


Name = Annotated[str, AfterValidator(_name)]
DatasetName = Annotated[str, AfterValidator(_dataset_name)]
SecretReference = Annotated[str, AfterValidator(_secret_reference)]
Count = Annotated[int, BeforeValidator(parse_count), Field(ge=0, le=10**18)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
Seconds = Annotated[int, BeforeValidator(parse_duration), Field(ge=0)]
Whole = Annotated[PositiveInt, BeforeValidator(_number)]
WholeOrZero = Annotated[NonNegativeInt, BeforeValidator(_number)]
Fraction = Annotated[float, BeforeValidator(_fraction), Field(ge=0, le=1)]
BelowOne = Annotated[float, BeforeValidator(_fraction), Field(ge=0, lt=1)]
Positive = Annotated[PositiveFloat, BeforeValidator(_number)]
NonNegative = Annotated[NonNegativeFloat, BeforeValidator(_number)]


Framework = Literal["runbook", "megatron-lm", "megatron-deepspeed", "nemo"]
"""Program that the training job starts."""
Attention = Literal["auto", "flash1", "flash2", "flash-triton", "plain"]
"""Kernel that computes the attention."""
LossFusion = Literal["auto", "native", "te"]
"""Fused kernels in megatron-core used to compute the loss."""
BadRecords = Literal["stop", "skip", "quarantine"]
"""What the data phase does with a record that it cannot read."""
FixText = Literal["none", "ftfy"]
"""Tool that repairs wrongly decoded characters before a text becomes tokens."""
PartsOrder = Literal["listed", "names"]
"""The order in which to join the parts of a dataset."""
LauncherChoice = Literal["site", "torchrun", "srun", "mpiexec", "deepspeed"]
"""Program that starts one process for each device, if it differs from the one in the site file."""


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list; an empty string has no names.

    Raise `ValueError`, which names the wrong part.

    >>> parse_names("RedPajamaBook, RedPajamaC4"), parse_names("")
    (('RedPajamaBook', 'RedPajamaC4'), ())
    """
    if not text.strip():
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has an empty name: write names with commas between them")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named twice: name it once")

    return names


def names_text(text: str) -> str:
    """Return the text unchanged. Raise `ValueError` if it is not a list of names."""
    parse_names(text)
    return text


_NODE_FOLDER = re.compile(
    r"(/|\$[A-Za-z_][A-Za-z0-9_]*)[A-Za-z0-9_./-]*(\$[A-Za-z_][A-Za-z0-9_]*[A-Za-z0-9_./-]*)*"
)


def node_folder_text(text: str) -> str:
    """Return the text unchanged.

    Raise `ValueError` if job scripts cannot use it as a folder on a node.

    >>> node_folder_text("/tmp"), node_folder_text("$TMPDIR/copies"), node_folder_text("")
    ('/tmp', '$TMPDIR/copies', '')
    """
    if text and _NODE_FOLDER.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is not a folder on a node: write an absolute path of letters, digits and . _ / "
            "-, in which $NAME "
            "stands for a variable of the node, such as /tmp or $TMPDIR"
        )

    return text


def tracker_names_text(text: str) -> str:
    """Return the text unchanged. Raise `ValueError` if it is not a list of trackers."""
    for name in parse_names(text):
        if name not in TRACKERS:
            raise BrokenRuleError(ParamsMessage.NO_TRACKER, name=name, trackers=", ".join(TRACKERS))

    return text


def parse_blend(text: str) -> tuple[tuple[str, float], ...]:
    """Return names and weights in order; an empty string has no names.

    Raise `ValueError`, which names the wrong part.

    >>> parse_blend("corpus 0.7, articles 3e-1"), parse_blend("")
    ((('corpus', 0.7), ('articles', 0.3)), ())
    """
    if not text.strip():
        return ()
    parts = tuple(map(_blend_part, text.split(",")))
    names = [name for name, _ in parts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{name} is in the blend twice: write it once, with the sum of its weights"
            )

    if len(parts) < 2:
        raise ValueError(
            f"a blend has two texts or more, such as {_BLEND}; name a single text with data.dataset"
        )

    return parts


def blend_text(text: str) -> str:
    """Return the text unchanged if it can be parsed."""
    parse_blend(text)
    return text


_BLEND = "corpus 0.7, articles 0.3"


def _blend_part(part: str) -> tuple[str, float]:
    name, _, number = " ".join(part.split()).partition(" ")
    if not number or " " in number:
        raise ValueError(f"{part.strip()!r} is not a name and a weight: write them as in {_BLEND}")
    if not is_name(name):
        raise ValueError(
            f"{name!r} is not the name of a dataset: write name and weight, as in {_BLEND}"
        )

    try:
        weight = float(number)
    except ValueError:
        raise ValueError(
            f"the weight of {name} is {number!r}, not a number: write it as in {_BLEND}"
        ) from None

    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(
            f"the weight of {name} is {number}: a weight must be above 0; leave out texts without "
            "weight"
        )

    return name, weight
