"""Finds the training runs launched by a script, and its site, framework and document."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path

from runbook.tools.adopt.other_programs import foreign_framework
from runbook.tools.adopt.program_arguments import count_known, pairs
from runbook.tools.adopt.script import Script, StartedProgram, Word

_GPT = re.compile(
    r"(^|/)(pretrain_(gpt|mcore_gpt|llama|mcore)\w*|megatron_gpt_pretraining\w*)\.py$"
)
"""Names of programs that always train a GPT, no matter which options they have."""
_MAY_TRAIN = re.compile(
    r"(pretrain|train|finetun|sft|dpo|ppo|grpo)\w*(\.py|-cli)?$|run_recipe\.py$"
)
_NEVER = re.compile(
    r"(preprocess|convert|merge|download|tokenize|evaluate|generate|generation|server|setup|test)\w*\.py$"
    r"|(_to_|2)(hf|huggingface|megatron|mcore|nemo|torch)\w*\.py$|(^|[/_])(infer|inference|eval)\w*\.py$"
    r"|(^|[/_])(hf|huggingface|megatron|mcore|nemo|torch|te)2[a-z][\w.-]*\.py$"
)
"""Names of programs that prepare data, convert, generate or evaluate, and never train."""
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed.launcher.runner",
    "accelerate.commands.launch",
)
_ENOUGH_OPTIONS = 4
"""A script with any name counts as a training program if it has this many known options."""
_ENOUGH_CORE_OPTIONS = 2
"""How many of these options must be specific to training, because many programs have --bf16
or --seed."""
_CORE_OPTIONS = {
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "seq-length",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "micro-batch-size",
    "global-batch-size",
    "train-iters",
    "train-samples",
    "train-tokens",
    "lr-decay-iters",
    "lr-warmup-iters",
    "vocab-file",
    "data-path",
}


@dataclass(frozen=True)
class Launch:
    """A command that starts a training run."""

    parts: tuple[tuple[str, tuple[Word, ...]], ...]
    """Programs that wrap the training script, outermost first, each with its options."""
    script: Word
    arguments: tuple[Word, ...]
    command: StartedProgram

    def part(self, *names: str) -> tuple[Word, ...]:
        """Return the options for the first of these programs that the launch includes.

        The result is empty if the launch includes none of the programs.
        """
        return next((shell_words for name, shell_words in self.parts if name in names), ())

    @property
    def programs(self) -> list[str]:
        """Return the names of the programs that wrap the script, outermost first."""
        return [name for name, _ in self.parts]


def different_launches(launches: Sequence[Launch]) -> list[Launch]:
    """Return each launch once, even if a loop or several ranks start the same training run."""
    by_words: dict[tuple[str, ...], Launch] = {}
    for launch in launches:
        by_words.pop(
            _words_of(launch), None
        )  # If the same launch occurs more than once, keep the last one
        by_words[_words_of(launch)] = launch
    return list(by_words.values())


def _words_of(launch: Launch) -> tuple[str, ...]:
    return (launch.script.text, *(word.text for word in launch.arguments))


@dataclass(frozen=True)
class ForeignTraining:
    """A training launch that adopt does not read."""

    framework: str
    """The framework that the program belongs to, or empty if unknown."""
    script: Word


def launches_of(commands: Sequence[StartedProgram]) -> list[Launch]:
    """Return every launch that trains a GPT with Megatron or NeMo, in order."""
    launches = (_launch(command, commands) for command in commands)
    return [launch for launch in launches if launch and is_ours(launch)]


def foreign_trainings(commands: Sequence[StartedProgram]) -> list[ForeignTraining]:
    """Return every launch that trains with another framework, in order."""
    launches = (_launch(command, commands) for command in commands)
    trainings = []
    for launch in launches:
        if launch and not is_ours(launch):
            trainings.append(
                ForeignTraining(foreign_framework(launch.script, launch.arguments), launch.script)
            )
    return trainings


def other_programs(commands: Sequence[StartedProgram]) -> list[str]:
    """Return those Python programs in a job whose names show that they do not train."""
    programs: dict[str, None] = {}
    for command in commands:
        index = _script_place(command.words) if command.kind in ("starter", "python") else 0
        if index:
            programs[command.words[index].shown.rpartition("/")[2]] = None
    return list(programs)


def is_ours(launch: Launch) -> bool:
    """Return whether a launch trains a GPT with Megatron or NeMo.

    The program name decides. If the name is unclear, the options decide.
    """
    if _GPT.search(launch.script.text):
        return True
    if foreign_framework(launch.script, launch.arguments):
        return False
    if _is_nemo_launcher(launch.script, launch.arguments):
        return True
    return _has_enough_options(launch.arguments)


def _is_nemo_launcher(script: Word, shell_words: Sequence[Word]) -> bool:
    """Return whether a program is main.py in the NeMo launcher, run for a training stage."""
    has_override = any(_LAUNCHER_OVERRIDE.match(word.text) for word in shell_words)
    return has_override and script.text.endswith("main.py")


def _has_enough_options(shell_words: Sequence[Word]) -> bool:
    """Return whether enough words are options for Megatron or overrides for NeMo.

    Words that begin with -- do not count as overrides.
    """
    names = {name for _, name, _ in pairs(shell_words)}
    core = names & _CORE_OPTIONS
    num_known = count_known(shell_words)
    dashed_words = [word for word in shell_words if word.text[:2] == "--"]
    overrides = num_known - count_known(dashed_words)
    is_enough = num_known >= _ENOUGH_OPTIONS
    return is_enough and (len(core) >= _ENOUGH_CORE_OPTIONS or overrides >= _ENOUGH_OPTIONS)


def option(shell_words: Sequence[Word], *names: str) -> Word | None:
    """Return the last value given for an option, as `--name value` or `--name=value`.

    Return None if the option has no value.

    Dashes and underscores in its name are equivalent.
    """
    last_value = None
    for word, after in zip_longest(shell_words, shell_words[1:]):
        name, equals, text = word.text.partition("=")
        if not name.startswith("-") or name.lstrip("-").replace("_", "-") not in names:
            continue
        if equals:
            last_value = Word(text, word.line)
        elif after:
            last_value = after
    return last_value


def _launch(command: StartedProgram, commands: Sequence[StartedProgram]) -> Launch | None:
    """Return the launch in a command, or None if the command does not start a training run."""
    shell_words = command.words
    index = _place_of_script(command, commands)
    if index is None:
        return None
    if not _is_started_on_devices(command, shell_words) and not _may_train(shell_words, index):
        return None
    script = shell_words[index]
    is_preparation = bool(_NEVER.search(script.text)) and not _GPT.search(script.text)
    if is_preparation and not _trains_by_its_words(shell_words[index + 1 :]):
        return None
    chain = _programs_around(command, commands)
    parts = [_part(outer) for outer in chain if outer.kind in _AROUND_A_TRAINING]
    if index:
        parts.append((_starter_name(shell_words[:index]), shell_words[1:index]))
    line = command.line
    if chain:
        line = chain[0].line or line
    arguments = shell_words[index + 1 :]
    return Launch(tuple(parts), script, arguments, replace(command, line=line))


_AROUND_A_TRAINING = ("step", "container", "wrapper", "starter")
"""Program kinds whose options belong to a launch."""


def _place_of_script(command: StartedProgram, commands: Sequence[StartedProgram]) -> int | None:
    """Return the index of the training program among the words in a command.

    Return None if there is none, or if the command starts a program recorded separately.
    """
    if command.kind in ("starter", "python"):
        return _script_place(command.words) or None
    if command.kind == "unknown" and _MAY_TRAIN.search(command.words[0].text):
        return 0
    is_last = not any(program.parent == command.identity for program in commands)
    if command.kind == "unknown" or (is_last and command.kind in _AROUND_A_TRAINING):
        index = _python_file_place(command.words)
        if index is None:
            return None
        script = command.words[index]
        arguments = command.words[index + 1 :]
        if _has_enough_options(arguments):
            return index
        # An unknown interpreter or wrapper starts the training program: debugpy-run -m
        # torch.distributed.run
        if command.kind in ("step", "unknown") and foreign_framework(script, arguments):
            return index
    return None


def _is_started_on_devices(command: StartedProgram, shell_words: Sequence[Word]) -> bool:
    """Return whether a program that starts one process per device runs this command.

    Such a command is always a training run.
    """
    return command.kind == "starter" or any(word.text in _MODULES for word in shell_words)


def _python_file_place(shell_words: Sequence[Word]) -> int | None:
    """Return the index of the first Python file, or None."""
    for index, word in enumerate(shell_words):
        if word.text.endswith(".py") and not word.text.startswith("-"):
            return index
    return None


def _may_train(shell_words: Sequence[Word], index: int) -> bool:
    """Return whether the program at this index may train.

    The program name decides. If the name is unclear, the options decide.
    """
    script = shell_words[index]
    arguments = shell_words[index + 1 :]
    if _GPT.search(script.text) or _MAY_TRAIN.search(script.text):
        return True
    if _is_nemo_launcher(script, shell_words) or _has_enough_options(arguments):
        return True
    return _trains_by_its_words(arguments)


def _trains_by_its_words(arguments: Sequence[Word]) -> bool:
    """Return whether an argument shows that a program trains, whatever its name."""
    return any(_TRAINS_BY_ITS_WORDS.fullmatch(word.text) for word in arguments)


_TRAINS_BY_ITS_WORDS = re.compile(
    r"(.*/)?train\w*\.py"
    r"|--(do_train|num_train_epochs|rollout[-_]batch[-_]size|advantage[-_]estimator"
    r"|model[-_]recipe[-_]name)(=.*)?"
)
"""Arguments from which it follows that a program trains: deepy.py train.py, run_clm.py --do_train.
"""


_LAUNCHER_OVERRIDE = re.compile(r"(training=|stages=\[training)")


def _part(program: StartedProgram) -> tuple[str, tuple[Word, ...]]:
    """Return a program that wraps a training program, with its own options."""
    last = 1 + program.own
    return _starter_name(program.words[:last]), program.words[1:last]


def _starter_name(shell_words: Sequence[Word]) -> str:
    """Return a program name.

    If Python runs a starter as a module, return the starter name.
    """
    module = option(shell_words[1:], "m")
    if module and module.text in _MODULES:
        if module.text.startswith("deepspeed"):
            return "deepspeed"
        return "torchrun"
    return program_name(shell_words[0])


def _programs_around(
    command: StartedProgram, commands: Sequence[StartedProgram]
) -> list[StartedProgram]:
    """Return the programs that wrap a command, outermost first."""
    by_identity = {program.identity: program for program in commands}
    chain: list[StartedProgram] = []
    parent = by_identity.get(command.parent)
    while parent and parent not in chain:
        chain.insert(0, parent)
        parent = by_identity.get(parent.parent)
    return chain


def program_name(word: Word) -> str:
    """Return the canonical name of a program.

    >>> program_name(Word("/usr/bin/python3", 1)), program_name(Word("apptainer", 1))
    ('python', 'singularity')
    """
    name = word.text.rpartition("/")[2]
    if name.startswith("python"):
        return "python"
    return {"ds": "deepspeed", "apptainer": "singularity"}.get(name, name)


def _script_place(shell_words: Sequence[Word]) -> int:
    """Return the index of the training script among the words for a starter or Python, or 0.

    The script is a .py file, or the module after -m.
    """
    for number, (before, word) in enumerate(pairwise(shell_words), 1):
        if before.text in ("-m", "--module"):
            if word.text not in _MODULES:
                return number
        elif word.text.endswith(".py") and not word.text.startswith("-"):
            return number
    return 0


SITE_SIGNS: dict[str, list[tuple[str, int]]] = json.loads(
    Path(__file__).with_name("site_signs.json").read_text(encoding="utf-8")
)
DOCUMENTS: tuple[tuple[str, str, str, set[str]], ...] = (
    (
        "polaris",
        "polaris-25b",
        r"(^|/)train-gpt3\.sh$",
        {"MODEL_SIZE_KEY", "MPSIZE", "PPSIZE", "SP_TYPE", "GAS", "USE_FLASH_ATTN_V2"},
    ),
    (
        "azure",
        "azure-175b",
        r"(^|/)04-gpt175B\.sh$",
        {
            "TENSOR_MODEL_PARALLEL_SIZE",
            "PIPELINE_MODEL_PARALLEL_SIZE",
            "NUM_LAYERS",
            "HIDDEN_SIZE",
            "NUMBER_OF_ITERATIONS",
            "NUM_ATTENTION_HEADS",
            "CHUNKS",
            "STAGE_PATH",
        },
    ),
    (
        "aws",
        "aws-pile-175b",
        r"(^|/)(nemo-megatron[\w.-]*\.sbatch|run\.sh)$",
        {"MODEL_SIZE", "MAX_STEPS", "FSX_MOUNT", "IMAGE", "JOB_SUFFIX", "RUN_SH"},
    ),
    (
        "lumi",
        "lumi-13b",
        r"(^|/)lumi_ds_pretrain_gpt\w*\.sh$",
        {"mp_size", "pp_size", "num_gpus", "num_node", "batch_size", "zero_stage"},
    ),
    ("slurm", "slurm-oscar", r"(^|/)megatron_ds_[ms]nmg\.slurm$", set()),
)
"""For each document: its site, its run file, its scripts, and the variables that they read.

