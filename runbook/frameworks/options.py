"""Options of a training framework: its name for each, our key, how the value is written and read back."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import Any

from runbook.core.errors import ParamsError
from runbook.params import Settings
from runbook.params.schema.run_file import Job, Training
from runbook.plan_file.schema import PhasePlan

RAMP_KEYS = "training.rampup_start training.rampup_increment training.rampup_samples"

Reader = Callable[[str], Any]


@dataclass(frozen=True)
class PhaseRun:
    """One training phase of a run, which options are written from."""

    settings: Settings
    phase: PhasePlan

    @property
    def training(self) -> Training:
        """The run file's section."""
        return self.settings.run.training

    @property
    def job(self) -> Job:
        """What the phase asks of the scheduler."""
        return self.settings.job(self.phase.phase)

    @property
    def evaluation_interval(self) -> int:
        """Steps between two evaluations; a training without any has its length, for programs that take no 0."""
        return self.phase.evaluation.interval or self.phase.duration.iterations

    @property
    def evaluation_batches(self) -> int:
        """Batches of an evaluation; 0 where there is none."""
        return self.phase.evaluation.iterations if self.phase.evaluation.interval else 0

    @property
    def ramp(self) -> tuple[int, ...]:
        """Start, increment and samples of the batch ramp."""
        return astuple(self.phase.batch.ramp)

    def tokenizer_file(self, name: str) -> str:
        """A file of GPT-2's tokenizer: where the site keeps it, else in the run's folder."""
        tokenizer = self.settings.run.data.tokenizer
        if tokenizer != "gpt2":
            raise ParamsError(
                f"data.tokenizer={tokenizer} with training.framework={self.training.framework}: "
                "only GPT-2's vocabulary and merges are rendered for it. Set data.tokenizer to gpt2."
            )
        return f"{self.settings.site.paths.get('tokenizer', 'data/gpt2').rstrip('/')}/{name}"


@dataclass(frozen=True)
class Option:
    """One option of a framework, for both directions: `jobs.render` writes it, `adopt` reads it."""

    name: str
    """As the framework spells it, without dashes in front."""
    key: str = ""
    """The run file's key, or several with spaces between; `model.` names a property of the catalogue's model."""
    read: Reader | None = None
    """The key's value from the option's; None: the option has none, or adopt needs more than this option to read it."""
    write: str | Callable[[PhaseRun], object] = ""
    """A path in the phase's plan, or a function; None is not written, True is the name alone, a tuple several words."""
    when: str | Callable[[PhasePlan], object] | None = None
    """Which phases have it: those where this path in the phase's plan, or a function, gives something; None: all."""
    means: str | int | None = None
    """The key's value where the option stands without one; it is written exactly where `write` gives this value."""
    ours: str = ""
    """Why nobody needs to set it: what the runbook does by itself."""

    @property
    def keys(self) -> list[str]:
        """The keys one by one."""
        return self.key.split()

    def value(self, run: PhaseRun) -> object:
        """What to write for this phase; None: nothing."""
        condition = attrgetter(self.when) if isinstance(self.when, str) else self.when
        if not self.write or (condition and not condition(run.phase)):
            return None
        if isinstance(self.write, str):
            value = attrgetter(self.write)(run.phase)
        else:
            value = self.write(run)
        if self.means is not None:
            return True if value == self.means else None
        return value


def chosen(name: str, key: str, read: Reader) -> Option:
    """An option of a key that plan.json has under its own name, and that is written only where it was chosen."""
    path = key.replace("training.", "tuning.")
    return Option(name, key, read, path, path)


def written(table: Iterable[Option], run: PhaseRun) -> dict[str, object]:
    """Name and value of each option that this phase needs, in the table's order."""
    values: dict[str, object] = {}
    for option in table:
        value = option.value(run)
        if value is None:
            continue
        # A second row of a name would silently replace the first one's value.
        assert option.name not in values, f"two rows of the table write {option.name}"
        values[option.name] = value
    return values


def text(value: object) -> str:
    """A number as a person would write it; anything else as it is.

    >>> text(6e-05), text(0.1), text(1.0), text(4294967296.0), text("a b")
    ('6e-05', '0.1', '1.0', '4294967296', 'a b')
    """
    if isinstance(value, float) and abs(value) >= 10 and value == int(value):
        return str(int(value))
    return str(value)


def whole(text: str) -> int:
    """A whole number, also as 1e3 or 1_000."""
    value = float(text.replace("_", ""))
    if value != int(value):
        raise ValueError(text)
    return int(value)


def truth(text: str) -> bool:
    """True and False as shells, Hydra and people write them."""
    return {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }[text.lower()]


def minutes(text: str) -> int:
    """Seconds of a number of minutes."""
    return round(float(text) * 60)


def one_of(names: Mapping[str, str]) -> Reader:
    """A reader of words that stand for other words."""
    return lambda text: names[text.strip("\"'").lower()]
