"""A configuration of another program becomes a run file, with the account of every key.

The proof compares keys with keys: what the file says, and what the run has for it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema.keys import accepts
from runbook.params.secrets import mask
from runbook.tools.adopt.adoption import Adoption, complete_from_config, rewritten
from runbook.tools.adopt.configs.config_file import (
    ConfigValue,
    by_name,
    toml_values,
    yaml_values,
)
from runbook.tools.adopt.configs.gpt_neox import GPT_NEOX
from runbook.tools.adopt.configs.megatron_bridge import MEGATRON_BRIDGE
from runbook.tools.adopt.configs.nanotron import NANOTRON
from runbook.tools.adopt.configs.nemo_recipe import NEMO_2
from runbook.tools.adopt.configs.recipe_source import RecipeCall, default_factory, recipe_calls
from runbook.tools.adopt.configs.recipes import LLAMA, is_other_model, recipe_of
from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    PERFORMANCE,
    PROFILE,
    ConfigFormat,
    KeyRow,
)
from runbook.tools.adopt.configs.torchtitan import TORCHTITAN
from runbook.tools.adopt.configs.torchtitan_source import titan_values
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind
from runbook.tools.adopt.proof import OptionVerdict, ProvenOption, RenderedPhase, same_value
from runbook.tools.adopt.ranks import Rank
from runbook.tools.adopt.script import Script
from runbook.tools.adopt.trace import LineNumbers

_YAML_FORMATS = (NANOTRON, NEMO_2, MEGATRON_BRIDGE, GPT_NEOX)
_ENOUGH_SIGNS = 2


@dataclass(frozen=True)
class ProgramConfig:
    """The configuration of another program, read."""

    format: ConfigFormat
    values: tuple[ConfigValue, ...]
    """The file's own, in its order."""
    notes: tuple[str, ...] = ()

    @property
    def with_defaults(self) -> dict[str, ConfigValue]:
        """The last value of each key, and the program's own where the file has none."""
        recipe = recipe_of(self.recipe)
        layout = recipe.layout if recipe and self.format is NEMO_2 else {}
        defaults = {**self.format.defaults, **layout}
        own = [ConfigValue(name, value, 0) for name, value in defaults.items()]
        return by_name([*own, *(value for value in self.values if value.known)])

    @property
    def recipe(self) -> str:
        """The recipe that the file begins with; empty if it begins with none."""
        name = by_name(self.values).get("recipe")
        return str(name.value) if name else ""


def read_config(files: Sequence[tuple[str, str]], launch_number: int = 0) -> ProgramConfig | None:
    """Return the configuration that files are; None if they are something else, such as a script.

    Of several recipes in a Python file the file's default counts, or the one that `launch_number` counts.
    Raise `ParamsError` if a second file, or the number, would count for nothing.
    """
    endings = {Path(name).suffix for name, _ in files}
    if endings <= {".yaml", ".yml"} and endings:
        _refuse_launch_number(launch_number, files)
        return _read_yaml(files)
    name, text = files[0]
    if len(files) > 1 and endings <= {".toml", ".py", ".yaml", ".yml"}:
        others = ", ".join(other for other, _ in files[1:])
        raise ParamsError(
            f"{name} and {others}: only YAML files are one configuration together. Give one file."
        )
    if endings == {".toml"}:
        _refuse_launch_number(launch_number, files)
        values = toml_values(text, name)
        if not _signs(TORCHTITAN, values):
            raise ParamsError(f"{name} is TOML, and no configuration of torchtitan.")
        return ProgramConfig(TORCHTITAN, tuple(values))
    if endings == {".py"}:
        return _read_recipe(name, text, launch_number)
    return None


def _refuse_launch_number(launch_number: int, files: Sequence[tuple[str, str]]) -> None:
    """Raise `ParamsError` where --launch is given for a configuration, which is one training."""
    if launch_number:
        names = ", ".join(name for name, _ in files)
        raise ParamsError(
            f"--launch {launch_number}: {names} is the configuration of one training. Leave --launch out."
        )


