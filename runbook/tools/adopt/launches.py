"""The launch of a training in a script, and the site, framework and document that the script belongs to."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path

from runbook.tools.adopt.options import count_known
from runbook.tools.adopt.script import Script, StartedProgram, Word

_TRAINS = re.compile(r"(pretrain|train|finetune)\w*\.py$|megatron_gpt_pretraining\.py$")
_NEVER = re.compile(
    r"(preprocess|convert|merge|download|tokenize|evaluate|generate|server|setup|test)\w*\.py$"
)
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed.launcher.runner",
    "accelerate.commands.launch",
)
_ENOUGH_OPTIONS = 4
"""Of the known options, which make a script a training whatever its name is."""


@dataclass(frozen=True)
class Launch:
    """One start of a training."""

    parts: tuple[tuple[str, tuple[Word, ...]], ...]
    """Programs around the training script, outermost first, each with its own options."""
    script: Word
    arguments: tuple[Word, ...]
    command: StartedProgram

    def part(self, *names: str) -> tuple[Word, ...]:
        """The options of the first of these programs; none where it is not there."""
        return next((words for name, words in self.parts if name in names), ())

    @property
    def programs(self) -> list[str]:
        """The programs around the script, outermost first."""
        return [name for name, _ in self.parts]


def launches_of(commands: Sequence[StartedProgram]) -> list[Launch]:
    """Return every start of a training script, in order."""
    launches = (_launch(command, commands) for command in commands)
    return [launch for launch in launches if launch]


def option(words: Sequence[Word], *names: str) -> Word | None:
    """Return the last value of an option, as `--name value` or `--name=value`.

    None where it has none.

    Dashes and underscores in its name are alike.
    """
    last_value = None
    for word, after in zip_longest(words, words[1:]):
        name, equals, text = word.text.partition("=")
        if not name.startswith("-") or name.lstrip("-").replace("_", "-") not in names:
            continue
        if equals:
            last_value = Word(text, word.line)
        elif after:
            last_value = after
    return last_value


def _launch(command: StartedProgram, commands: Sequence[StartedProgram]) -> Launch | None:
    """Return the launch that a command is; None where it starts no training."""
    words = command.words
    place = _place_of_script(command)
    if place is None or not _is_training(words, place):
        return None
    chain = _programs_around(command, commands)
    parts = [_part(outer) for outer in chain if outer.kind in _AROUND_A_TRAINING]
    if place:
        parts.append((_starter_name(words[:place]), words[1:place]))
    line = (chain[0].line if chain else 0) or command.line
    return Launch(tuple(parts), words[place], words[place + 1 :], replace(command, line=line))


_AROUND_A_TRAINING = ("step", "container", "wrapper", "starter")
"""Kinds of the programs whose options belong to a launch."""


def _place_of_script(command: StartedProgram) -> int | None:
    """Return which word of a command is a Python script.

    None where none is, or where something else starts it.
    """
    if command.kind == "unknown" and command.words[0].text.endswith(".py"):
        return 0
    if command.kind in ("starter", "python"):
        return _script_place(command.words) or None
    return None


def _is_training(words: Sequence[Word], place: int) -> bool:
    """Return whether the script at this place trains: by its name, else by its options."""
    script = words[place].text
    if _TRAINS.search(script):
        return True
    is_nemo_launcher = any(_LAUNCHER_OVERRIDE.match(word.text) for word in words)
    if is_nemo_launcher and script.endswith("main.py"):
        return True
    if _NEVER.search(script):
        return False
    return count_known(words[place + 1 :]) >= _ENOUGH_OPTIONS


_LAUNCHER_OVERRIDE = re.compile(r"(training=|stages=\[training)")


def _part(program: StartedProgram) -> tuple[str, tuple[Word, ...]]:
    """Return a program around a training: its name and its own options."""
    last = 1 + program.own
    return _starter_name(program.words[:last]), program.words[1:last]


def _starter_name(words: Sequence[Word]) -> str:
    """Return a program's own name; of Python that runs a starter's module, the starter's name."""
    module = option(words[1:], "m")
    if module and module.text in _MODULES:
        return "deepspeed" if module.text.startswith("deepspeed") else "torchrun"
    return program_name(words[0])


def _programs_around(
    command: StartedProgram, commands: Sequence[StartedProgram]
) -> list[StartedProgram]:
    """The programs around a command, outermost first."""
    by_identity = {program.identity: program for program in commands}
    chain: list[StartedProgram] = []
    parent = by_identity.get(command.parent)
    while parent and parent not in chain:
        chain.insert(0, parent)
        parent = by_identity.get(parent.parent)
    return chain


