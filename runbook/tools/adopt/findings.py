"""What was found in a script: values for the run file, what is left over, what the runbook does by itself, errors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runbook.params.schema.keys import accepts
from runbook.params.schema.run_file import SHAPE_FIELDS
from runbook.params.schema.site import Site
from runbook.tools.adopt.script import Word

TOKENIZER_MARK = "GIVE_DATA_TOKENIZER"
"""Stands for a tokenizer's file that only the user can name."""


@dataclass(frozen=True)
class CarriedValue:
    """A value of the run file, and where it comes from."""

    key: str
    value: Any
    line: int
    """0: from no line of the script."""
    source: str
    """The option or variable, or why there is a value without one."""


@dataclass(frozen=True)
class Remark:
    """Something that the run file has no place for."""

    line: int
    text: str
    why: str


@dataclass(frozen=True)
class KnownError:
    """One of the documents' errors, in this script."""

    number: int
    line: int
    problem: str
    remedy: str


@dataclass
class Findings:
    """Everything that is reported of a script, in the order in which it was found."""

    site: Site
    """Where the run file's job runs."""
    carried: dict[str, CarriedValue] = field(default_factory=dict)
    leftovers: list[Remark] = field(default_factory=list)
    automatic: list[Remark] = field(default_factory=list)
    """What needs no key: the runbook does it by itself."""
    kind_lines: dict[str, int] = field(default_factory=dict)
    """Where the script says something of the model's kind, by the field of a model."""
    model_kind: dict[str, str | float] = field(default_factory=dict)
    """The kind of model that no entry of the catalogue has; empty if one has it."""
    questions: dict[str, str] = field(default_factory=dict)
    """What the source leaves open, by the key that answers it.

    The run file has a value that stands in.
    """
    tokenizer_kind: str = ""
    """The tokenizer that the source names: GPT2BPETokenizer, Llama2Tokenizer."""
    has_absent_document: bool = False
    """Whether the training gets a DeepSpeed configuration that is not at hand."""
    vocabulary: int = 0
    """Tokens of the model's vocabulary, where the source says so; 0 elsewhere."""
    other_model: str = ""
    """What makes the source's model another one than the run file's: 8 experts.

    Empty where nothing does.
    """
    unknown_model: str = ""
    """Why nothing says which model is trained: the run file's stands in.

    Empty where it is known.
    """
    absent_file: str = ""
    """The configuration that the training starts from, which is not at hand.

    Empty where there is none, or where the catalogue has its model.
    """
    site_values: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What the site's file may have, by its section there and its name."""

    @property
    def site_file(self) -> str:
        """The site's file, as it is named to people."""
        return f"params/sites/{self.site.site}.yaml"

    @property
    def devices_per_node(self) -> int:
        """Devices of a node that the run uses."""
        return self.number("jobs.training.devices_per_node") or self.site.hardware.devices_per_node

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of the model that were taken, by their names; 0 where none was."""
        sizes = {}
        for name in SHAPE_FIELDS:
            sizes[name] = self.number(f"training.shape.{name}")
        return sizes

    @property
    def model_parallel(self) -> int:
        """Devices that hold one copy of the model."""
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
        """A value; with `over` off, one that is there already stays."""
        if over or key not in self.carried:
            self.carried[key] = CarriedValue(key, value, line, source)

    def drop(self, *keys: str) -> None:
        """Take values out again."""
        for key in keys:
            self.carried.pop(key, None)

    def leave(self, line: int, text: str, why: str) -> None:
        """Something that is not carried over."""
        remark = Remark(line, text, why)
        if remark not in self.leftovers:
            self.leftovers.append(remark)

    def leave_to_site(
        self,
        line: int,
        text: str,
        section: str,
        why: str = "no key of the run file has it",
    ) -> None:
        """Something that the site's file may have in one of its sections."""
        self.leave(line, text, f"{why}: write it under {section} of {self.site_file}")

    def ask(self, key: str, question: str) -> None:
        """Leave a key open; the first question about it stays."""
        self.questions.setdefault(key, question)

    def trains_another_model(self, line: int, text: str, part: str) -> None:
        """Note a part of the source's model that no model here has: the run file trains another one."""
        why = (
            f"our models have no such part ({part}): the run file trains another model, a dense GPT"
        )
        self.leave(line, text, why)
        self.other_model = self.other_model or f"{text}: {part}"
        self.ask("model", f"the source's has {part}, and no model here: the run file's is dense")

    def ask_for_tokenizer(self, path: str, line: int, source: str) -> None:
        """Take the tokenizer's file where a full path names one.

        Else leave it open, with a mark in its place.
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
        """Note a value for the block that a person can paste into the site's file."""
        self.site_values[section, name] = value

    def does(self, line: int, text: str, why: str) -> None:
        """Something that the runbook does by itself."""
        self.automatic.append(Remark(line, text, why))

    def value(self, key: str, default: Any = None) -> Any:
        """A value that was taken."""
        return self.carried[key].value if key in self.carried else default

    def number(self, key: str, default: int = 0) -> int:
        """A whole number that was taken."""
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
        """Take a word as a value.

        One that is unknown or of another kind is left, with the reason.
        """
        text = f"{source} {word.shown}"
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