def _read_yaml(files: Sequence[tuple[str, str]]) -> ProgramConfig:
    """Return the configuration of YAML files; a later file counts over an earlier one."""
    numbers = LineNumbers(dict(files))
    values: list[ConfigValue] = []
    for name, text in files:
        offset = numbers.first[name] - 1
        values += [replace(value, line=value.line + offset) for value in yaml_values(text, name)]
    best = max(_YAML_FORMATS, key=lambda config_format: _signs(config_format, values))
    if _signs(best, values) < _ENOUGH_SIGNS:
        raise ParamsError(
            f"{files[0][0]} is YAML, and no configuration that adopt reads: nanotron's, GPT-NeoX's, NeMo 2's "
            "or Megatron Bridge's."
        )
    if best is GPT_NEOX:  # which reads num-layers as num_layers, too
        values = [replace(value, name=value.name.replace("-", "_")) for value in values]
    _refuse_other_models(values, files[0][0])
    return ProgramConfig(best, tuple(values))


def _signs(config_format: ConfigFormat, values: Sequence[ConfigValue]) -> int:
    """Count the signs of a format that the keys of a file have."""
    names = {value.name for value in values}
    return sum(
        any(name.startswith(sign) if sign.endswith(".") else name == sign for name in names)
        for sign in config_format.signs
    )


def _read_recipe(name: str, text: str, launch_number: int) -> ProgramConfig | None:
    """Return the recipe of a Python file; None if it calls none."""
    calls = recipe_calls(text, name)
    if not calls:
        raise ParamsError(
            f"{name} calls no recipe of NeMo 2 or Megatron Bridge (`llama3_8b.pretrain_recipe(...)`), and returns no "
            "`Trainer.Config` of torchtitan. Give the job script that starts it, or a log that it wrote."
        )
    call = _chosen(calls, default_factory(text), launch_number, name)
    if call.is_torchtitan:
        if _FINE_TUNES.search(call.function):
            raise ParamsError(
                f"{name}: {call.function} (line {call.line}) is fine-tuning, which is not what a run does. "
                "--launch N chooses another configuration. No run file was written."
            )
        return ProgramConfig(TORCHTITAN, titan_values(call), _names_of(calls, call, name))
    if is_other_model(call.recipe):
        raise ParamsError(
            f"{name} trains with the recipe {call.recipe} (line {call.line}), which is no dense GPT. No run file was "
            "written."
        )
    values = (ConfigValue("recipe", call.recipe, call.line), *call.values)
    notes = [
        f"{name} calls {len(calls)} recipes; --launch N chooses another than {call.recipe} in line {call.line}"
    ]
    config_format = MEGATRON_BRIDGE if call.is_bridge else NEMO_2
    return ProgramConfig(config_format, values, tuple(notes if len(calls) > 1 else ()))


_FINE_TUNES = re.compile(r"(?:^|_)(?:sft|lora|dpo|grpo)(?:_|$)")


def _names_of(calls: Sequence[RecipeCall], call: RecipeCall, name: str) -> tuple[str, ...]:
    """Return a note with the configurations of a file, numbered; none where it has one."""
    if len(calls) == 1:
        return ()
    names = ", ".join(f"{number} {each.function}" for number, each in enumerate(calls, 1))
    return (
        f"{name} has {len(calls)} configurations; {call.function} is read, --launch N chooses: {names}",
    )


def _chosen(calls: Sequence[RecipeCall], factory: str, launch_number: int, name: str) -> RecipeCall:
    """Return the recipe's call that becomes the run file."""
    if launch_number > len(calls):
        raise ParamsError(f"--launch {launch_number}: {name} calls {len(calls)} recipes.")
    if launch_number:
        return calls[launch_number - 1]
    of_factory = [call for call in calls if call.function == factory]
    return (of_factory or calls)[-1]


