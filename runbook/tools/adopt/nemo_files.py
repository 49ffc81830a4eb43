"""Reads configuration files for NeMo, which Hydra applies before command-line overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.config_file import ConfigValue, yaml_values
from runbook.tools.adopt.script import Script, StartedProgram, Word, is_count, lines_of

_READS_HYDRA = re.compile(r"(^|/)megatron_gpt_pretraining\w*\.py$")
_INTERPOLATION = re.compile(r"\$\{(\.*)([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{multiply:(.*)\}")
"""Matches a product as written for the NeMo launcher."""
_HAS_NO_VALUE = (None, "???")
"""Values used to tell Hydra that the real value must be supplied elsewhere."""


def with_configuration_files(script: Script, texts: Mapping[str, str]) -> Script:
    """Return the script with values from configuration files as overrides in its NeMo launches.

    `texts` contains the available files. If a file is not available, the launch stays unchanged,
    and the file is recorded as absent.
    """
    commands: list[StartedProgram] = []
    absent: dict[str, None] = {}
    for command in script.commands:
        complete = _with_file(command, texts)
        commands.append(complete)
        name = _file_of(command)
        if name and complete is command:
            absent[name] = None
    return replace(script, commands=tuple(commands), absent_configurations=tuple(absent))


def _file_of(command: StartedProgram) -> str:
    """Return the configuration file that a command passes to a training run, or an empty string."""
    if _place_of_program(command.words) is None:
        return ""
    name, name_word = _option(command.words, "--config-name", "-cn")
    if name_word is None:
        return ""
    return Word(name, name_word.line).shown


def _with_file(command: StartedProgram, texts: Mapping[str, str]) -> StartedProgram:
    """Return a command with values from its configuration file right after the program name."""
    position = _place_of_program(command.words)
    if position is None:
        return command
    name, name_word = _option(command.words, "--config-name", "-cn")
    folder, _ = _option(command.words, "--config-path", "-cp")
    text = _file_called(name, folder, texts)
    if name_word is None or not text:
        return command
    try:
        values = yaml_values(text, name)
    except ParamsError:  # The file is not valid YAML, so its values stay unknown
        return command
    overrides = _overrides(command.words[position + 1 :])
    file_words = [
        Word(f"{value.name}={text}", name_word.line) for value, text in _resolved(values, overrides)
    ]
    command_words = (*command.words[: position + 1], *file_words, *command.words[position + 1 :])
    num_own = command.own
    if position <= num_own:  # Skip the words for srun, which starts the program
        num_own = min(num_own + len(file_words), len(command_words) - 1)
    return replace(command, words=command_words, own=num_own)


def _place_of_program(command_words: Sequence[Word]) -> int | None:
    """Return the index of the program that reads Hydra files, or None."""
    for position, word in enumerate(command_words):
        if _READS_HYDRA.search(word.text):
            return position
    return None


def _option(command_words: Sequence[Word], *names: str) -> tuple[str, Word | None]:
    """Return an option value, after = or in the next word, and the word with the option.

    `names` lists the spellings of the option.
    """
    for position, word in enumerate(command_words):
        option, equals, value = word.text.partition("=")
        if option not in names:
            continue
        if not equals and position + 1 < len(command_words):
            value = command_words[position + 1].text
        return value, word
    return "", None


_SIGNS = {"trainer.max_steps", "model.encoder_seq_length", "model.num_layers", "model.hidden_size"}
"""Keys that every configuration for training a GPT has."""
_SIGNS_OF_OTHERS = re.compile(
    r"model\.(peft|bert_|encoder\.|decoder\.|restore_from_path|data\.(train_ds|masked_lm|short_seq))"
    r".*|.*binary_head"
)
"""Keys in configurations that fine-tune a model, or train BERT or T5."""


def script_of_nemo_file(name: str, text: str) -> Script | None:
    """Return the training that a NeMo GPT configuration describes, or None for other files.

    The result starts megatron_gpt_pretraining.py with values from the file as overrides.
    """
    try:
        values = yaml_values(text, name)
    except ParamsError:
        return None
    names = {value.name for value in values}
    if not names >= _SIGNS or any(_SIGNS_OF_OTHERS.fullmatch(key) for key in names):
        return None
    command_words = [Word("python", 0), Word("megatron_gpt_pretraining.py", 0)]
    command_words.append(Word(f"--config-name={name}", 0))
    for value, content in _resolved(values, {}):
        command_words.append(Word(visible(mask(f"{value.name}={content}")), value.line))
    command = StartedProgram("python", tuple(command_words), len(command_words) - 1, 0, {})
    lines = [visible(line) for line in lines_of(mask(text))]
    return Script(
        text="".join(f"{line}\n" for line in lines),
        directives=(),
        commands=(command,),
        settings=(),
        places={number: f"line {number}" for number in range(len(lines) + 2)},
    )


def _file_called(name: str, folder: str, texts: Mapping[str, str]) -> str:
    """Return the text of a configuration file if it is available.

    If more than one file has this name, return the one in `folder`.
    """
    stem = name.removesuffix(".yaml")
    if not stem:
        return ""
    path_of_file = PurePosixPath(folder, f"{stem}.yaml")
    same_name = [path for path in texts if PurePosixPath(path).name == path_of_file.name]
    same_name.sort(key=lambda path: _common_tail(PurePosixPath(path), path_of_file), reverse=True)
    return texts[same_name[0]] if same_name else ""


def _common_tail(first: PurePosixPath, second: PurePosixPath) -> int:
    """Return how many trailing components two paths share."""
    count = 0
    for one_name, other_name in zip(reversed(first.parts), reversed(second.parts), strict=False):
        if one_name != other_name:
            break
        count += 1
    return count


def _overrides(command_words: Sequence[Word]) -> dict[str, object]:
    """Return the values on a command line, by name."""
    overrides: dict[str, object] = {}
    for word in command_words:
        name, equals, text = word.text.partition("=")
        if equals and not name.startswith("-"):
            overrides[name.lstrip("+~")] = text
    return overrides


def _resolved(
    values: Sequence[ConfigValue], overrides: Mapping[str, object]
) -> list[tuple[ConfigValue, str]]:
    """Return each configuration value with its text as an override.

    Apply the overrides first, then resolve references as Hydra does.
    """
    by_name: dict[str, object] = {value.name: value.value for value in values}
    by_name |= overrides
    resolved = []
    for value in values:
        content = _content(value.name, value.value, by_name)
        if content not in _HAS_NO_VALUE:
            resolved.append((value, _text(content)))
    return resolved


def _content(name: str, value: object, by_name: Mapping[str, object], depth: int = 0) -> object:
    """Return a value with its reference or product resolved.

    If it cannot be resolved, return the value as written, so that it is reported.
    """
    if not isinstance(value, str) or depth > _MOST_REFERENCES:
        return value
    factors = _factors(value)
    if factors:
        product = _product(name, factors, by_name, depth)
        return value if product is None else product
    reference = _INTERPOLATION.fullmatch(value)
    if reference is None:
        return value
    referred = _referred_name(name, reference[1], reference[2])
    if referred not in by_name:
        return value
    content = _content(referred, by_name[referred], by_name, depth + 1)
    return value if _is_open(content) else content


def _is_open(content: object) -> bool:
    """Return whether a value still contains an unresolved reference."""
    return isinstance(content, str) and "${" in content


def _product(
    name: str, factors: Sequence[str], by_name: Mapping[str, object], depth: int
) -> int | None:
    """Return the product of these factors, or None if one of them is not a count."""
    product = 1
    for factor in factors:
        number = str(_content(name, factor, by_name, depth + 1))
        if not is_count(number):
            return None
        product *= int(number)
    return product


def _factors(value: str) -> list[str]:
    """Return the factors in a product as written, or no factors if the value is not a product.

    >>> _factors("${multiply:4, ${multiply:2,${.hidden_size}}}")
    ['4', '${multiply:2,${.hidden_size}}']
    """
    match = _PRODUCT.fullmatch(value)
    if match is None:
        return []
    factors = [""]
    depth = 0
    for letter in match[1]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            factors.append("")
        else:
            factors[-1] += letter
    return [factor.strip() for factor in factors]


_MOST_REFERENCES = 8


def _referred_name(name: str, dots: str, path: str) -> str:
    """Return the name that a reference refers to. A reference with dots is relative.

    >>> _referred_name("model.data.seq_length", "", "model.encoder_seq_length")
    'model.encoder_seq_length'
    >>> _referred_name("model.data.seq_length", "..", "encoder_seq_length")
    'model.encoder_seq_length'
    """
    if not dots:
        return path.removeprefix("training.")  # The NeMo launcher puts the file into this section
    sections = name.split(".")[: -len(dots)]
    return ".".join((*sections, path))


def _text(value: object) -> str:
    """Return a value in the form of an override, with lists in brackets."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)
