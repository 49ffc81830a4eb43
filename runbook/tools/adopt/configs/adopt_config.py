"""Turns a configuration for another program into a run file, with questions for unknown values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema.keys import accepts
from runbook.params.secrets import mask
from runbook.tools.adopt.adoption import Adoption, complete_from_config, rewritten
from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.megatron_bridge import MEGATRON_BRIDGE
from runbook.tools.adopt.configs.nemo_recipe import NEMO_2
from runbook.tools.adopt.configs.program_config import NamedText, ProgramConfig
from runbook.tools.adopt.configs.recipes import LLAMA
from runbook.tools.adopt.configs.rows import ROTARY_SHARE, CarriedKey, DroppedKey
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.program_arguments import ModelKind
from runbook.tools.adopt.proof import same_value
from runbook.tools.adopt.sandbox_trace import LineNumbers
from runbook.tools.adopt.script import Script

_LARGEST_SIZES = {
    "parallel.tensor": 10_000,
    "parallel.pipeline": 10_000,
    "parallel.context": 10_000,
    "parallel.virtual_pipeline": 10_000,
    "training.shape.layers": 10_000,
    "gas": 10**9,
    "jobs.training.devices_per_node": 1000,
    "jobs.training.nodes": 100_000,
}
"""Upper limits on sizes.

Planning loops over ranks and layers, so larger sizes would take hours.
"""
_UNKNOWN_SHARE = 0.5
_ENOUGH_KEYS = 20
"""The share of unknown keys is checked if a file has at least this many keys.

Such a file is taken to be for another program if more than `_UNKNOWN_SHARE` of its keys are
unknown.
"""
_SPELLED_TWICE = (
    "jobs.training.nodes",
    "jobs.training.devices_per_node",
    "training.global_batch",
    "training.micro_batch",
    "training.sequence_length",
    "parallel.tensor",
    "parallel.pipeline",
    "parallel.context",
)
"""Keys that a configuration may set under two names, whose values must then agree."""
_NO_VALUE = (ValueError, KeyError, TypeError, IndexError, OverflowError)
"""Exceptions that a conversion raises if our key has no equivalent value."""


def adopt_config(
    config: ProgramConfig, files: Sequence[NamedText], name: str, project: Path
) -> Adoption:
    """Turn a configuration into a run file for our own trainer."""
    _refuse_unknown_program(config, files[0][0])
    site = read_site("slurm", project)[0]
    findings = Findings(site)
    kind = _kind_of(config)
    values = config.with_defaults

    _take_values(config, values, findings, kind)
    _note_other_model(config, findings)
    _ask_for_unknown(config, findings)
    config.format.finish(values, findings, kind)
    _refuse_impossible_sizes(findings)
    findings.vocabulary = int(kind.pop("vocabulary", 0)) or findings.vocabulary
    findings.take("training.framework", "runbook", 0, f"in place of {config.format.program}")
    _drop_what_counts_for_nothing(findings)
    _leave_offload(findings)

    catalogue = read_models(project)
    models = {model: catalogue.get(model) for model in catalogue.names}
    complete_from_config(findings, models, kind)
    adopted = Adoption(
        name,
        "",
        config.format.program,
        "",
        _script_of(config, files),
        findings,
        (),
        {},
        source=" + ".join(file for file, _ in files),
    )
    return rewritten(adopted)


def our_values(row: CarriedKey, value: ConfigValue) -> dict[str, Any]:
    """Convert a value in the program configuration to values for our keys.

    Return no values if our keys cannot express it.
    """
    try:
        ours = row.read(value.value)
    except _NO_VALUE:
        return {}
    if len(row.keys) == 1:
        return {row.key: ours}
    return dict(zip(row.keys, ours, strict=True))


def _kind_of(config: ProgramConfig) -> ModelKind:
    """Return the model type that a configuration trains by default."""
    if config.model:
        return {**config.format.kind, **config.model.kind}
    # Most recipes that the table lacks train a Llama model
    if config.format in (NEMO_2, MEGATRON_BRIDGE):
        return {**config.format.kind, **LLAMA}
    return {**config.format.kind}


def _script_of(config: ProgramConfig, files: Sequence[NamedText]) -> Script:
    """Return the files as the script that comments in the run file refer to."""
    numbers = LineNumbers(dict(files))
    text = "".join(f"{line}\n" for line in numbers.lines)
    return Script(
        text=mask(text),
        directives=(),
        commands=(),
        settings=(),
        places=numbers.places,
        notes=config.notes,
    )


def _refuse_unknown_program(config: ProgramConfig, name: str) -> None:
    """Raise `ParamsError` if the keys belong to a different kind of file, such as a speech model's."""
    unknown = [value.name for value in config.values if config.format.row(value.name) is None]
    num_keys = len(config.values)
    if num_keys >= _ENOUGH_KEYS and len(unknown) > _UNKNOWN_SHARE * num_keys:
        raise ParamsError(
            AdoptMessage.MOSTLY_UNKNOWN_KEYS,
            name=name,
            program=config.format.program,
            number_of_unknown=len(unknown),
            num_keys=num_keys,
            unknown=", ".join(unknown[:3]),
        )