def adopt_config(
    config: ProgramConfig, files: Sequence[tuple[str, str]], name: str, project: Path
) -> Adoption:
    """Turn a configuration into a run file for our own trainer."""
    site = read_site("slurm", project)[0]
    catalogue = read_models(project)
    models = {model: catalogue.get(model) for model in catalogue.names}
    findings = Findings(site)
    recipe = recipe_of(config.recipe)
    kind: ModelKind = {
        **config.format.kind,
        **(recipe.kind if recipe else _kind_of_unknown(config)),
    }
    values = config.with_defaults
    _refuse_unknown_program(config, files[0][0])
    _take_values(config, values, findings, kind)
    _note_other_model(config, findings)
    _ask_for_unknown(config, findings)
    config.format.finish(values, findings, kind)
    _refuse_impossible_sizes(findings)
    findings.vocabulary = int(kind.pop("vocabulary", 0)) or findings.vocabulary
    findings.take("training.framework", "runbook", 0, f"in place of {config.format.program}")
    _drop_defaults_of_other_layouts(findings)
    complete_from_config(findings, models, kind)
    numbers = LineNumbers(dict(files))
    script = Script(
        text=mask("".join(f"{line}\n" for line in numbers.lines)),
        directives=(),
        commands=(),
        settings=(),
        places=numbers.places,
        notes=config.notes,
    )
    adopted = Adoption(
        name,
        "",
        config.format.program,
        "",
        script,
        findings,
        (),
        {},
        source=" + ".join(file for file, _ in files),
    )
    return rewritten(adopted)


_MOST_UNKNOWN = 0.5
_ENOUGH_KEYS = 20
"""A share of unknown keys beyond the first, in a file of so many, makes it another program's."""


def _refuse_unknown_program(config: ProgramConfig, name: str) -> None:
    """Raise `ParamsError` where most keys of a file are none of the program's, such as those of a speech model."""
    unknown = [value.name for value in config.values if config.format.row(value.name) is None]
    num_keys = len(config.values)
    if num_keys >= _ENOUGH_KEYS and len(unknown) > _MOST_UNKNOWN * num_keys:
        raise ParamsError(
            f"{name} looks like {config.format.program}'s, but {len(unknown)} of its {num_keys} keys are unknown here "
            f"({', '.join(unknown[:3])}, ...): it configures something else than the pre-training of a GPT. "
            "No run file was written."
        )


def _note_other_model(config: ProgramConfig, findings: Findings) -> None:
    """Note each key that makes the model another one than a dense GPT."""
    for value in config.values:
        row = config.format.row(value.name)
        is_off = row is None or not row.other_model or value.value is None or value.value in row.off
        if row and not is_off:
            findings.trains_another_model(
                value.line, f"{value.name} {value.shown}", row.other_model
            )


_MOST = {
    "parallel.tensor": 10_000,
    "parallel.pipeline": 10_000,
    "parallel.context": 10_000,
    "parallel.virtual_pipeline": 10_000,
    "training.shape.layers": 10_000,
    "gas": 10**9,
    "jobs.training.devices_per_node": 1000,
    "jobs.training.nodes": 100_000,
}
"""Sizes beyond any machine and model. The plan counts through ranks and layers, which would take hours."""


def _refuse_impossible_sizes(findings: Findings) -> None:
    """Raise `ParamsError` if a size is beyond any machine and model."""
    for key, most in _MOST.items():
        if findings.number(key) > most:
            carried = findings.carried[key]
            where = f"line {carried.line}, {carried.source}"
            raise ParamsError(
                f"{key} would be {carried.value} ({where}), and more than {most:,} are not possible."
            )


def _kind_of_unknown(config: ProgramConfig) -> ModelKind:
    """Return the kind that stands in for a recipe that the table has not: a Llama's, as most are."""
    return LLAMA if config.format in (NEMO_2, MEGATRON_BRIDGE) else {}


def _refuse_other_models(values: Sequence[ConfigValue], name: str) -> None:
    """Raise `ParamsError` if a configuration's model is no dense GPT: Mamba, RWKV, gMLP."""
    for value in values:
        is_other_config = value.name.endswith(".is_mamba_config") and value.value is True
        layers = json.dumps(value.value) if value.name == "attention_config" else ""
        other_layers = re.search(r"mamba|rwkv|gmlp|amlp", layers)
        if is_other_config or other_layers:
            kind = other_layers[0] if other_layers else "mamba"
            raise ParamsError(
                f"{name} trains a model of {kind} layers (line {value.line}), which is no GPT of attention layers. "
                "No run file was written."
            )


