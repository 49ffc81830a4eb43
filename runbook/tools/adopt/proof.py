"""Proves that the run file written by adopt matches the script.

The proof compares every option in the script with the one rendered by the run file.

Each option is the same, changed, dropped or added, and the proof states the reason. An option
without a reason is unaccounted for. A run file with such an option never passes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from runbook.core.errors import RunbookError
from runbook.frameworks import honours, option_values, training_arguments
from runbook.frameworks.megatron import OPTIONS, deepspeed_file
from runbook.frameworks.nemo import READ
from runbook.frameworks.option_rows import Option, three_shares
from runbook.params import Settings
from runbook.plan_file.schema import PhasePlan
from runbook.tools.adopt.findings import CarriedValue, Findings, Remark
from runbook.tools.adopt.launches import Launch, framework_of
from runbook.tools.adopt.option_importance import Importance, importance_of
from runbook.tools.adopt.program_arguments import (
    DOCUMENT_KEYS,
    documents_of,
    options_of_site,
    pairs,
)
from runbook.tools.adopt.script import Script, Word


class OptionVerdict(StrEnum):
    """The result of comparing an option in the script with the run file."""

    UNACCOUNTED = "unaccounted for"
    CHANGED = "changed"
    DROPPED = "dropped"
    ADDED = "added"
    SAME = "same"


@dataclass(frozen=True)
class ProvenOption:
    """An option, with its values in the script and in the run file."""

    option: str
    """The option name, as the program spells it."""
    script: str
    """The option value in the script, or empty for a flag or an option that the script lacks."""
    rendered: str
    """The option value in the command from the run file."""
    verdict: OptionVerdict
    why: str
    line: int
    """The line in the script, or 0 if the script lacks the option."""
    known_importance: Importance | None = None
    """How important a key in a configuration for another program is.

    For an option, this is None, and the importance depends on the option name.
    """

    @property
    def importance(self) -> Importance:
        """Return how important the option is."""
        if self.known_importance:
            return self.known_importance
        return importance_of(self.option.lstrip("-").removeprefix("deepspeed_config "))


@dataclass(frozen=True)
class RenderedPhase:
    """The command rendered from the run file, if it can be rendered."""

    settings: Settings
    phase: PhasePlan


def prove(
    launch: Launch,
    script: Script,
    findings: Findings,
    rendered: RenderedPhase | None,
) -> list[ProvenOption]:
    """Compare the options in the script with the options rendered from the run file."""
    framework = framework_of([launch])
    proof = _Proof(framework, findings, rendered, script.places)
    rows = list(proof.rows(launch.arguments))
    rows += unlisted_words(launch.arguments, rows)
    rows += proof.launcher_rows(launch)
    if framework == "megatron-deepspeed":
        rows += proof.document_rows(script)
    return sorted(rows, key=lambda row: (list(OptionVerdict).index(row.verdict), row.line))


def unlisted_words(arguments: Sequence[Word], rows: Sequence[ProvenOption]) -> list[ProvenOption]:
    """Return a row for each word in a command that is missing from the proof.

    Words are compared without parsing options, to notice a parser that drops words.
    """
    num_shown: Counter[str] = Counter()
    for row in rows:
        for text in (row.option, row.script):
            num_shown.update(_letters_of_words(text))
    unlisted: list[ProvenOption] = []
    for word in arguments:
        letters = _letters_of_words(_PREFIX_OF_LAUNCHER.sub("", word.shown))
        if any(num_shown[part] < count for part, count in letters.items()):
            option = f"word {word.shown}"
            unlisted.append(ProvenOption(option, "", "", OptionVerdict.UNACCOUNTED, "", word.line))
        num_shown.subtract(letters)
    return unlisted


_PREFIX_OF_LAUNCHER = re.compile(r"^[+~]*training[.=]")
"""Prefix for training overrides in the NeMo launcher. Rows in the proof omit it."""


def _letters_of_words(text: str) -> Counter[str]:
    """Count the words in a string, separated by anything other than letters and digits."""
    return Counter(re.findall(r"[^\W_]+", text))


class _Proof:
    """Compares the command in the script with the one from the run file."""

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
        """Yield a row for each option in the script, and for each added option."""
        script_options = list(_options(self.framework, arguments))
        last_lines = {name: position for position, (name, _, _) in enumerate(script_options)}
        for position, (name, word, values) in enumerate(script_options):
            if not name:
                yield self._loose_word(word)
            elif name in _BASE_FILE:
                yield self._base_file(name, word, values)
            elif last_lines[name] != position:
                later = script_options[last_lines[name]][1]
                why = f"set again in {self.places[later.line]}, which applies"
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

    def _base_file(self, name: str, word: Word, values: Sequence[Word]) -> ProvenOption:
        """Return the row for the configuration file that a NeMo training run starts with."""
        rendered = f"model: {self.findings.value('model')}"
        if self.findings.absent_file:
            why = f"{self.findings.absent_file} was not given"
            return self._row(name, word, values, rendered, OptionVerdict.CHANGED, why)
        return self._row(name, word, values, rendered, OptionVerdict.SAME, "")

    def _loose_word(self, word: Word) -> ProvenOption:
        option = f"word {word.shown}"
        remark = self._remark_with(word.shown)
        if remark is None:
            return ProvenOption(option, "", "", OptionVerdict.UNACCOUNTED, "", word.line)
        return ProvenOption(option, "", "", OptionVerdict.DROPPED, remark.why, word.line)

    def _extra_words(self, name: str, values: Sequence[Word]) -> Iterator[ProvenOption]:
        """Yield a row for each superfluous word after an option that the run file lacks."""
        most = _most_values(name, self.table.get(name))
        if most is None or len(values) <= most or len(values) == len(self.values.get(name, [])):
            return
        for value in values[most:]:
            yield self._loose_word(value)

    def _option(self, name: str, word: Word, values: Sequence[Word]) -> ProvenOption:
        """Return the row for one option in the script."""
        rendered = self.values.get(name)
        if rendered is not None:
            rendered_text = " ".join(rendered)
            if _is_equal(name, [value.text for value in values], rendered):
                return self._row(name, word, values, rendered_text, OptionVerdict.SAME, "")
            why = self._reason(name, values) or _reason_of_zero(name, values)
            verdict = _accounted(OptionVerdict.CHANGED, why)
            return self._row(name, word, values, rendered_text, verdict, why)
        by_key = self._by_key(name, word, values)
        if by_key:
            return by_key
        why = self._reason(name, values)
        verdict = _accounted(OptionVerdict.DROPPED, why)
        return self._row(name, word, values, "", verdict, why)

    def _by_key(self, name: str, word: Word, values: Sequence[Word]) -> ProvenOption | None:
        """Return the row for an option that the run has under a different name or by default."""
        option = self.table.get(name)
        carried = self._carried_from(name)
        if option and option.key.startswith("model."):
            return self._model_property(option, name, word, values)
        if option and len(option.keys) == 1 and self._value_of(option.key) is not None:
            script_value = _wanted(option, values)
            actual = self._value_of(option.key)
            text = f"{option.key}: {actual}"
            if script_value is not None and same_value(script_value, actual):
                return self._same_by_key(option.key, name, word, values, text)
        if carried and same_value(self._value_of(carried.key), carried.value):
            text = f"{carried.key}: {carried.value}"
            return self._same_by_key(carried.key, name, word, values, text)
        return None

    def _same_by_key(
        self,
        key: str,
        name: str,
        word: Word,
        values: Sequence[Word],
        text: str,
    ) -> ProvenOption:
        """Return the row for an option whose key has the same value.

        The option counts as dropped if the program in the run has no option for the key.
        """
        if self.rendered is not None:
            framework = self.rendered.settings.run.training.framework
            if not honours(framework, key):
                why = f"{framework} has no option for {key}, which only our own trainer uses"
                return self._row(name, word, values, text, OptionVerdict.DROPPED, why)
        return self._row(name, word, values, text, OptionVerdict.SAME, "")

    def _model_property(
        self,
        option: Option,
        name: str,
        word: Word,
        values: Sequence[Word],
    ) -> ProvenOption | None:
        """Return the row for an option that sets a model property."""
        field = option.key.removeprefix("model.")
        script_value = _wanted(option, values)
        if self.rendered is None:
            verdict = OptionVerdict.DROPPED
            if script_value is not None and not self._remark_starting(f"the model's {field}="):
                verdict = OptionVerdict.SAME
            return self._row(name, word, values, "", verdict, self._reason(name, values))
        actual = getattr(self.rendered.settings.model, field)
        text = f"model: {field} {actual}"
        if script_value is not None and same_value(script_value, actual):
            return self._row(name, word, values, text, OptionVerdict.SAME, "")
        why = (
            self._reason(name, values)
            or f"model {self.rendered.settings.run.model} has this already"
        )
        return self._row(name, word, values, text, OptionVerdict.CHANGED, why)

    def _value_of(self, key: str) -> Any:
        """Return the value for a key in the run, or None if there is no such key."""
        if self.rendered is None:
            return self.findings.value(key)
        if key == "training.sequence_length":
            return self.rendered.phase.model.shape.sequence_length
        if key.startswith("training.shape."):  # The default for the model counts as the value
            return getattr(self.rendered.phase.model.shape, key.rpartition(".")[2])
        try:
            return self.rendered.settings.value(key)
        except AttributeError:
            return None

    def _carried_from(self, name: str) -> CarriedValue | None:
        """Return the run file value that was adopted from an option, or None."""
        for carried in self.findings.carried.values():
            if carried.source in (f"--{name}", name):
                return carried
        return None

    def _reason(self, name: str, values: Sequence[Word]) -> str:
        """Return why an option differs from the script, or '' if no reason is known."""
        option = self.table.get(name)
        if name in _FILES_OF_GPT2 and self._has_other_tokenizer():
            return f"it belongs to {self.findings.tokenizer_kind}: data.tokenizer names the file"
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
        """Return how remarks about an option may start, most specific first."""
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
        """Return whether the source names a tokenizer other than the one for GPT-2."""
        return self.findings.tokenizer_kind not in ("", "GPT2BPETokenizer")

    def _source_of_key(self, name: str, option: Option | None) -> str:
        """Return what else set the key for an option, or '' if the option itself did."""
        for key in _keys_of(option):
            carried = self.findings.carried.get(key)
            if carried and carried.source not in (f"--{name}", name):
                return carried.source
        return ""

    def _remark_starting(self, start: str) -> Remark | None:
        """Return the remark about an option, whose text starts with `start` as a whole word."""
        for remark in (*self.findings.leftovers, *self.findings.automatic):
            follows = remark.text[len(start) : len(start) + 1]
            is_whole = start[-1] in "= " or start == "token files" or follows in ("", " ", "=")
            if remark.text.startswith(start) and is_whole:
                return remark
        return None

    def _remark_with(self, text: str) -> Remark | None:
        """Return the remark about a word that is not an option."""
        return next((remark for remark in self.findings.leftovers if remark.text == text), None)

    def _added(self, name: str, names_in_script: set[str]) -> ProvenOption:
        """Return the row for an option that only the run file has, including the reason."""
        value = " ".join(self.values[name])
        return ProvenOption(
            name, "", value, OptionVerdict.ADDED, self._reason_to_add(name, names_in_script), 0
        )

    def _reason_to_add(self, name: str, names_in_script: set[str]) -> str:
        """Return why the command from the run file has an option that the script lacks."""
        option = self.table.get(name)
        for key in _keys_of(option):
            twins = self._options_of_key(key, names_in_script)
            if twins:
                return f"instead of {', '.join(twins)}"
            carried = self.findings.carried.get(key)
            if carried:
                return carried.source
        if option and option.ours:
            return option.ours
        if name in options_of_site(self.findings, self.framework):
            return f"{self.findings.site_file} sets it"
        if option and option.key:
            return f"{option.key}, from the run file"
        return _REASONS.get(name, "always passed")

    def _options_of_key(self, key: str, names: set[str]) -> list[str]:
        """Return the options among `names` that set the same key."""
        twins = []
        for name in names:
            option = self.table.get(name)
            if option and option.key == key:
                twins.append(name)
        return twins

    def launcher_rows(self, launch: Launch) -> Iterator[ProvenOption]:
        """Yield a row for each option given to launchers."""
        for program, program_words in launch.parts:
            for words in _groups(program_words):
                yield self._launcher_row(program, words)

    def _launcher_row(self, program: str, words: Sequence[Word]) -> ProvenOption:
        """Return the verdict on an option for a launcher or container, and the reason for it."""
        first = words[0]
        name = first.text.partition("=")[0].lstrip("-").replace("_", "-")
        text = " ".join(word.shown for word in words)
        carried = self._carried_from(name)
        rendered = ""
        why = _STARTS_RANKS.format(program=program)
        verdict = OptionVerdict.DROPPED
        if carried and carried.key.startswith("jobs."):
            rendered = f"{carried.key}: {carried.value}"
            verdict = OptionVerdict.SAME
            why = ""
        for remark in (*self.findings.leftovers, *self.findings.automatic):
            if remark.text.startswith(f"--{name} ") and verdict is OptionVerdict.DROPPED:
                why = remark.why
        option = f"{program} {text}"
        return ProvenOption(option, "", rendered, verdict, why, first.line, Importance.SITE)

    def document_rows(self, script: Script) -> Iterator[ProvenOption]:
        """Yield a row for each entry in the DeepSpeed configuration from the script."""
        documents = documents_of(script.commands)
        if not documents:
            return
        entries = _flat(documents[-1])
        rendered = self._rendered_document()
        for name, value in entries.items():
            actual = rendered.get(name)
            rendered_text = ""
            if actual is not None:
                rendered_text = json.dumps(actual)
            verdict, why = self._document_verdict(name, value, actual)
            yield ProvenOption(
                f"deepspeed_config {name}",
                json.dumps(value),
                rendered_text,
                verdict,
                why,
                script.first_line(rf'"{name.rpartition(".")[2]}"'),
            )

    def _rendered_document(self) -> dict[str, object]:
        """Return the entries in the DeepSpeed configuration rendered by the run file."""
        if self.rendered is None or "megatron-deepspeed" not in self.findings.site.frameworks:
            return {}
        return _flat(json.loads(deepspeed_file(self.rendered.settings, self.rendered.phase)))

    def _document_verdict(self, name: str, value: Any, actual: Any) -> tuple[OptionVerdict, str]:
        """Return the verdict on an entry in the DeepSpeed configuration, and the reason for it."""
        if actual is not None and same_value(value, actual):
            return OptionVerdict.SAME, ""
        section, _, leaf = name.partition(".")
        carried = self._carried_from_document(section, leaf)
        if value is not None and carried and same_value(carried.value, value):
            return OptionVerdict.SAME, carried.key
        why = self._why_not_in_document(name, value, carried)
        if not why:
            return OptionVerdict.UNACCOUNTED, ""
        if actual is None:
            return OptionVerdict.DROPPED, why
        return OptionVerdict.CHANGED, why

    def _carried_from_document(self, section: str, leaf: str) -> CarriedValue | None:
        """Return the value adopted from an entry in the DeepSpeed configuration.

        Return None if no value was adopted.
        """
        for carried in self.findings.carried.values():
            if carried.source in (f"DeepSpeed's {leaf}", f"DeepSpeed's {section}"):
                return carried
        return None

    def _why_not_in_document(self, name: str, value: Any, carried: CarriedValue | None) -> str:
        """Return why an entry in the DeepSpeed configuration differs, or ''."""
        if value is None:
            return "its value is known only while the script runs"
        if carried:
            return carried.source
        chosen = self.findings.carried.get(DOCUMENT_KEYS.get(name, ""))
        if chosen:  # An option overrides the value, or it was rounded to a multiple of the devices
            return chosen.source
        section, _, leaf = name.partition(".")
        for remark in (*self.findings.leftovers, *self.findings.automatic):
            if _is_about_entry(remark.text, section, leaf):
                return remark.why
        if section in _OWN_DOCUMENT_SECTIONS:
            return "generated from the run file's precision and ZeRO stage"
        return ""


def _most_values(name: str, option: Option | None) -> int | None:
    """Return how many words an option accepts, or None if that is unknown."""
    if name in _TAKE_ONE_WORD:
        return 1
    if option is None or option.name in _TAKE_A_LIST:
        return None
    if option.read:
        return len(option.keys)
    return 0 if option.means is not None else None


_TAKE_ONE_WORD = (
    "attention-dropout",
    "exit-duration-in-mins",
    "num-layers-per-virtual-pipeline-stage",
    "tokenizer-model",
    "tokenizer-name-or-path",
    "tokenizer-type",
    "vocab-size",
)
"""Options that accept one word, because they have their own parsers."""
_TAKE_A_LIST = ("model.optim.betas", "model.rampup_batch_size", "model.data.splits_string", "split")
"""Options that accept a list as one word or as multiple words."""


def _accounted(verdict: OptionVerdict, why: str) -> OptionVerdict:
    """Return the verdict if there is a reason. Otherwise the option is unaccounted for."""
    if why:
        return verdict
    return OptionVerdict.UNACCOUNTED


def _keys_of(option: Option | None) -> Sequence[str]:
    """Return the run file keys set by an option; empty for an unknown option."""
    if option is None:
        return ()
    return option.keys


def _is_about_entry(text: str, section: str, leaf: str) -> bool:
    """Return whether a remark is about an entry in the DeepSpeed configuration."""
    if text == f"DeepSpeed's {section}" or text.startswith(f"DeepSpeed's {section} "):
        return True
    return bool(leaf) and text.startswith(f"DeepSpeed's {section}: ") and leaf in text


def _groups(program_words: Sequence[Word]) -> Iterator[list[Word]]:
    """Yield each option for a launcher with the words after it."""
    group: list[Word] = []
    for word in program_words:
        if group and word.text.startswith("-"):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


_STARTS_RANKS = "an option of {program}: the site's launcher and the section jobs start the ranks"
_FILES_OF_GPT2 = ("vocab-file", "merge-file")
_OWN_DOCUMENT_SECTIONS = ("fp16", "bf16", "zero_optimization")
_WHOLE_STEPS = "rounded down to a whole number of global batches"
_REASONS = {
    "train-samples": _WHOLE_STEPS,
    "train-tokens": _WHOLE_STEPS,
    "lr-decay-samples": _WHOLE_STEPS,
    "lr-decay-tokens": _WHOLE_STEPS,
    "lr-warmup-tokens": _WHOLE_STEPS,
    "lr-warmup-samples": _WHOLE_STEPS,
    "attention-backend": "the run file has auto, flash and unfused; with auto the program chooses",
    "data-path": "02-data links the files of data.folder there",
    "attention-dropout": "training.dropout is one value for both dropouts",
    "tokenizer-type": "data.tokenizer names it",
    "exit-duration-in-mins": "the job saves and ends before its time limit",
    "split": "data.split, with all three shares",
    "trainer.devices": "counted in nodes of the site's size: jobs.training.nodes",
    "exp_manager.create_checkpoint_callback": "training.save_interval sets how often",
    "eval-iters": "there is no evaluation, because training.eval_interval is 0",
}
"""Reasons for options that do not correspond to a single key in the run file."""


def _reason_of_zero(name: str, values: Sequence[Word]) -> str:
    """Return why a length of 0 becomes a different number in the command from the run file.

    Return '' for other options.
    """
    if [value.text for value in values] != ["0"]:
        return ""
    return _ZERO_LENGTHS.get(name, "")


_ZERO_LENGTHS = {
    "lr-decay-iters": "0 means the length of the training run",
    "lr-decay-samples": "0 means the length of the training run",
    "eval-interval": "never; the program writes it as the length of the training run",
    "save-interval": "only at the end; the program writes it as the length of the training run",
    "lr-warmup-iters": "the warm-up is also given in another unit, which applies",
    "lr-warmup-samples": "the warm-up given in another unit applies",
}


_BASE_FILE = ("--config-name", "--config-path", "-cn", "-cp")
"""Options used in Hydra to name the configuration file for training."""


def _options(framework: str, arguments: Sequence[Word]) -> Iterator[tuple[str, Word, list[Word]]]:
    """Yield each option's name, word and values. A word that is not an option has an empty name."""
    if framework != "nemo":
        for word, name, values in pairs(arguments):
            yield name, word, values
        return
    file_option: Word | None = None
    for word in arguments:
        if file_option:
            yield file_option.text, file_option, [word]
            file_option = None
            continue
        name, equals, text = word.text.partition("=")
        if name in _BASE_FILE and not equals:
            file_option = word
            continue
        name = name.lstrip("+~").removeprefix("training.")
        if name == "training":  # An override for the NeMo launcher, such as training=gpt3/5b
            name = "--config-name"
        yield (name, word, [Word(text, word.line)]) if equals else ("", word, [])


