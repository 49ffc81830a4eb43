"""Reads a configuration for another program, and recognizes the program."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.core.errors import ParamsError
from runbook.tools.adopt.configs.config_file import (
    ConfigValue,
    by_name,
    toml_values,
    yaml_values,
)
from runbook.tools.adopt.configs.config_format import ConfigFormat
from runbook.tools.adopt.configs.gpt_neox import GPT_NEOX
from runbook.tools.adopt.configs.megatron_bridge import MEGATRON_BRIDGE
from runbook.tools.adopt.configs.nanotron import NANOTRON
from runbook.tools.adopt.configs.nanotron_source import nanotron_values
from runbook.tools.adopt.configs.nemo_recipe import NEMO_2
from runbook.tools.adopt.configs.recipe_source import (
    RecipeCall,
    default_factory,
    parsed_file,
    recipe_calls,
    refused_if_unreadable,
)
from runbook.tools.adopt.configs.recipes import (
    ModelRecipe,
    is_other_model,
    recipe_of,
    recipe_of_class,
    recipe_of_weights,
    weights_of,
)
from runbook.tools.adopt.configs.torchtitan import TORCHTITAN
from runbook.tools.adopt.configs.torchtitan_source import titan_values
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.sandbox_trace import LineNumbers

_YAML_FORMATS = (NANOTRON, NEMO_2, MEGATRON_BRIDGE, GPT_NEOX)
_YAML_ENDINGS = {".yaml", ".yml"}
_CONFIG_ENDINGS = {".toml", ".py", *_YAML_ENDINGS}
_ENOUGH_SIGNS = 2
_FINE_TUNES = re.compile(r"(?:^|[_.])(?:sft|lora|peft|dpo|grpo|finetune)(?:[_.]|$)")
"""Substrings in names of functions used to configure fine-tuning."""
_OTHER_LAYERS = re.compile(r"rwkv|mamba|flux|retnet")
"""Substrings in names of torchtitan functions for models without attention."""

NamedText = tuple[str, str]
"""A file name and text."""


@dataclass(frozen=True)
class ProgramConfig:
    """A configuration for another program, after it was read."""

    format: ConfigFormat
    values: tuple[ConfigValue, ...]
    """The values, in file order."""
    notes: tuple[str, ...] = ()

    @property
    def with_defaults(self) -> dict[str, ConfigValue]:
        """The last value for each key, or the program default if the file does not set it."""
        defaults = {**self.format.defaults, **self._recipe_layout()}
        values = [ConfigValue(name, value, 0) for name, value in defaults.items()]
        values += [value for value in self.values if value.known]
        return by_name(values)

    @property
    def recipe(self) -> str:
        """The recipe that the file starts from, or an empty string."""
        name = by_name(self.values).get("recipe")
        return str(name.value) if name else ""

    @property
    def model(self) -> ModelRecipe | None:
        """The model of the configuration's class or recipe, or None if our tables have neither."""
        model_class = by_name(self.values).get("model.config._target_")
        if model_class:
            return recipe_of_class(str(model_class.value))
        provider = by_name(self.values).get("model._target_")
        if provider and "from_hf_pretrained" in str(provider.value):
            return recipe_of_weights(weights_of(str(provider.value)))
        return recipe_of(self.recipe)

    def _recipe_layout(self) -> Mapping[str, object]:
        """Return the values set by the recipe itself."""
        recipe = recipe_of(self.recipe)
        if recipe is None or self.format is not NEMO_2:
            return {}
        return recipe.layout


def read_config(files: Sequence[NamedText], launch_number: int = 0) -> ProgramConfig | None:
    """Return the configuration in these files, or None for other files, such as a script.

    If a Python file has more than one recipe, use its default, or the recipe with the number
    `launch_number`. Raise `ParamsError` if a second file or the number would have no effect.
    """
    endings = {Path(name).suffix for name, _ in files}
    if endings and endings <= _YAML_ENDINGS:
        _refuse_launch_number(launch_number, files)
        return _read_yaml(files)

    if len(files) > 1 and endings <= _CONFIG_ENDINGS:
        first, *others = [name for name, _ in files]
        raise ParamsError(AdoptMessage.TWO_CONFIGURATIONS, name=first, others=", ".join(others))
    name, text = files[0]
    if endings == {".toml"}:
        _refuse_launch_number(launch_number, files)
        return _read_toml(name, text)
    if endings == {".py"}:
        return _read_recipe(name, text, launch_number)
    return None


