"""Reads how a training run was started, from a running process or from a log.

The log contains the arguments that Megatron prints.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runbook.core.errors import ParamsError
from runbook.core.visible_text import visible
from runbook.frameworks.megatron import OPTIONS
from runbook.jobs.script_directives import Directive
from runbook.params.secrets import mask
from runbook.tools.adopt.job_environment import is_of_a_job
from runbook.tools.adopt.launches import program_name
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.option_importance import Importance, importance_of
from runbook.tools.adopt.script import Script, Setting, StartedProgram, Word, is_count

PROCESSES = Path("/proc")
_MOST_BYTES_OF_FILE = 65_536
_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.I)


_SECRET_OPTION = re.compile(
    r"(?:^|[-_])(?:(?<!pad[-_])(?<!eos[-_])(?<!bos[-_])(?<!eod[-_])(?<!unk[-_])(?<!sep[-_])token"
    r"|secret|password|passwd"
    r"|credentials?|api[-_]?key|access[-_]?key|secret[-_]?key)$",
    re.I,
)
MASKED = "..."


def is_secret_option(name: str) -> bool:
    """Return whether an option value is a secret, judging by the option name.

    >>> names = ("--hf-token", "wandb_api_key", "--pad-token", "--tokenizer-type")
    >>> [is_secret_option(name) for name in names]
    [True, True, False, False]
    """
    return _SECRET_OPTION.search(name.lstrip("-")) is not None


def without_secret_values(raw_words: Sequence[str]) -> list[str]:
    """Return the words in a command with the values of secret options masked.

    Values are masked no matter how they are passed.

    >>> without_secret_values(["--hf-token", "abc", "--lr", "1", "--api-key=abc", "--hf-token"])
    ['--hf-token', '...', '--lr', '1', '--api-key=...', '--hf-token']
    """
    masked_words: list[str] = []
    is_value_of_secret = False
    for word in raw_words:
        name, equals, _ = word.partition("=")
        if is_value_of_secret and not word.startswith("--"):
            masked_words.append(MASKED)
        elif word.startswith("--") and equals and is_secret_option(name):
            masked_words.append(f"{name}={MASKED}")
        else:
            masked_words.append(word)

        is_value_of_secret = word.startswith("--") and not equals and is_secret_option(word)

    return masked_words


def script_of_process(number: int, processes: Path = PROCESSES) -> Script:
    """Return the training settings used by a running process.

    These are its command line and the variables in its job.

    No program is started. Other variables are not read, and secrets are masked. Raise `ParamsError`
    if there is no such process, or if it belongs to another user.
    """
    folder = processes / str(number)
    raw_words = _strings(folder / "cmdline", number)
    if not raw_words:
        raise ParamsError(AdoptMessage.KERNEL_THREAD, number=number)
    variables = dict(text.partition("=")[::2] for text in _strings(folder / "environ", number))
    masked_words = [visible(mask(text)) for text in without_secret_values(raw_words)]
    settings = tuple(_settings(variables))
    name = program_name(Word(masked_words[0], 1))
    kind = {"python": "python", "torchrun": "starter", "deepspeed": "starter"}.get(name, "unknown")
    command = StartedProgram(
        kind=kind,
        words=tuple(Word(word, 1) for word in masked_words),
        own=len(masked_words),
        line=1,
        environment={setting.name: Word(setting.value, setting.line) for setting in settings},
        files=_documents(folder / "cwd", raw_words),
    )
    lines = [shlex.join(masked_words), *(f"{setting.name}={setting.value}" for setting in settings)]
    process_name = f"process {number}"
    return Script(
        text="".join(f"{line}\n" for line in lines),
        directives=tuple(_directives_of_ranks(variables)),
        commands=(command,),
        settings=settings,
        places=dict.fromkeys(range(len(lines) + 2), process_name),
    )


def _strings(path: Path, number: int) -> list[str]:
    """Return the zero-terminated strings in a file under /proc."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise ParamsError(AdoptMessage.NO_SUCH_PROCESS, number=number) from error
    except PermissionError as error:
        raise ParamsError(AdoptMessage.PROCESS_OF_ANOTHER_USER, number=number) from error

    return [text for text in raw.decode(errors="replace").split("\0") if text]