def program_name(word: Word) -> str:
    """The program's own name.

    >>> program_name(Word("/usr/bin/python3", 1)), program_name(Word("apptainer", 1))
    ('python', 'singularity')
    """
    name = word.text.rpartition("/")[2]
    if name.startswith("python"):
        return "python"
    return {"ds": "deepspeed", "apptainer": "singularity"}.get(name, name)


def _script_place(words: Sequence[Word]) -> int:
    """Return which word of a starter or of Python is the training script; 0 where none is.

    It is a .py file, or the module after -m.
    """
    for number, (before, word) in enumerate(pairwise(words), 1):
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
"""Of each document: its site, the run file that it became, its own scripts, and names that these
read.

The names tell a block of exports that starts nothing.
"""


@dataclass(frozen=True)
class DocumentCall:
    """A document's script that is started with values for its knobs."""

    run: str
    script: str
    command: StartedProgram


def site_of(script: Script, sites: Collection[str]) -> str:
    """The site with most signs; a Slurm script is never PBS's, and the other way round."""
    return _most_signs(script, sites)[0]


def _most_signs(script: Script, sites: Collection[str]) -> tuple[str, int]:
    """Return the site that most signs in the script speak for, and their weight.

    Slurm's own with 0 where none does.
    """
    queues = {directive.queue for directive in script.directives}
    best = "slurm"
    best_score = 0
    for site, signs in SITE_SIGNS.items():
        other_queue = "slurm" if site == "polaris" else "pbs"
        if site not in sites or other_queue in queues:
            continue
        score = _sum_of_signs(script.text, signs)
        if score > best_score:
            best = site
            best_score = score
    return best, best_score


def _sum_of_signs(text: str, signs: Sequence[tuple[str, int]]) -> int:
    """Add up the weights of the patterns that a text has."""
    return sum(weight for pattern, weight in signs if re.search(pattern, text, re.M | re.I))


def framework_of(launches: Sequence[Launch]) -> str:
    """Return whose training program is started, by its name, its options or its folder."""
    words = []
    programs: set[str] = set()
    for launch in launches:
        words += [word.text for word in (launch.script, *launch.arguments)]
        programs.update(launch.programs)
    if any(_NEMO_SIGN.match(word) for word in words):
        return "nemo"
    if "deepspeed" in programs or any(_DEEPSPEED_SIGN.match(word) for word in words):
        return "megatron-deepspeed"
    command_line = " ".join(words)
    names_deepspeed = re.search(r"megatron-deepspeed", command_line, re.I)
    if names_deepspeed and "Megatron-LM" not in command_line:
        return "megatron-deepspeed"
    return "megatron-lm"


_NEMO_SIGN = re.compile(r"(training\.)?trainer\.|.*megatron_gpt_pretraining", re.DOTALL)
_DEEPSPEED_SIGN = re.compile(r"--(deepspeed|zero[-_]stage)|.*pretrain_gpt_alcf", re.DOTALL)


def calls_of(commands: Sequence[StartedProgram]) -> list[DocumentCall]:
    """Return the starts of the documents' own scripts among the commands of a job."""
    calls = []
    for command in commands:
        if command.kind not in ("submit", "unknown", "step"):
            continue
        for _, run, pattern, _ in DOCUMENTS:
            script = _word_like(pattern, command.words)
            if script:
                calls.append(DocumentCall(run, script, command))
    return calls


def _word_like(pattern: str, words: Sequence[Word]) -> str:
    """Return the first word that has a pattern; empty where none has it."""
    return next((word.text for word in words if re.search(pattern, word.text)), "")


def run_of(script: Script) -> str:
    """Return the run whose script reads most of the names that are set.

    Where none are set, the run of the machine that the text clearly speaks of.

    Empty where neither tells.
    """
    names = {setting.name for setting in script.settings}
    for command in script.commands:
        names |= command.environment.keys()
    _, run, _, knobs = max(DOCUMENTS, key=lambda document: len(names & document[3]))
    if names & knobs:
        return run
    site, score = _most_signs(script, SITE_SIGNS)
    if score < _CLEAR_SCORE:
        return ""
    return next(run for place, run, *_ in DOCUMENTS if place == site)


_CLEAR_SCORE = 4
"""Weight of the signs from which on a text clearly speaks of one machine."""