The variables identify a script that only exports variables and starts no program.
"""


@dataclass(frozen=True)
class DocumentCall:
    """A call to a script from a document, with values for its variables."""

    run: str
    script: str
    command: StartedProgram


_PARTITION_NAMES = ("partition", "p", "q", "queue")
"""Names of the directive that names a partition or queue: Slurm's and PBS's."""


def site_of(
    script: Script,
    sites: Collection[str],
    own_queues: Mapping[str, Collection[str]] | None = None,
) -> str:
    """Return the site named in a rendered script, or else the site with the most evidence.

    `own_queues` has the partitions or queues of each site that a user described. If the script
    names a partition of exactly one of them, that is the site. A Slurm script never belongs to a
    PBS site, and vice versa.
    """
    ours = script.matching(r"^# Run [\w.-]+, phase [\w-]+, site ([\w.-]+):")
    if ours and ours[0][1][1] in sites:
        return ours[0][1][1]
    own_site = _site_with_partition(script, own_queues or {})
    return own_site or _most_signs(script, sites)[0]


def _site_with_partition(script: Script, queues: Mapping[str, Collection[str]]) -> str:
    """Return the only site that has the partition or queue of the script, or an empty string."""
    partitions: set[str] = set()
    for directive in script.directives:
        if directive.name in _PARTITION_NAMES:
            partitions.update(directive.value.split(","))

    sites = [site for site, names in queues.items() if partitions & set(names)]
    return sites[0] if len(sites) == 1 else ""


def _most_signs(script: Script, sites: Collection[str]) -> tuple[str, int]:
    """Return the site with the most evidence in the script, and how much that weighs.

    Without evidence, return the generic Slurm site and weight 0.
    """
    queues = {directive.queue for directive in script.directives}
    best = "slurm"
    best_score = 0
    for site, signs in SITE_SIGNS.items():
        other_queue = "pbs"
        if site == "polaris":  # Polaris is the only site here that uses PBS
            other_queue = "slurm"
        if site not in sites or other_queue in queues:
            continue
        score = _sum_of_signs(script.text, signs)
        if score > best_score:
            best = site
            best_score = score
    return best, best_score


def _sum_of_signs(text: str, signs: Sequence[tuple[str, int]]) -> int:
    """Add up the weights of all patterns that match a text."""
    return sum(weight for pattern, weight in signs if re.search(pattern, text, re.M | re.I))


def framework_of(launches: Sequence[Launch]) -> str:
    """Return the framework used by a launched program, based on name, options or folder."""
    texts: list[str] = []
    programs: set[str] = set()
    names: set[str] = set()
    for launch in launches:
        texts += [word.text for word in (launch.script, *launch.arguments)]
        programs.update(launch.programs)
        names.update(name for _, name, _ in pairs(launch.arguments))
    is_launcher = any(_is_nemo_launcher(launch.script, launch.arguments) for launch in launches)
    if is_launcher or _has_match(_NEMO_SIGN, texts):
        return "nemo"
    if "deepspeed" in programs or _has_match(_DEEPSPEED_SIGN, texts):
        return "megatron-deepspeed"
    if names & _ONLY_MEGATRON_LM:
        return "megatron-lm"
    return _framework_of_folder(" ".join(texts))


def _has_match(pattern: re.Pattern[str], texts: Sequence[str]) -> bool:
    """Return whether a pattern matches at the start of any of the texts."""
    return any(pattern.match(text) for text in texts)


def _framework_of_folder(command_line: str) -> str:
    """Return the framework that folder names indicate. The default is Megatron-LM."""
    names_deepspeed = re.search(r"megatron-deepspeed", command_line, re.I)
    if names_deepspeed and "Megatron-LM" not in command_line:
        return "megatron-deepspeed"
    return "megatron-lm"


_ONLY_MEGATRON_LM = {
    "use-distributed-optimizer",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "num-layers-per-virtual-pipeline-stage",
    "context-parallel-size",
    "use-mcore-models",
    "transformer-impl",
}
"""Options that the Megatron-DeepSpeed engine does not support.

