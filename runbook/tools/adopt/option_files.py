"""Reads YAML files that list the options for Megatron instead of a command line.

These are test cases from Megatron-LM, files for its --yaml-cfg, and flat files with parser
arguments.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.params.secrets import mask
from runbook.tools.adopt.configs.config_file import ConfigValue, yaml_values
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.processes_and_logs import SET_BY_PROGRAM, script_of_arguments
from runbook.tools.adopt.sandbox_trace import LineNumbers
from runbook.tools.adopt.script import Script, Setting, StartedProgram, Word, lines_of, not_set

_OPTIONS = "MODEL_ARGS."
"""The section in a test case that contains the training options."""
_VARIABLES = "ENV_VARS."
_MORE_OPTIONS = re.compile(r"(MODEL_ARGS_\w+)\.")
"""Matches test case keys with options for a second or later training run."""
_PROGRAMS = {
    "bert": "pretrain_bert.py",
    "t5": "pretrain_t5.py",
    "hybrid": "pretrain_mamba.py",
    "mimo": "pretrain_vlm.py",
    "multimodal-llava": "pretrain_vlm.py",
}
"""The program that a test case runs, by folder. Tests in other folders use pretrain_gpt.py."""
_PRETRAINS = "pretraining"


def script_of_test_case(path: PurePath, text: str) -> Script | None:
    """Return the training in a test case from Megatron-LM, or None for other files.

    The test runner passes the section MODEL_ARGS to the program, which depends on the folder. Raise
    `ParamsError` if the test does not train, or uses reinforcement learning.
    """
    values = _values(path.name, text)
    options = [value for value in values if value.name.startswith(f"{_OPTIONS}--")]
    if not options:
        return None
    _refuse_other_mode(values, path.name)
    program = _PROGRAMS.get(path.parent.parent.name, "pretrain_gpt.py")
    notes = [AdoptMessage.PROGRAM_OF_FOLDER.fill(name=path.name, program=program)]
    command_words = [Word(program, 0)]
    for option in options:
        if option.value is False:
            name = visible(option.name.removeprefix(_OPTIONS))
            notes.append(AdoptMessage.OPTION_IS_FALSE.fill(option=name, line=option.line))
        command_words += _words(option)
    others = dict.fromkeys(_sections_of_further_trainings(values))
    if others:
        sections = ", ".join(others)
        notes.append(AdoptMessage.FURTHER_TRAININGS.fill(name=path.name, sections=sections))
    command = StartedProgram("unknown", tuple(command_words), len(command_words), 0, {})
    lines = [visible(line) for line in lines_of(mask(text))]
    return Script(
        text="".join(f"{line}\n" for line in lines),
        directives=(),
        commands=(command,),
        settings=tuple(_settings(values)),
        places={number: f"line {number}" for number in range(len(lines) + 2)},
        notes=tuple(notes),
    )


def _values(name: str, text: str) -> list[ConfigValue]:
    """Return the values in a YAML file; empty if the file is not YAML."""
    try:
        return yaml_values(text, name)
    except ParamsError:
        return []


def _refuse_other_mode(values: Sequence[ConfigValue], name: str) -> None:
    """Raise `ParamsError` if a test case runs in a mode other than pre-training."""
    for value in values:
        if value.name == "MODE" and value.value != _PRETRAINS:
            mode = visible(mask(value.shown))
            raise ParamsError(AdoptMessage.OTHER_MODE, name=name, mode=mode, line=value.line)


def _words(option: ConfigValue) -> list[Word]:
    """Return the words passed by the runner for an option.

    A list in brackets becomes one word per element, and a value of true adds no word.
    """
    name = Word(visible(option.name.removeprefix(_OPTIONS)), option.line)
    if option.value is False or option.value is None:
        return []
    if option.value is True:
        return [name]
    text = _with_markers(option.shown).strip()
    if isinstance(option.value, list):
        texts = [_with_markers(str(item)) for item in option.value]
    elif text.startswith("[") and text.endswith("]"):
        texts = text[1:-1].split()
    elif name.text.endswith("data-path"):
        texts = text.split()
    else:
        texts = [text]
    return [name, *(Word(visible(mask(item)), option.line) for item in texts)]


def _with_markers(text: str) -> str:
    """Replace variables in a string with markers, because they are set only where the test runs.

    >>> _with_markers("${DATA_PATH}/text")
    '__NOT_SET_DATA_PATH__/text'
    """
    return re.sub(r"\$\{(\w+)\}", lambda variable: not_set(variable[1]), text)


def _sections_of_further_trainings(values: Sequence[ConfigValue]) -> Iterator[str]:
    """Yield the sections with options for a second and later training."""
    for value in values:
        section = _MORE_OPTIONS.match(value.name)
        if section:
            yield visible(section[1])


def _settings(values: Sequence[ConfigValue]) -> Iterator[Setting]:
    """Yield the environment variables in a test case."""
    for value in values:
        if value.name.startswith(_VARIABLES):
            name = visible(value.name.removeprefix(_VARIABLES))
            content = visible(mask(value.shown))
            yield Setting(name, content, value.line, content, exported=True)


_SIGNS_OF_CONFIGURATION = {
    "language_model.num_layers",
    "language_model.hidden_size",
    "model_parallel.tensor_model_parallel_size",
    "micro_batch_size",
}
"""Keys in every file for --yaml-cfg that trains a GPT."""


def script_of_megatron_file(name: str, text: str) -> Script | None:
    """Return the training that a file for Megatron-LM's --yaml-cfg describes, or None.

    Keys in the file are argument names in the parser, some of them in sections.
    """
    try:
        values = yaml_values(text, name)
    except ParamsError:
        return None
    if not {value.name for value in values} >= _SIGNS_OF_CONFIGURATION:
        return None
    arguments: dict[str, tuple[str, int]] = {}
    notes: list[str] = []
    for value in values:
        argument = value.name.rpartition(".")[2]
        text_of_value = str(value.value)
        earlier, earlier_line = arguments.get(argument, (text_of_value, 0))
        if earlier != text_of_value:
            note = AdoptMessage.GIVEN_TWICE.fill(
                name=name,
                argument=argument,
                earlier=earlier,
                earlier_line=earlier_line,
                last=text_of_value,
                line=value.line,
            )
            notes.append(visible(mask(note)))
        arguments[argument] = (text_of_value, value.line)
    lines = [visible(line) for line in lines_of(mask(text))]
    script = script_of_arguments(arguments, lines, name, SET_BY_PROGRAM)
    return replace(script, notes=(*script.notes, *notes))


_SIGNS = {"num_layers", "hidden_size", "num_attention_heads", "train_iters", "lr"}
"""Arguments for the Megatron parser that every flat file for training has."""
_SIGNS_OF_OTHERS = {"optimizer.type", "pipe_parallel_size", "model_parallel_size"}
"""Keys in GPT-NeoX files, which are also flat."""
_REFERENCE = re.compile(r"\$\{.*\}")


def script_of_flat_files(files: Sequence[tuple[str, str]]) -> Script | None:
    """Return the training in a flat YAML file with Megatron arguments, or None for other files.

    Launchers pass the keys in such a file to the program as options. The other files are the
    `defaults` that the first file lists. Values with references to other files stay unknown.
    """
    numbers = LineNumbers(dict(files))
    arguments: dict[str, tuple[str, int]] = {}
    absent: dict[str, None] = {}
    for name, text in reversed(files):
        values = _values(name, text)
        if any(value.name in _SIGNS_OF_OTHERS for value in values):
            return None
        offset = numbers.first[name] - 1
        for value in values:
            if value.name != "defaults":
                arguments[value.name] = (_argument(value), value.line + offset)
        absent |= dict.fromkeys(_bases(values))
    if not arguments.keys() >= _SIGNS:
        return None
    given_names = {PurePath(name).stem for name, _ in files}
    lines = [visible(mask(line)) for line in numbers.lines]
    script = script_of_arguments(arguments, lines, files[0][0], SET_BY_PROGRAM)
    missing = tuple(base for base in absent if PurePath(base).stem not in given_names)
    return replace(script, places=numbers.places, absent_configurations=missing)


def _argument(value: ConfigValue) -> str:
    """Return an argument value as text, with a marker for each reference to another value."""
    return _REFERENCE.sub(lambda reference: _marker(reference[0]), str(value.value))


def _marker(reference: str) -> str:
    """Return the marker for a reference to a value in another file.

    >>> _marker("${oc.divi:${.train_iters},10}")
    '__NOT_SET_oc_divi_train_iters_10__'
    """
    return not_set(re.sub(r"\W+", "_", reference).strip("_"))


def _bases(values: Sequence[ConfigValue]) -> Iterator[str]:
    """Yield the files listed as Hydra defaults, except for the file itself."""
    for value in values:
        if value.name == "defaults":
            items = value.value if isinstance(value.value, list) else [value.value]
            yield from (visible(mask(str(item))) for item in items if item != "_self_")
