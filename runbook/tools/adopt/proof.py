"""The proof of an adoption.

Every option of the script next to the option that the run file renders.

An option is the same, changed, dropped or added, each with its reason. One that is none of these is
unaccounted for, and a run file with such an option never passes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from runbook.core.errors import RunbookError
from runbook.frameworks import option_values, training_arguments
from runbook.frameworks.megatron import OPTIONS, deepspeed_file
from runbook.frameworks.nemo import READ
from runbook.frameworks.options import Option, three_shares
from runbook.params import Settings
from runbook.plan_file.schema import PhasePlan
from runbook.tools.adopt.findings import Findings, Remark
from runbook.tools.adopt.launches import Launch, framework_of
from runbook.tools.adopt.program_arguments import (
    DOCUMENT_KEYS,
    documents_of,
    options_of_site,
    pairs,
)
from runbook.tools.adopt.ranks import Rank, rank_of
from runbook.tools.adopt.script import Script, Word


class OptionVerdict(StrEnum):
    """What became of an option."""

    UNACCOUNTED = "unaccounted for"
    CHANGED = "changed"
    DROPPED = "dropped"
    ADDED = "added"
    SAME = "same"


@dataclass(frozen=True)
class ProvenOption:
    """One option of the two commands."""

    option: str
    """Its name, as the program spells it."""
    script: str
    """Its value in the script; empty for an option without one, and where the script lacks it."""
    rendered: str
    """Its value in the run file's command."""
    verdict: OptionVerdict
    why: str
    line: int
    """Of the script; 0 if the script lacks it."""
    known_rank: Rank | None = None
    """How much a key of another program's configuration matters; None for an option, whose name says it."""

    @property
    def rank(self) -> Rank:
        """How much it matters."""
        if self.known_rank:
            return self.known_rank
        return rank_of(self.option.lstrip("-").removeprefix("deepspeed_config "))


@dataclass(frozen=True)
class RenderedPhase:
    """The run file's own command, as far as it can be rendered."""

    settings: Settings
    phase: PhasePlan


def prove(
    launch: Launch, script: Script, findings: Findings, rendered: RenderedPhase | None
) -> list[ProvenOption]:
    """Compare the options of the script's training with those that the run file renders."""
    framework = framework_of([launch])
    proof = _Proof(framework, findings, rendered, script.places)
    rows = list(proof.rows(launch.arguments))
    if framework == "megatron-deepspeed":
        rows += proof.document_rows(script)
    return sorted(rows, key=lambda row: (list(OptionVerdict).index(row.verdict), row.line))


