"""Rows used to map framework options to keys in the run file, and to write and read values."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from runbook.core.errors import ParamsError
from runbook.frameworks.messages import FrameworkMessage
from runbook.params import Settings
from runbook.params.schema.run_file import Job, Training
from runbook.plan_file.json_records import value_at
from runbook.plan_file.rules import batch_ramp
from runbook.plan_file.schema import PhasePlan

RAMP_KEYS = " ".join(batch_ramp.RAMP_KEYS)

Reader = Callable[[str], Any]


@dataclass(frozen=True)
class PhaseRun:
    """A training phase in a run, for which options are written."""

    settings: Settings
    phase: PhasePlan

    @property
    def training(self) -> Training:
        """Return the training section in the run file."""
        return self.settings.run.training

    @property
    def job(self) -> Job:
        """Return the resources requested by the phase from the scheduler."""
        return self.settings.job(self.phase.phase)

    @property
    def evaluation_interval(self) -> int:
        """Return how many steps lie between two evaluations.

        Without evaluations, this is the whole training length, because some programs do not accept
        0.
        """
        return self.phase.evaluation.interval or self.phase.duration.iterations

    @property
    def evaluation_batches(self) -> int:
        """Return how many batches an evaluation has, or 0 if there is none."""
        if not self.phase.evaluation.interval:
            return 0
        return self.phase.evaluation.iterations

    @property
    def ramp(self) -> tuple[int, ...]:
        """Return the start size, the increment and the samples for the batch ramp."""
        return astuple(self.phase.batch.ramp)

    def tokenizer_file(self, name: str) -> str:
        """Return the path to a GPT-2 tokenizer file.

        The folder is the tokenizer path on the site if there is one, otherwise data/gpt2 in the run
        folder. Raise `ParamsError` if the run has a different tokenizer.
        """
        tokenizer = self.settings.run.data.tokenizer
        if tokenizer != "gpt2":
            raise ParamsError(
                FrameworkMessage.ONLY_GPT2_TOKENIZER,
                tokenizer=tokenizer,
                framework=self.training.framework,
            )

        folder = self.settings.site.paths.get("tokenizer", "data/gpt2")
        return f"{folder.rstrip('/')}/{name}"


Writer = Callable[[PhaseRun], object]
"""A function that returns an option value for a phase, or None if the option is not written."""


@dataclass(frozen=True)
class Option:
    """An option for a framework. `jobs.render` writes it, and `adopt` reads it."""

    name: str
    """The spelling in the framework, without leading dashes."""
    key: str = ""
    """The key in the run file, or several keys separated by spaces.

    A key that begins with `model.` names a model property in the catalogue.
    """
    read: Reader | None = None
    """Function used to convert the option text to the key value.

    None if the option has no value, or if adopt needs more than this option to read the key.
    """
    write: str | Writer = ""
    """A path in the phase plan, or a function to compute the value.

    If the value is None, the option is not written. If it is True, only the name is written. A
    tuple is written as several words.
    """
    when: str | Callable[[PhasePlan], object] | None = None
    """A path in the phase plan, or a function.

    The option is written in the phases for which this path or function yields a true value.

    If this is None, the option is written in all phases.
    """
    means: str | int | None = None
    """The value for the key if the option is a flag without a value.

    The option is written if and only if `write` returns this value.
    """
    ours: str = ""
    """What the runbook does automatically instead of using the option."""

    @property
    def keys(self) -> list[str]:
        """Return the keys set by the option."""
        return self.key.split()

    def value(self, run: PhaseRun) -> object:
        """Return the value to write for this phase, or None to write nothing."""
        if not self.write or not self._applies(run.phase):
            return None
        if isinstance(self.write, str):
            value = value_at(run.phase, self.write)
        else:
            value = self.write(run)

        if self.means is None:
            return value
        return True if value == self.means else None

    def _applies(self, phase: PhasePlan) -> bool:
        if self.when is None:
            return True
        if isinstance(self.when, str):
            return bool(value_at(phase, self.when))
        return bool(self.when(phase))


def fixed(value: object) -> Writer:
    """Return a writer for a fixed value, regardless of the run file."""
    return lambda run: value


def tokenizer_file(name: str) -> Writer:
    """Return a writer for the path to a GPT-2 tokenizer file."""
    return lambda run: run.tokenizer_file(name)


def ramp(run: PhaseRun) -> tuple[int, ...]:
    """Return the start size, the increment and the samples for the batch ramp."""
    return run.ramp


def evaluation_interval(run: PhaseRun) -> int:
    """Return how many steps lie between two evaluations."""
    return run.evaluation_interval


def evaluation_batches(run: PhaseRun) -> int:
    """Return how many batches an evaluation has."""
    return run.evaluation_batches


def chosen(name: str, key: str, read: Reader) -> Option:
    """Return a row for a key that keeps its name in plan.json.

    The option is written only if the key was set.
    """
    path = plan_path(key)
    return Option(
        name,
        key,
        read,
        path,
        path,
    )


def flag(
    name: str,
    key: str,
    path: str = "",
    *,
    means: str | bool = True,
) -> Option:
    """Return a row for an option without a value.

    The option is written if the value at `path` in the plan equals `means`.

    Without a path, the key keeps its name in plan.json.
    """
    return Option(
        name,
        key,
        None,
        path or plan_path(key),
        means=means,
    )


def plan_path(key: str) -> str:
    """Return the path in plan.json for a key that keeps its name there.

    >>> plan_path("training.cuda_graphs"), plan_path("parallel.sequence")
    ('tuning.cuda_graphs', 'parallel.sequence')
    """
    return key.replace("training.", "tuning.")


def written(table: Iterable[Option], run: PhaseRun) -> dict[str, object]:
    """Return names and values for the options needed by this phase, in table order."""
    values: dict[str, object] = {}
    for option in table:
        value = option.value(run)
        if value is None:
            continue
        # A second row with the same name would silently replace the value from the first.
        assert option.name not in values, f"two rows of the table write {option.name}"
        values[option.name] = value

    return values


def text(value: object) -> str:
    """Return a number as text in its usual notation, and any other value as plain text.

    >>> text(6e-05), text(0.1), text(1.0), text(4294967296.0), text("a b")
    ('6e-05', '0.1', '1.0', '4294967296', 'a b')
    """
    if isinstance(value, float) and abs(value) >= 10 and value == int(value):
        return str(int(value))
    return str(value)


def whole(text: str) -> int:
    """Read a whole number, which may be written as 1e3 or 1_000.

    Raise `ValueError` for a fraction.
    """
    value = float(text.replace("_", ""))
    if value != int(value):
        raise ValueError(text)
    return int(value)


_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def truth(text: str) -> bool:
    """Read a boolean in any spelling that shells, Hydra or people use.

    Raise `KeyError` for any other text.
    """
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise KeyError(word)


def three_shares(text: str) -> str:
    """Return --split for Megatron with all three shares.

    Megatron also accepts one or two shares. The split in NeMo is a list, or a list as text.

    >>> three_shares("'98, 2'"), three_shares("949,50,1"), three_shares("[99990,8,2]")
    ('98,2,0', '949,50,1', '99990,8,2')
    """
    shares = [share.strip() for share in re.split(r"[,/]", text.strip("[]'\" "))]
    numbers = [float(share) for share in shares]
    if not 0 < len(numbers) <= 3:
        raise ValueError(text)
    return ",".join([*shares, "0", "0"][:3])


def minutes(text: str) -> int:
    """Convert minutes, given as text, to seconds."""
    return round(float(text) * 60)


def one_of(names: Mapping[str, str]) -> Reader:
    """Return a reader to translate words using a mapping."""
    return lambda text: names[text.strip("\"'").lower()]