def _take_values(
    config: ProgramConfig,
    values: Mapping[str, ConfigValue],
    findings: Findings,
    kind: ModelKind,
) -> None:
    """Take every value that has a key: defaults first, then the file's own in the file's order."""
    for value in values.values():
        row = config.format.row(value.name)
        if row is None or row.key in ("", "model") or not value.known:
            continue
        for key, ours in _our_values(row, value):
            field = key.removeprefix("model.")
            if field != key:
                kind[field] = ours
                findings.kind_lines[field] = value.line
            elif key == "gas" or accepts(key, ours):
                _ask_about_contradiction(config, key, ours, value, findings)
                source = value.name if value.line else f"{config.format.program}'s own default"
                findings.take(key, ours, value.line, source)


_AGREE = (
    "jobs.training.nodes",
    "jobs.training.devices_per_node",
    "training.global_batch",
    "training.micro_batch",
    "training.sequence_length",
    "parallel.tensor",
    "parallel.pipeline",
    "parallel.context",
)
"""Keys whose two spellings in one configuration have to say the same."""


def _ask_about_contradiction(
    config: ProgramConfig, key: str, ours: Any, value: ConfigValue, findings: Findings
) -> None:
    """Ask which of two explicit values counts. A recipe's later assignment replaces the earlier one."""
    earlier = findings.carried.get(key)
    if config.recipe or key not in _AGREE or not value.line or not earlier or not earlier.line:
        return
    if not same_value(earlier.value, ours):
        question = f"{earlier.source} says {earlier.value}, {value.name} says {ours}: which counts?"
        findings.ask(key, question)


def _ask_for_unknown(config: ProgramConfig, findings: Findings) -> None:
    """Ask for each value that only the running program knows."""
    for value in config.values:
        row = config.format.row(value.name)
        if row and row.key and not value.known:
            question = f"{value.name} is {value.shown}, known only while the program runs"
            findings.ask(row.key.split()[0], question)


def _our_values(row: KeyRow, value: ConfigValue) -> list[tuple[str, Any]]:
    """Return the keys and values that a value of the program becomes.

    None where it is not a value of ours.
    """
    keys = row.key.split()
    try:
        ours = row.read(value.value)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return []
    if len(keys) > 1:
        return list(zip(keys, ours, strict=False)) if isinstance(ours, list) else []
    return [(keys[0], ours)]


def _drop_defaults_of_other_layouts(findings: Findings) -> None:
    """Drop what our run file refuses where the layout does not have it."""
    if findings.value("training.recompute", "none") != "full":
        findings.drop("training.recompute_method", "training.recompute_num_layers")
    shares_states = findings.number("parallel.zero_stage", 1) > 0
    if findings.value("training.overlap_weights") and not (
        shares_states and findings.value("training.overlap_gradients")
    ):
        findings.drop("training.overlap_weights")
    if findings.value("training.schedule") != "wsd":
        findings.drop("training.wsd_decay_style", "training.wsd_decay_fraction")
    if findings.value("training.offload"):
        carried = findings.carried["training.offload"]
        why = "our own trainer keeps the optimizer's states on the device"
        findings.leave(carried.line, carried.source, why)
        findings.drop("training.offload")
    if findings.value("training.overlap_tensor") and not findings.value("parallel.sequence"):
        findings.drop("training.overlap_tensor")


def prove_config(
    config: ProgramConfig, findings: Findings, rendered: RenderedPhase | None
) -> list[ProvenOption]:
    """Compare the keys of a configuration with those of the run file."""
    last = {value.name: value for value in config.values}
    rows = [
        _proven(value, config.format.row(value.name), last, findings, rendered)
        for value in config.values
    ]
    names = {value.name for value in config.values}
    rows += _added(names, findings)
    return sorted(rows, key=lambda row: (list(OptionVerdict).index(row.verdict), row.line))


def _proven(
    value: ConfigValue,
    row: KeyRow | None,
    last: Mapping[str, ConfigValue],
    findings: Findings,
    rendered: RenderedPhase | None,
) -> ProvenOption:
    """Return what became of a key."""
    if row is None:
        return ProvenOption(value.name, value.shown, "", OptionVerdict.UNACCOUNTED, "", value.line)
    rank = _rank(row)
    if last[value.name] is not value:
        why = "given again in a later line, which counts"
        return ProvenOption(
            value.name, value.shown, "", OptionVerdict.DROPPED, why, value.line, rank
        )
    if row.key:
        verdict, text, why = _keyed_verdict(value, row, findings, rendered)
    elif value.value in row.off or value.value is None:
        verdict, text, why = OptionVerdict.SAME, "", ""
    else:
        verdict, text, why = OptionVerdict.DROPPED, "", row.why
    return ProvenOption(value.name, value.shown, text, verdict, why, value.line, rank)