These options override the framework that the folder name suggests.
"""
_NEMO_SIGN = re.compile(r"(training\.)?trainer\.|.*megatron_gpt_pretraining", re.DOTALL)
_DEEPSPEED_SIGN = re.compile(r"--(deepspeed|zero[-_]stage)|.*pretrain_gpt_alcf", re.DOTALL)


def calls_of(commands: Sequence[StartedProgram]) -> list[DocumentCall]:
    """Return the commands in a job that start a script from one of the documents."""
    calls = []
    for command in commands:
        if command.kind not in ("submit", "unknown", "step"):
            continue
        for _, run, pattern, _ in DOCUMENTS:
            script = _word_like(pattern, command.words)
            if script:
                calls.append(DocumentCall(run, script, command))
    return calls


def _word_like(pattern: str, shell_words: Sequence[Word]) -> str:
    """Return the first word that matches a pattern, or an empty word."""
    return next((word.text for word in shell_words if re.search(pattern, word.text)), "")


def run_of(script: Script) -> str:
    """Return the run whose script reads most of the variables that are set.

    If no variable is set, return the run for the machine that the text clearly refers to.

    The result is empty if neither the variables nor the text identify a run.
    """
    # The script starts a program, so it does more than export variables
    if script.matching(_WRITES_OPTIONS) or other_programs(script.commands):
        return ""
    names = _names_with_values(script)
    _, run, _, knobs = max(DOCUMENTS, key=lambda document: len(names & document[3]))
    if len(names & knobs) >= _ENOUGH_KNOBS:
        return run
    site, score = _most_signs(script, SITE_SIGNS)
    if score < _CLEAR_SCORE:
        return ""
    return next(run for site_of_run, run, *_ in DOCUMENTS if site_of_run == site)


def _names_with_values(script: Script) -> set[str]:
    """Return the variables that a script sets to a known value."""
    names = set()
    for setting in script.settings:
        if Word(setting.value, 0).known:
            names.add(setting.name)
    for command in script.commands:
        for name, word in command.environment.items():
            if word.known:
                names.add(name)
    return names


_WRITES_OPTIONS = (
    r"^[^#]*(--(num-layers|hidden-size|tensor-model-parallel-size)\b|\bmodel\.\w*parallel_size=)"
)
"""Matches training options in a script."""
_ENOUGH_KNOBS = 2
"""Number of variables needed to identify a document.

A single variable, such as batch_size, is too common.
"""
_CLEAR_SCORE = 4
"""Weight of evidence above which a text clearly refers to one machine."""
