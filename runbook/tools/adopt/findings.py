"""What adopt found out about a script.

These are values for the run file, settings without a key, settings that the runbook handles
automatically, and errors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runbook.params.schema.keys import accepts
from runbook.params.schema.run_file import SHAPE_FIELDS
from runbook.params.schema.site import Site
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.script import Word

TOKENIZER_MARK = "GIVE_DATA_TOKENIZER"
"""Placeholder for the tokenizer file, whose path only the user knows."""


@dataclass(frozen=True)
class CarriedValue:
    """A value for the run file, with its source."""

    key: str
    value: Any
    line: int
    """The line in the script, or 0 if no line sets the value."""
    source: str
    """The option or variable that sets the value, or else the reason for the value."""


@dataclass(frozen=True)
class Remark:
    """A setting that the run file has no key for."""

    line: int
    text: str
    why: str


@dataclass(frozen=True)
class KnownError:
    """A known error in the documents that is also in this script."""

    number: int
    line: int
    problem: str
    remedy: str


@dataclass
class Findings:
    """Everything reported about a script, in the order in which it was found."""

    site: Site
    """The site that the job runs on."""
    carried: dict[str, CarriedValue] = field(default_factory=dict)
    leftovers: list[Remark] = field(default_factory=list)
    automatic: list[Remark] = field(default_factory=list)
    """Settings that need no key, because the runbook handles them automatically."""
    kind_lines: dict[str, int] = field(default_factory=dict)
    """For each model field, the line in the script that sets it."""
    model_kind: dict[str, str | float] = field(default_factory=dict)
    """The model type if the catalogue lacks it, or empty."""
    questions: dict[str, str] = field(default_factory=dict)
    """Questions that the source leaves open, by the key that answers them.

    The run file has a placeholder for each question.
    """
    tokenizer_kind: str = ""
    """The tokenizer named by the source, such as GPT2BPETokenizer or Llama2Tokenizer."""
    has_absent_document: bool = False
    """Whether the training uses a DeepSpeed configuration that is not available."""
    vocabulary: int = 0
    """Vocabulary size in tokens, or 0 if the source does not state it."""
    other_model: str = ""
    """What the model in the source has that the one in the run file lacks, such as 8 experts.

    Empty if no part is missing.
    """
    unknown_model: str = ""
    """Why the source does not identify its model. In this case, the run file names a placeholder
    model.

    Empty if the source does identify its model.
    """
    unset_arguments: str = ""
    """Variables among the training arguments that may contain options but are not set anywhere.
    """
    absent_file: str = ""
    """The configuration that training starts from, if it is not available.

    Empty if no configuration is missing, or if the catalogue has its model.
    """
    site_values: dict[tuple[str, str], Any] = field(default_factory=dict)
    """Settings that a person may add to the site file, by section and name."""

    @property
    def site_file(self) -> str:
        """Return the site file name to show."""
        return f"params/sites/{self.site.site}.yaml"

    @property
    def devices_per_node(self) -> int:
        """Return how many devices the run uses on each node."""
        return self.number("jobs.training.devices_per_node") or self.site.hardware.devices_per_node

    @property
    def shape(self) -> dict[str, int]:
        """Return the adopted model sizes by name. A size that was not adopted is 0."""
        sizes = {}
        for name in SHAPE_FIELDS:
            sizes[name] = self.number(f"training.shape.{name}")
        return sizes

    @property
    def model_parallel(self) -> int:
        """Return how many devices hold one replica of the model."""
        return max(1, self.number("parallel.tensor", 1) * self.number("parallel.pipeline", 1))

    def take(
        self,
        key: str,
        value: Any,
        line: int,
        source: str,
        *,
        over: bool = True,
    ) -> None:
        """Set a value. An existing value is kept unless `over` is set."""
        if over or key not in self.carried:
            self.carried[key] = CarriedValue(key, value, line, source)

    def drop(self, *keys: str) -> None:
        """Remove adopted values."""
        for key in keys:
            self.carried.pop(key, None)

    def leave(self, line: int, text: str, why: str) -> None:
        """Record a setting that is not carried over."""
        remark = Remark(line, text, why)
        if remark not in self.leftovers:
            self.leftovers.append(remark)

    def leave_to_site(
        self,
        line: int,
        text: str,
        section: str,
        why: str = "the run file has no key for it",
    ) -> None:
        """Record a setting that belongs in a section of the site file."""
        self.leave(line, text, f"{why}: write it under {section} of {self.site_file}")

    def ask(self, key: str, question: str) -> None:
        """Ask for the value of a key. An existing question for the key is kept."""
        self.questions.setdefault(key, question)

    def trains_another_model(self, line: int, text: str, part: str) -> None:
        """Record what the model in the source has that our models do not have.

        The run file then trains a different model.
        """
        why = AdoptMessage.NO_SUCH_PART.fill(part=part)
        self.leave(line, text, why)
        self.other_model = self.other_model or f"{text}: {part}"
        self.ask(
            "model",
            (
                f"the source's model has {part}, which the models here do not support: the run "
                "file's model is dense"
            ),
        )

    def ask_for_tokenizer(self, path: str, line: int, source: str) -> None:
        """Adopt the tokenizer file if it is given as a full path.

        Otherwise ask for the file, with a placeholder.
        """
        word = Word(path, line)
        file = path if path.endswith((".json", ".model")) else f"{path.rstrip('/')}/tokenizer.json"
        if path.startswith("/") and word.known:
            self.take("data.tokenizer", file, line, source)
            return
        self.take("data.tokenizer", TOKENIZER_MARK, line, source)
        named = f" (the source names {word.shown})" if path else ""
        self.ask(
            "data.tokenizer",
            f"the tokenizer's file, tokenizer.json or a SentencePiece model{named}",
        )

    def for_site(self, section: str, name: str, value: Any) -> None:
        """Record a value for the text that a person can paste into the site file."""
        self.site_values[section, name] = value

    def does(self, line: int, text: str, why: str) -> None:
        """Record a setting that the runbook handles by itself."""
        self.automatic.append(Remark(line, text, why))

    def value(self, key: str, default: Any = None) -> Any:
        """Return an adopted value."""
        return self.carried[key].value if key in self.carried else default

    def number(self, key: str, default: int = 0) -> int:
        """Return an adopted whole number."""
        value = self.value(key, default)
        return value if isinstance(value, int) else default

    def read(
        self,
        key: str,
        word: Word,
        source: str,
        read: Callable[[str], Any],
        *,
        over: bool = True,
    ) -> None:
        """Adopt a word as a value.

        Report the word and the reason if the value is unknown or has the wrong type. The program
        uses the last value given for an option, so a wrong last value is not replaced with an
        earlier one.
        """
        text = f"{source} {word.shown}"
        if over and key in self.carried and self.carried[key].source == source:
            self.drop(key)
        if not word.known:
            self.leave(word.line, text, f"its value is known only while the script runs: set {key}")
            return
        try:
            value = read(word.text.strip())
        except (ValueError, KeyError, OverflowError):
            self.leave(word.line, text, f"{word.shown!r} is not a value of {key}")
            return
        if not accepts(key, value):
            self.leave(word.line, text, f"{word.shown!r} is not a value of {key}")
            return
        self.take(key, value, word.line, source, over=over)