def _take_values(
    config: ProgramConfig,
    values: Mapping[str, ConfigValue],
    findings: Findings,
    kind: ModelKind,
) -> None:
    """Adopt every value that has a key: first the defaults, then values from the file in order."""
    for value in values.values():
        row = config.format.row(value.name)
        if not isinstance(row, CarriedKey) or row.key == "model" or not value.known:
            continue
        for key, ours in our_values(row, value).items():
            if key.startswith("model."):
                field = key.removeprefix("model.")
                kind[field] = ours
                findings.kind_lines[field] = value.line
            elif key == "gas" or accepts(key, ours):
                _ask_about_contradiction(config, key, ours, value, findings)
                source = value.name if value.line else f"{config.format.program}'s own default"
                findings.take(key, ours, value.line, source)


def _ask_about_contradiction(
    config: ProgramConfig, key: str, ours: Any, value: ConfigValue, findings: Findings
) -> None:
    """Ask which of two contradicting values applies.

    In a recipe, the later assignment replaces the earlier one.
    """
    if config.recipe or key not in _SPELLED_TWICE or not value.line:
        return
    earlier = findings.carried.get(key)
    if earlier is None or not earlier.line:
        return
    if not same_value(earlier.value, ours):
        question = (
            f"{earlier.source} is {earlier.value}, but {value.name} is {ours}. Which one applies?"
        )
        findings.ask(key, question)


def _note_other_model(config: ProgramConfig, findings: Findings) -> None:
    """Record each key that makes the model something other than a dense GPT."""
    for value in config.values:
        row = config.format.row(value.name)
        if not isinstance(row, DroppedKey) or not row.other_model:
            continue
        if row.other_model == ROTARY_SHARE and _is_without_rotary(config):
            continue
        if value.value is not None and value.value not in row.same_if:
            text = f"{value.name} {value.shown}"
            findings.trains_another_model(value.line, text, row.other_model)


def _is_without_rotary(config: ProgramConfig) -> bool:
    """Return whether a model uses learned positions instead of rotary positions."""
    key = "model.position_embedding"
    for value in config.values:
        row = config.format.row(value.name)
        if isinstance(row, CarriedKey) and our_values(row, value).get(key) == "learned":
            return True
    return False


def _ask_for_unknown(config: ProgramConfig, findings: Findings) -> None:
    """Ask for each value that is known only while the program runs."""
    for value in config.values:
        row = config.format.row(value.name)
        if isinstance(row, CarriedKey) and not value.known:
            question = f"{value.name} is {value.shown}, which is known only while the program runs"
            findings.ask(row.key, question)


def _refuse_impossible_sizes(findings: Findings) -> None:
    """Raise `ParamsError` if a size is larger than in any existing machine or model."""
    for key, largest in _LARGEST_SIZES.items():
        if findings.number(key) > largest:
            carried = findings.carried[key]
            where = f"line {carried.line}, {carried.source}"
            raise ParamsError(
                AdoptMessage.NUMBER_TOO_LARGE,
                key=key,
                carried=carried.value,
                where=where,
                most=largest,
            )


def _drop_what_counts_for_nothing(findings: Findings) -> None:
    """Drop values that a run file rejects because another value makes them meaningless."""
    if findings.value("training.recompute", "none") != "full":
        findings.drop("training.recompute_method", "training.recompute_num_layers")

    shares_states = findings.number("parallel.zero_stage", 1) > 0
    overlaps_gradients = findings.value("training.overlap_gradients")
    if not shares_states or not overlaps_gradients:
        findings.drop("training.overlap_weights")
    if not findings.value("parallel.sequence"):
        findings.drop("training.overlap_tensor")

    if findings.value("training.schedule") != "wsd":
        findings.drop("training.wsd_decay_style", "training.wsd_decay_fraction")


def _leave_offload(findings: Findings) -> None:
    """If the program offloads optimizer states, note that our trainer keeps them on the device."""
    if findings.value("training.offload"):
        carried = findings.carried["training.offload"]
        why = "our own trainer keeps the optimizer's states on the device"
        findings.leave(carried.line, carried.source, why)
        findings.drop("training.offload")