def _rendered_values(framework: str, rendered: RenderedPhase) -> dict[str, list[str]]:
    """Return the option values rendered by the run file, by option name with dashes.

    If the site has no checkout of the program in the script, the run uses our own trainer, which
    reads plan.json. In that case, write the same values as options for the program in the script.
    """
    settings = rendered.settings
    try:
        if settings.run.training.framework != framework:
            return option_values(settings, rendered.phase, framework)
        command_words = [Word(text, 0) for text in training_arguments(settings, rendered.phase)]
    except RunbookError:
        return {}
    rendered_values = {}
    for name, _, values in _options(framework, command_words):
        if name:
            rendered_values[name] = [value.text for value in values]
    return rendered_values


def _wanted(option: Option, values: Sequence[Word]) -> Any:
    """Return the value set by an option, or None if it is unknown."""
    if option.means is not None:
        return option.means
    if option.read is None or not values:
        return None
    try:
        return option.read(values[0].text.strip())
    except (ValueError, KeyError, OverflowError):
        return None


def _is_equal(name: str, script: Sequence[str], rendered: Sequence[str]) -> bool:
    """Return whether an option has the same values in two commands."""
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


def _plain_words(texts: Sequence[str]) -> list[str]:
    """Return the words without the brackets and quotes used for lists in Hydra."""
    text = " ".join(texts).strip("[]'\"")
    return text.replace(",", " ").split()


def same_value(first: Any, second: Any) -> bool:
    """Return whether two values are the same number or the same word."""
    try:
        return float(str(first).replace("_", "")) == float(str(second).replace("_", ""))
    except ValueError:
        return str(first).lower() == str(second).lower()


def _flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the leaves in a JSON object by dotted name."""
    leaves: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= _flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def unaccounted(rows: Sequence[ProvenOption]) -> list[ProvenOption]:
    """Return the options unaccounted for."""
    return [row for row in rows if row.verdict is OptionVerdict.UNACCOUNTED]


def shown_names(rows: Sequence[ProvenOption], framework: str) -> list[ProvenOption]:
    """Return rows with their options spelled as on the command line."""
    if framework == "nemo":
        return list(rows)
    shown_rows = []
    for row in rows:
        if " " in row.option:  # This is a plain word, or an entry in the DeepSpeed configuration
            shown_rows.append(row)
        else:
            shown_rows.append(replace(row, option=f"--{row.option}"))
    return shown_rows