def _settings(variables: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the variables that configure part of a job and are not secrets."""
    line = 1
    for name, value in sorted(variables.items()):
        if is_of_a_job(name) and not _SECRET_VARIABLE.search(name):
            line += 1
            masked_value = visible(mask(value))
            yield Setting(
                name,
                masked_value,
                line,
                masked_value,
                exported=True,
            )


def _directives_of_ranks(variables: Mapping[str, str]) -> Iterator[Directive]:
    """Yield the node and device counts that the launcher set in the process environment."""
    world = _count(variables.get("WORLD_SIZE", ""))
    local = _count(variables.get("LOCAL_WORLD_SIZE", ""))
    if world and local:
        nodes = world // local
    else:
        nodes = _count(variables.get("SLURM_JOB_NUM_NODES", ""))

    for name, count in (("nodes", nodes), ("gpus-per-node", local)):
        if count:
            yield Directive("slurm", name, str(count), 0)


def _count(text: str) -> int:
    if not is_count(text):
        return 0
    return int(text)


def _documents(folder: Path, raw_words: Sequence[str]) -> dict[str, str]:
    """Return the small JSON files named in a command line, by the words used to name them."""
    documents = {}
    for word in raw_words:
        path = folder / word.rpartition("=")[2]
        if word.endswith(".json") and path.is_file() and path.stat().st_size < _MOST_BYTES_OF_FILE:
            documents[word] = mask(path.read_text(encoding="utf-8", errors="replace"))

    return documents


_BEGIN = re.compile(r"(?<!-)-{5,} arguments -{5,}")
_END = re.compile(r"(?<!-)-{5,} end of arguments -{5,}")
_ARGUMENT = re.compile(r"(?<!\w)(\w+) \.{3,} ?(.*)$")
_NEGATED = {
    "add_bias_linear": "disable-bias-linear",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
"""Options that invert arguments, by the printed argument name."""
_RENAMED = {"virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank"}
_WITHOUT_ROW = (
    "data-path",
    "attention-dropout",
    "exit-duration-in-mins",
    "num-layers-per-virtual-pipeline-stage",
    "tokenizer-type",
)
"""Options that are read although the table has no row for them."""
_COMPUTED = re.compile(
    r"world_size|rank|local_rank|data_parallel_size|padded_vocab_size|params_dtype|consumed_\w+"
    r"|start_weight_decay"
    r"|end_weight_decay|iteration|curr_\w+|num_layers_per_virtual_pipeline_stage|\w+_group_ranks"
    r"|command|master_\w+"
    r"|transformer_pipeline_model_parallel_size|encoder_\w+|decoder_\w+|kv_channels"
    r"|max_tokens_to_oom|model_parallel_size"
)
"""Arguments in a log that the program computed itself.

Such arguments are ignored unless the table has a row for them.
"""
SET_BY_PROGRAM = re.compile(
    r"world_size|rank|local_rank|data_parallel_size|params_dtype|consumed_\w+"
)
"""Arguments that the program always sets itself, even with --yaml-cfg. The user sets all others."""


def is_log(text: str) -> bool:
    """Return whether a text is a log that contains arguments printed by Megatron."""
    return bool(_BEGIN.search(text)) and bool(_END.search(text))


def script_of_log(text: str, name: str) -> Script:
    """Return the training settings from arguments in a log, including program defaults.

    Arguments without a key in the run file that do not affect the training are only counted in a
    note.
    """
    lines = [_without_secret_argument(line) for line in text.splitlines()]
    return script_of_arguments(_printed(lines), lines, name)


def script_of_arguments(
    printed: Mapping[str, tuple[str, int]],
    lines: Sequence[str],
    name: str,
    computed: re.Pattern[str] = _COMPUTED,
) -> Script:
    """Return the training settings in Megatron arguments, under their printed names.

    `printed` has the value and line for each argument. Arguments that match `computed` are ignored.
    """
    shell_words = [Word("pretrain_gpt.py", 1)]
    uncounted = 0
    for argument, (value, line) in printed.items():
        option = _option_words(argument, value, computed)
        uncounted += not option and value not in ("None", "False")
        shell_words += [Word(visible(mask(word)), line) for word in option]

    command = StartedProgram(
        "unknown",
        tuple(shell_words),
        len(shell_words),
        1,
        {},
    )
    world = _count(printed.get("world_size", ("", 0))[0])
    note = (
        f"{name} has {len(printed)} arguments, including defaults; {uncounted} of them have no "
        "key in the run file and do not affect training"
    )
    notes = [note]
    if world:
        notes.append(f"{name} has {world} ranks; nodes of the site's size are assumed")
    return Script(
        text="".join(f"{visible(mask(line))}\n" for line in lines),
        directives=tuple(_directives_of_world(world)),
        commands=(command,),
        settings=(),
        places={number: f"line {number}" for number in range(len(lines) + 2)},
        notes=tuple(notes),
    )


def _without_secret_argument(line: str) -> str:
    """Mask the value of a secret argument in a log line, and return the line.

    The argument name determines whether it is a secret.

    >>> _without_secret_argument("  wandb_api_key ................ abc")
    '  wandb_api_key ................ ...'
    """
    match = _ARGUMENT.search(line)
    if match and match[2] and is_secret_option(match[1]):
        return line[: match.start(2)] + MASKED
    return line


def _printed(lines: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return the value and line for each argument in the first list that a log contains."""
    printed: dict[str, tuple[str, int]] = {}
    is_inside = False
    for number, line in enumerate(lines, 1):
        if _END.search(line):
            break
        if _BEGIN.search(line):
            is_inside = True
            continue

        match = _ARGUMENT.search(line) if is_inside else None
        if match:
            printed.setdefault(match[1], (match[2].strip(), number))

    return printed


def _option_words(argument: str, value: str, computed: re.Pattern[str]) -> list[str]:
    """Return the command-line words that set an argument.

    The list is empty if the argument is off or unimportant, or was computed by the program.
    """
    if value == "False":
        if argument in _NEGATED:
            return [f"--{_NEGATED[argument]}"]
        return []

    if value in ("None", "") or argument in _NEGATED:
        return []
    name = _RENAMED.get(argument, argument.replace("_", "-"))
    has_row = name in OPTIONS
    if computed.fullmatch(argument) and not has_row:
        return []
    is_known = has_row or name in _WITHOUT_ROW
    matters = importance_of(name) is Importance.TRAINING and value not in ("0", "0.0", "[]", "1")
    if not is_known and not matters:
        return []
    if value == "True":
        return [f"--{name}"]
    return [f"--{name}", *_values(value)]


def _values(value: str) -> list[str]:
    """Return the words in a printed value. A list has one word per element."""
    if value.startswith(("[", "(")):
        try:
            items = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return [value]

        return [str(item) for item in items]

    return [value]


def _directives_of_world(world: int) -> list[Directive]:
    """Return directives for this many ranks: nodes with eight devices, or one smaller node."""
    if not world:
        return []
    devices = 8 if world % 8 == 0 else world
    return [
        Directive("slurm", "nodes", str(world // devices), 0),
        Directive("slurm", "gpus-per-node", str(devices), 0),
    ]