def _refuse_launch_number(launch_number: int, files: Sequence[NamedText]) -> None:
    """Raise `ParamsError` if --launch is given: a configuration has only one training run."""
    if launch_number:
        names = ", ".join(name for name, _ in files)
        raise ParamsError(AdoptMessage.ONE_TRAINING, launch_number=launch_number, names=names)


def _read_toml(name: str, text: str) -> ProgramConfig:
    """Return a torchtitan configuration. Raise `ParamsError` if the file is for another program."""
    values = toml_values(text, name)
    if not _count_signs(TORCHTITAN, values):
        raise ParamsError(AdoptMessage.NOT_TORCHTITAN, name=name)
    return ProgramConfig(TORCHTITAN, tuple(values))


def _read_yaml(files: Sequence[NamedText]) -> ProgramConfig:
    """Return the configuration in YAML files. Later files override earlier ones."""
    first_name = files[0][0]
    numbers = LineNumbers(dict(files))
    values: list[ConfigValue] = []
    for name, text in files:
        offset = numbers.first[name] - 1
        values += [replace(value, line=value.line + offset) for value in yaml_values(text, name)]

    _refuse_by_name(values, first_name)
    best = max(_YAML_FORMATS, key=lambda config_format: _count_signs(config_format, values))
    # The Lightning command line also gives classes in this way, but their models are unknown
    is_lightnings = any(value.name.endswith(".class_path") for value in values)
    if is_lightnings or _count_signs(best, values) < _ENOUGH_SIGNS:
        raise ParamsError(AdoptMessage.NOT_A_CONFIGURATION, files=first_name)
    # GPT-NeoX also accepts num-layers for num_layers
    if best is GPT_NEOX:
        values = [replace(value, name=value.name.replace("-", "_")) for value in values]
    _refuse_other_layers(values, first_name)
    _refuse_fine_tuning(values, first_name)
    return ProgramConfig(best, tuple(values))


_OTHER_PROGRAMS = (
    ("Kubernetes", ("apiVersion", "kind")),
    ("Primus", ("modules.",)),
    ("Primus", ("extends", "tokenizer_type")),
    ("LLM Foundry", ("max_seq_len", "max_duration", "train_loader.")),
    ("LitGPT", ("checkpoint_dir", "out_dir", "precision")),
    ("Modalities", ("settings.", "collate_fn.component_key")),
    ("LLaMA-Factory", ("stage", "model_name_or_path")),
    ("Hugging Face's Trainer", ("model_name_or_path", "per_device_train_batch_size")),
)
"""Programs whose YAML files adopt does not read, each with the keys that identify its files."""


def _refuse_by_name(values: Sequence[ConfigValue], name: str) -> None:
    """Raise `ParamsError` if YAML belongs to a program that adopt knows but does not read."""
    names = {value.name for value in values}
    for program, signs in _OTHER_PROGRAMS:
        if all(_has_sign(names, sign) for sign in signs):
            raise ParamsError(AdoptMessage.NOT_ITS_CONFIGURATION, files=name, program=program)


def _count_signs(config_format: ConfigFormat, values: Sequence[ConfigValue]) -> int:
    """Count the signs for this format among the keys in a file."""
    names = {value.name for value in values}
    return sum(_has_sign(names, sign) for sign in config_format.signs)


def _has_sign(names: Iterable[str], sign: str) -> bool:
    """Return whether the keys include a sign, which is a key, or a section with a trailing dot."""
    if sign.endswith("."):
        return any(name.startswith(sign) for name in names)
    return sign in names


def _refuse_other_layers(values: Sequence[ConfigValue], name: str) -> None:
    """Raise `ParamsError` if a configuration has layers without attention: Mamba, RWKV, gMLP."""
    for value in values:
        layers = _other_layers(value)
        if layers:
            raise ParamsError(
                AdoptMessage.LAYERS_WITHOUT_ATTENTION, name=name, kind=layers, line=value.line
            )


