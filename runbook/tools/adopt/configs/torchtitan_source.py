"""Reads torchtitan configurations in Python: functions that return a `Trainer.Config`.

Based on pytorch/torchtitan, 2026 (torchtitan/models/llama3/config_registry.py). Values in these
files get the same dotted keys as in the TOML files, so that both can share a table.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace

from runbook.tools.adopt.configs.config_file import ConfigValue
from runbook.tools.adopt.configs.recipe_source import RecipeCall
from runbook.tools.adopt.configs.torchtitan import OTHER_MODELS

_SECTIONS = {
    "validator.": "validation.",
    "profiler.": "profiling.",
}
"""Sections that have a different name in TOML."""
_KEYS = {
    "hf_assets_path": "model.hf_assets_path",
    "model_spec.converters": "model.converters",
    "training.max_context_length": "training.seq_len",
}
"""Keys that have a different name in TOML."""
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_CHECKPOINT_CLASS = "activation_checkpoint._target_"
_MODES = {"SelectiveAC": "selective", "FullAC": "full"}


def titan_values(call: RecipeCall) -> tuple[ConfigValue, ...]:
    """Return the values in a configuration under the keys that a TOML file would use."""
    name = _model_name(call.function)
    values = [ConfigValue("model.name", name, call.line)]
    for value in call.values:
        values.append(_as_in_toml(replace(value, name=value.name.removeprefix("pretrain_recipe."))))
    values += _local_batch(values)
    return tuple(values)


def _model_name(function: str) -> str:
    """Return the model in a function name: `llama3` for `llama3_8b`."""
    for other_model in OTHER_MODELS:
        if other_model in function:
            return other_model
    return function.lstrip("_").partition("_")[0]


def _as_in_toml(value: ConfigValue) -> ConfigValue:
    """Return a value under its name in TOML."""
    if value.name == "model_spec.args":  # For example model_registry("8B")
        return _literal(replace(value, name="model.flavor"))
    if value.name == "model_spec.converters":
        return replace(value, name="model.converters", value=value.shown.lower(), known=True)
    if value.name == _CHECKPOINT_CLASS:
        mode = _MODES.get(str(value.value).partition(".")[0])
        return replace(value, name="activation_checkpoint.mode", value=mode) if mode else value
    for section, toml_section in _SECTIONS.items():
        if value.name.startswith(section):
            return replace(value, name=toml_section + value.name.removeprefix(section))
    return replace(value, name=_KEYS.get(value.name, value.name))


def _literal(value: ConfigValue) -> ConfigValue:
    """Replace a string literal in source form with the string. Return other values unchanged."""
    try:
        text = ast.literal_eval(value.shown)
    except (ValueError, SyntaxError):
        return value
    return replace(value, value=text, known=True) if isinstance(text, str) else value


def _local_batch(values: list[ConfigValue]) -> Iterator[ConfigValue]:
    """Yield the local batch in sequences, if a configuration gives it in tokens."""
    numbers = {value.name: value for value in values if isinstance(value.value, int)}
    tokens = numbers.get(_TOKENS)
    length = numbers.get("training.seq_len")
    if tokens and length and length.value and tokens.value % length.value == 0:
        yield ConfigValue("training.local_batch_size", tokens.value // length.value, tokens.line)