def _keyed_verdict(
    value: ConfigValue, row: KeyRow, findings: Findings, rendered: RenderedPhase | None
) -> tuple[OptionVerdict, str, str]:
    """Return what became of a key that has one of ours: its verdict, our value, and why it differs."""
    if row.key == "model":
        return _model_verdict(findings)
    keys = row.key.split()
    actual = [_actual(key, findings, rendered) for key in keys]
    text = ", ".join(f"{key}: {item}" for key, item in zip(keys, actual, strict=True))
    if not value.known:
        return OptionVerdict.DROPPED, text, f"known only while the program runs: set {row.key}"
    wanted = [ours for _, ours in _our_values(row, value)]
    is_same = bool(wanted) and all(map(same_value, wanted, actual))
    if is_same:
        return OptionVerdict.SAME, text, ""
    if value.value is None and not wanted:
        return OptionVerdict.CHANGED, text, f"null: the program's own choice there, {text} here"
    why = row.why or _why_otherwise(value, keys, findings)
    if not wanted:
        why = why or f"{value.shown} is no value of {row.key}"
    verdict = OptionVerdict.CHANGED if why else OptionVerdict.UNACCOUNTED
    return verdict, text, why


def _model_verdict(findings: Findings) -> tuple[OptionVerdict, str, str]:
    """Return what became of a key that names the model: changed where the catalogue does not have it."""
    text = f"model: {findings.value('model')}"
    question = findings.questions.get("model", "")
    verdict = OptionVerdict.CHANGED if question else OptionVerdict.SAME
    return verdict, text, question


def _actual(key: str, findings: Findings, rendered: RenderedPhase | None) -> Any:
    """Return the run's value of a key."""
    if rendered is None or key == "gas":
        return findings.value(key, "")
    if key == "training.sequence_length":
        return rendered.phase.model.sequence_length
    if key.startswith("training.shape."):
        return getattr(rendered.phase.model, key.rpartition(".")[2])
    if key.startswith("model."):
        return getattr(rendered.settings.model, key.removeprefix("model."))
    if key == "jobs.training.devices_per_node":
        return findings.devices_per_node
    return rendered.settings.value(key)


def _why_otherwise(value: ConfigValue, keys: Sequence[str], findings: Findings) -> str:
    """Return why the run has another value than the file; empty if nothing says so."""
    for key in keys:
        carried = findings.carried.get(key)
        if carried and carried.source != value.name:
            return carried.source
        if key in findings.questions:
            return findings.questions[key]
        field = key.removeprefix("model.")
        for remark in findings.leftovers:
            if remark.text.startswith((f"the model's {field}=", value.name)):
                return remark.why
    return ""


def _added(names: set[str], findings: Findings) -> Iterator[ProvenOption]:
    """Yield a row for each value of the run file that no key of the configuration says."""
    for carried in findings.carried.values():
        if carried.source in names or carried.key in ("site", "training.framework"):
            continue
        rank = Rank.SITE if carried.key.startswith("jobs.") else Rank.TRAINING
        shown = str(carried.value)
        yield ProvenOption(carried.key, "", shown, OptionVerdict.ADDED, carried.source, 0, rank)


def _rank(row: KeyRow) -> Rank:
    """Return how much a key matters: by its reason, or by our key."""
    if row.why in (LOGGING, PROFILE) or row.key == "training.log_interval":
        return Rank.LOGGING
    is_of_site = row.key.startswith(("jobs.", "training.save", "training.keep", "training.async"))
    if is_of_site or row.why in (PERFORMANCE, FOLDERS) or "class" in row.why:
        return Rank.SITE
    return Rank.TRAINING


def differences(config: ProgramConfig) -> list[dict[str, object]]:
    """Return a row for each thing that differs because our trainer is another program."""
    return [
        {"what": item.topic, config.format.program: item.theirs, "here": item.ours}
        for item in config.format.differences
    ]