def _refuse_fine_tuning(values: Sequence[ConfigValue], name: str) -> None:
    """Raise `ParamsError` if a configuration starts from a recipe that fine-tunes a model."""
    for value in values:
        if value.name.endswith("recipe._target_") and _FINE_TUNES.search(value.shown):
            raise ParamsError(
                AdoptMessage.FILE_OF_FINE_TUNING, name=name, value=value.shown, line=value.line
            )


def _other_layers(value: ConfigValue) -> str:
    """Return the layer type that a value sets instead of attention, or an empty string."""
    if value.name.endswith(".is_mamba_config") and value.value is True:
        return "mamba"
    if value.name == "attention_config":
        kind = re.search(r"mamba|rwkv|gmlp|amlp", value.shown)
        return kind[0] if kind else ""
    return ""


def _read_recipe(name: str, text: str, launch_number: int) -> ProgramConfig:
    """Return the recipe in a Python file. Raise `ParamsError` if the file calls no recipe."""
    with refused_if_unreadable(name):
        values = nanotron_values(parsed_file(text, name), name)
    if values:
        _refuse_launch_number(launch_number, [(name, text)])
        _refuse_other_layers(values, name)
        return ProgramConfig(NANOTRON, values)
    calls = recipe_calls(text, name)
    if not calls and re.search(
        r"pretrain_recipe|_pretrain_config|_pretrain_common|Trainer\.Config", text
    ):
        raise ParamsError(AdoptMessage.RECIPES_OF_OTHER_FILES, name=name)
    if not calls:
        raise ParamsError(AdoptMessage.NO_RECIPE, name=name)
    call = _chosen(calls, default_factory(text), launch_number, name)
    if call.is_torchtitan:
        return _torchtitan_config(calls, call, name)
    return _recipe_config(calls, call, name)


def _chosen(calls: Sequence[RecipeCall], factory: str, launch_number: int, name: str) -> RecipeCall:
    """Return the recipe call that the run file is based on."""
    if launch_number > len(calls):
        raise ParamsError(
            AdoptMessage.RECIPE_OUT_OF_RANGE,
            launch_number=launch_number,
            name=name,
            number_of_calls=len(calls),
        )
    if launch_number:
        return calls[launch_number - 1]
    of_factory = [call for call in calls if call.function == factory]
    return (of_factory or calls)[-1]


def _torchtitan_config(calls: Sequence[RecipeCall], call: RecipeCall, name: str) -> ProgramConfig:
    """Return the torchtitan configuration that a function in a recipe returns.

    Raise `ParamsError` if it configures fine-tuning or a model without attention.
    """
    layers = _OTHER_LAYERS.search(call.function)
    if layers:
        raise ParamsError(
            AdoptMessage.LAYERS_WITHOUT_ATTENTION, name=name, kind=layers[0], line=call.line
        )
    if _FINE_TUNES.search(call.function):
        raise ParamsError(
            AdoptMessage.FINE_TUNING, name=name, function=call.function, line=call.line
        )

    notes: list[str] = []
    if len(calls) > 1:
        functions = [f"{number} {config.function}" for number, config in enumerate(calls, 1)]
        notes.append(
            f"{name} has {len(calls)} configurations; {call.function} is used. --launch N chooses "
            f"another: {', '.join(functions)}"
        )
    return ProgramConfig(TORCHTITAN, titan_values(call), tuple(notes))


def _recipe_config(calls: Sequence[RecipeCall], call: RecipeCall, name: str) -> ProgramConfig:
    """Return the configuration that a recipe for NeMo 2 or Megatron Bridge creates.

    Raise `ParamsError` if the model is not a dense GPT.
    """
    if is_other_model(call.recipe):
        raise ParamsError(
            AdoptMessage.NOT_A_DENSE_GPT, name=name, recipe=call.recipe, line=call.line
        )

    notes: list[str] = []
    if len(calls) > 1:
        notes.append(
            f"{name} calls {len(calls)} recipes; --launch N chooses another than {call.recipe} in "
            f"line {call.line}"
        )
    config_format = MEGATRON_BRIDGE if call.is_bridge else NEMO_2
    recipe = ConfigValue("recipe", call.recipe, call.line)
    return ProgramConfig(config_format, (recipe, *call.values), tuple(notes))