class _Proof:
    """What the comparison of two commands needs."""

    def __init__(
        self,
        framework: str,
        findings: Findings,
        rendered: RenderedPhase | None,
        places: Mapping[int, str],
    ) -> None:
        self.framework = framework
        self.findings = findings
        self.rendered = rendered
        self.places = places
        self.table: Mapping[str, Option] = READ if framework == "nemo" else OPTIONS
        self.values = _rendered_values(framework, rendered) if rendered else {}

    def rows(self, arguments: Sequence[Word]) -> Iterator[ProvenOption]:
        """Yield a row for each option of the script, and for each that is added."""
        given = list(_options(self.framework, arguments))
        last_lines = {name: position for position, (name, _, _) in enumerate(given)}
        for position, (name, word, values) in enumerate(given):
            if not name:
                yield self._loose_word(word)
            elif last_lines[name] != position:
                later = given[last_lines[name]][1]
                why = f"given again in {self.places[later.line]}, which counts"
                yield self._row(name, word, values, "", OptionVerdict.DROPPED, why)
            else:
                yield self._option(name, word, values)
                yield from self._extra_words(name, values)
        for name in self.values:
            if name not in last_lines:
                yield self._added(name, set(last_lines))

    def _row(
        self,
        name: str,
        word: Word,
        values: Sequence[Word],
        rendered: str,
        verdict: OptionVerdict,
        why: str,
    ) -> ProvenOption:
        text = " ".join(value.shown for value in values)
        return ProvenOption(name, text, rendered, verdict, why, word.line)

    def _loose_word(self, word: Word) -> ProvenOption:
        remark = self._remark_with(word.shown)
        verdict = OptionVerdict.DROPPED if remark else OptionVerdict.UNACCOUNTED
        why = remark.why if remark else ""
        return ProvenOption(f"word {word.shown}", "", "", verdict, why, word.line)

    def _extra_words(self, name: str, values: Sequence[Word]) -> Iterator[ProvenOption]:
        """Yield a row for each word after an option that takes fewer."""
        for value in values:
            remark = self._remark_with(value.shown)
            if remark and f"after --{name}," in remark.why:
                yield self._loose_word(value)

    def _option(self, name: str, word: Word, values: Sequence[Word]) -> ProvenOption:
        """Return what became of one option of the script."""
        rendered = self.values.get(name)
        if rendered is not None:
            shown = " ".join(rendered)
            if _is_equal(name, [value.text for value in values], rendered):
                return self._row(name, word, values, shown, OptionVerdict.SAME, "")
            why = self._reason(name, values) or _reason_of_zero(name, values)
            verdict = OptionVerdict.CHANGED if why else OptionVerdict.UNACCOUNTED
            return self._row(name, word, values, shown, verdict, why)
        by_key = self._by_key(name, word, values)
        if by_key:
            return by_key
        why = self._reason(name, values)
        verdict = OptionVerdict.DROPPED if why else OptionVerdict.UNACCOUNTED
        return self._row(name, word, values, "", verdict, why)

    def _by_key(self, name: str, word: Word, values: Sequence[Word]) -> ProvenOption | None:
        """Return what became of an option whose key says the same under another name, or as a default."""
        option = self.table.get(name)
        carried = self._carried_from(name)
        if option and option.key.startswith("model."):
            return self._model_property(option, name, word, values)
        if option and len(option.keys) == 1 and self._value_of(option.key) is not None:
            wanted = _wanted(option, values)
            actual = self._value_of(option.key)
            text = f"{option.key}: {actual}"
            if wanted is not None and same_value(wanted, actual):
                return self._row(name, word, values, text, OptionVerdict.SAME, "")
        if carried:
            return self._row(name, word, values, carried, OptionVerdict.SAME, "")
        return None

    def _model_property(
        self, option: Option, name: str, word: Word, values: Sequence[Word]
    ) -> ProvenOption | None:
        """Return what became of an option that names a property of the model."""
        field = option.key.removeprefix("model.")
        wanted = _wanted(option, values)
        if self.rendered is None:
            is_kept = not self._remark_starting(f"the model's {field}=") and wanted is not None
            verdict = OptionVerdict.SAME if is_kept else OptionVerdict.DROPPED
            return self._row(name, word, values, "", verdict, self._reason(name, values))
        actual = getattr(self.rendered.settings.model, field)
        text = f"model: {field} {actual}"
        if wanted is not None and same_value(wanted, actual):
            return self._row(name, word, values, text, OptionVerdict.SAME, "")
        why = self._reason(name, values) or f"model {self.rendered.settings.run.model} has it so"
        return self._row(name, word, values, text, OptionVerdict.CHANGED, why)

    def _value_of(self, key: str) -> Any:
        """Return the value of a key in the run; None if there is no such key."""
        if self.rendered is None:
            return self.findings.value(key)
        if key == "training.sequence_length":
            return self.rendered.phase.model.shape.sequence_length
        if key.startswith("training.shape."):  # a default of the model is a value too
            return getattr(self.rendered.phase.model.shape, key.rpartition(".")[2])
        try:
            return self.rendered.settings.value(key)
        except AttributeError:
            return None

    def _carried_from(self, name: str) -> str:
        """Return the key and value that an option became; empty if it became none."""
        for carried in self.findings.carried.values():
            if carried.source in (f"--{name}", name):
                return f"{carried.key}: {carried.value}"
        return ""

    def _reason(self, name: str, values: Sequence[Word]) -> str:
        """Return why an option is not as the script has it; empty if nothing says so."""
        option = self.table.get(name)
        if name in _FILES_OF_GPT2 and self._has_other_tokenizer():
            return f"it goes with {self.findings.tokenizer_kind}: data.tokenizer names the file"
        for start in self._starts_of_remarks(name, option):
            remark = self._remark_starting(start)
            if remark:
                return remark.why
        if option and option.ours:
            return option.ours
        if any(not value.known for value in values):
            return "its value is known only while the script runs"
        return self._source_of_key(name, option) or _REASONS.get(name, "")

    def _starts_of_remarks(self, name: str, option: Option | None) -> list[str]:
        """Return how the texts of remarks about an option begin, the most telling first."""
        starts = []
        if name == "vocab-size":
            starts.append("the model's vocabulary=")
        starts += [f"--{name}", f"{name}=", f"{name} "]
        if option and option.key.startswith("model."):
            starts.append(f"the model's {option.key.removeprefix('model.')}=")
        if name in ("data-path", "train-data-path"):
            starts.append("token files")
        return starts

    def _has_other_tokenizer(self) -> bool:
        """Return whether the source names a tokenizer that is not GPT-2's."""
        return self.findings.tokenizer_kind not in ("", "GPT2BPETokenizer")

    def _source_of_key(self, name: str, option: Option | None) -> str:
        """Return where the value of an option's key comes from instead; empty if from the option."""
        for key in option.keys if option else []:
            carried = self.findings.carried.get(key)
            if carried and carried.source not in (f"--{name}", name):
                return carried.source
        return ""

    def _remark_starting(self, start: str) -> Remark | None:
        """Return the remark whose text is this option, with its value or without."""
        for remark in (*self.findings.leftovers, *self.findings.automatic):
            follows = remark.text[len(start) : len(start) + 1]
            is_whole = start[-1] in "= " or start == "token files" or follows in ("", " ", "=")
            if remark.text.startswith(start) and is_whole:
                return remark
        return None

    def _remark_with(self, text: str) -> Remark | None:
        """Return the remark about a word that is no option."""
        return next((remark for remark in self.findings.leftovers if remark.text == text), None)

    def _added(self, name: str, given: set[str]) -> ProvenOption:
        """Return the row of an option that the script lacks, with the reason for it."""
        value = " ".join(self.values[name])
        return ProvenOption(
            name, "", value, OptionVerdict.ADDED, self._reason_to_add(name, given), 0
        )

    def _reason_to_add(self, name: str, given: set[str]) -> str:
        """Return why the run file's command has an option that the script lacks."""
        option = self.table.get(name)
        for key in option.keys if option else []:
            twins = [other for other in given if self.table.get(other, Option("")).key == key]
            if twins:
                return f"instead of {', '.join(twins)}"
            carried = self.findings.carried.get(key)
            if carried:
                return carried.source
        if option and option.ours:
            return option.ours
        if name in options_of_site(self.findings, self.framework):
            return f"{self.findings.site_file} gives it"
        if option and option.key:
            return f"{option.key}, from the run file"
        return _REASONS.get(name, "always given")

    def document_rows(self, script: Script) -> Iterator[ProvenOption]:
        """Yield a row for each entry of the script's DeepSpeed configuration."""
        documents = documents_of(script.commands)
        if not documents:
            return
        given = _flat(documents[-1])
        rendered = self._rendered_document()
        for name, value in given.items():
            matches = script.matching(rf'"{name.rpartition(".")[2]}"')
            line = matches[0][0] if matches else 0
            actual = rendered.get(name)
            yield ProvenOption(
                f"deepspeed_config {name}",
                json.dumps(value),
                "" if actual is None else json.dumps(actual),
                *self._document_verdict(name, value, actual),
                line,
            )

    def _rendered_document(self) -> dict[str, object]:
        """Return the entries of the DeepSpeed configuration that the run file renders."""
        if self.rendered is None or "megatron-deepspeed" not in self.findings.site.frameworks:
            return {}
        return _flat(json.loads(deepspeed_file(self.rendered.settings, self.rendered.phase)))

    def _document_verdict(self, name: str, value: Any, actual: Any) -> tuple[OptionVerdict, str]:
        """Return what became of an entry of DeepSpeed's configuration, and why."""
        if actual is not None and same_value(value, actual):
            return OptionVerdict.SAME, ""
        verdict = OptionVerdict.DROPPED if actual is None else OptionVerdict.CHANGED
        if value is None:
            return verdict, "its value is known only while the script runs"
        section, _, leaf = name.partition(".")
        for carried in self.findings.carried.values():
            if carried.source in (f"DeepSpeed's {leaf}", f"DeepSpeed's {section}"):
                is_same = same_value(carried.value, value)
                return (
                    (OptionVerdict.SAME, f"{carried.key}") if is_same else (verdict, carried.source)
                )
        chosen = self.findings.carried.get(DOCUMENT_KEYS.get(name, ""))
        if chosen:  # the training's option counts, or a number that the devices divide
            return verdict, chosen.source
        for remark in (*self.findings.leftovers, *self.findings.automatic):
            is_section = remark.text == f"DeepSpeed's {section}"
            if is_section or remark.text.startswith(f"DeepSpeed's {section} "):
                return verdict, remark.why
            if leaf and remark.text.startswith(f"DeepSpeed's {section}: ") and leaf in remark.text:
                return verdict, remark.why
        if section in _OWN_DOCUMENT_SECTIONS:
            return verdict, "written from the run file's precision and ZeRO stage"
        return OptionVerdict.UNACCOUNTED, ""


_FILES_OF_GPT2 = ("vocab-file", "merge-file")
_OWN_DOCUMENT_SECTIONS = ("fp16", "bf16", "zero_optimization")
_WHOLE_STEPS = "rounded down to whole steps of the global batch"
_REASONS = {
    "train-samples": _WHOLE_STEPS,
    "train-tokens": _WHOLE_STEPS,
    "lr-decay-samples": _WHOLE_STEPS,
    "lr-decay-tokens": _WHOLE_STEPS,
    "lr-warmup-tokens": _WHOLE_STEPS,
    "lr-warmup-samples": _WHOLE_STEPS,
    "attention-backend": "the run file knows auto, flash and unfused; with auto the program chooses",
    "data-path": "02-data links the files of data.folder there",
    "attention-dropout": "training.dropout is one value for both dropouts",
    "tokenizer-type": "data.tokenizer names it",
    "exit-duration-in-mins": "the job saves and ends before its time limit",
    "split": "data.split, with all three shares",
    "trainer.devices": "nodes of the site's size are counted: jobs.training.nodes",
    "exp_manager.create_checkpoint_callback": "training.save_interval says how often",
    "eval-iters": "nothing is evaluated: training.eval_interval is 0",
}
"""Of options that no key of the run file has by itself."""


def _reason_of_zero(name: str, values: Sequence[Word]) -> str:
    """Return why a length of 0 is another number in the run file's command; empty for other options."""
    is_zero = [value.text for value in values] == ["0"]
    return _ZERO_LENGTHS.get(name, "") if is_zero else ""


_ZERO_LENGTHS = {
    "lr-decay-iters": "0 means the training's own length",
    "lr-decay-samples": "0 means the training's own length",
    "eval-interval": "never, which the program writes as the training's own length",
    "save-interval": "only at the end, which the program writes as the training's own length",
    "lr-warmup-iters": "another unit of the warm-up counts",
    "lr-warmup-samples": "another unit of the warm-up counts",
}


def _options(framework: str, arguments: Sequence[Word]) -> Iterator[tuple[str, Word, list[Word]]]:
    """Yield each option's name, its word and its values; a word that is no option has no name."""
    if framework != "nemo":
        for word, name, values in pairs(arguments):
            yield name, word, values
        return
    for word in arguments:
        name, equals, text = word.text.partition("=")
        name = name.lstrip("+~").removeprefix("training.")
        if name.startswith("--config") or not name or name == "training":
            continue  # the base file, which the model's own entry stands for
        yield (name, word, [Word(text, word.line)]) if equals else ("", word, [])


def _rendered_values(framework: str, rendered: RenderedPhase) -> dict[str, list[str]]:
    """Return the words after each option that the run file renders, by its name with dashes.

    Where the site has no checkout of the script's program, our own trainer reads plan.json: then the
    same values are written in the program's own options.
    """
    settings = rendered.settings
    try:
        if settings.run.training.framework != framework:
            return option_values(settings, rendered.phase, framework)
        words = [Word(text, 0) for text in training_arguments(settings, rendered.phase)]
    except RunbookError:
        return {}
    return {
        name: [value.text for value in values]
        for name, _, values in _options(framework, words)
        if name
    }


def _wanted(option: Option, values: Sequence[Word]) -> Any:
    """Return the value that an option asks for; None if it cannot be told."""
    if option.means is not None:
        return option.means
    if option.read is None or not values:
        return None
    try:
        return option.read(values[0].text.strip())
    except (ValueError, KeyError, OverflowError):
        return None


def _is_equal(name: str, script: Sequence[str], rendered: Sequence[str]) -> bool:
    """Return whether two commands give an option the same values."""
    if name in ("split", "model.data.splits_string"):
        try:
            return three_shares(" ".join(script)) == three_shares(" ".join(rendered))
        except ValueError:
            return False
    script_words = _plain_words(script)
    rendered_words = _plain_words(rendered)
    if len(script_words) != len(rendered_words):
        return False
    return all(same_value(*both) for both in zip(script_words, rendered_words, strict=True))


def _plain_words(words: Sequence[str]) -> list[str]:
    """Return words without the brackets and quotes of Hydra's lists."""
    text = " ".join(words).strip("[]'\"")
    return text.replace(",", " ").split()


def same_value(first: Any, second: Any) -> bool:
    """Return whether two values are the same number, or the same word."""
    try:
        return float(str(first).replace("_", "")) == float(str(second).replace("_", ""))
    except ValueError:
        return str(first).lower() == str(second).lower()


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the leaves of a JSON object by dotted name."""
    leaves: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= _flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def unaccounted(rows: Sequence[ProvenOption]) -> list[ProvenOption]:
    """Return the options that nothing accounts for."""
    return [row for row in rows if row.verdict is OptionVerdict.UNACCOUNTED]


def shown_names(rows: Sequence[ProvenOption], framework: str) -> list[ProvenOption]:
    """Return rows whose options are spelt as on the command line."""
    if framework == "nemo":
        return list(rows)
    return [
        replace(row, option=f"--{row.option}") if " " not in row.option else row for row in rows
    ]
