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
    """Every start of a training script, in order."""
    return [launch for command in commands if (launch := _launch(command, commands))]


def option(words: Sequence[Word], *names: str) -> Word | None:
    """The value of an option, as `--name value` or `--name=value`; dashes and underscores are alike."""
    found = None
    for word, after in zip_longest(words, words[1:]):
        name, equals, value = word.text.partition("=")
        if name.startswith("-") and name.lstrip("-").replace("_", "-") in names:
            found = Word(value, word.line) if equals else after or found
    return found


def _launch(command: StartedProgram, commands: Sequence[StartedProgram]) -> Launch | None:
    words = command.words
    if command.kind == "unknown" and words[0].text.endswith(".py"):
        place = 0
    elif command.kind not in ("starter", "python") or not (place := _script_place(words)):
        return None
    script = words[place]
    arguments = words[place + 1 :]
    launcher = any(re.match(r"(training=|stages=\[training)", word.text) for word in words)
    trains = _TRAINS.search(script.text) or (launcher and script.text.endswith("main.py"))
    if not trains and (_NEVER.search(script.text) or count_known(arguments) < _ENOUGH_OPTIONS):
        return None
    chain = _programs_around(command, commands)
    kinds = ("step", "container", "wrapper", "starter")
    parts = [
        (_starter_name(outer.words[: 1 + outer.own]), outer.words[1 : 1 + outer.own])
        for outer in chain
        if outer.kind in kinds
    ]
    if place:
        parts.append((_starter_name(words[:place]), words[1:place]))
    line = (chain[0].line if chain else 0) or command.line
    return Launch(tuple(parts), script, arguments, replace(command, line=line))


def _starter_name(words: Sequence[Word]) -> str:
    """The program's own name; of Python with a starter's module, the starter's name."""
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
    """The training script among the words of a starter or of Python: a .py file, or the module after -m; 0: none."""
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
"""Of each document: its site, the run file that it became, its own scripts, and names that these read.

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
    queues = {directive.queue for directive in script.directives}
    scores = {
        site: sum(
            weight for pattern, weight in signs if re.search(pattern, script.text, re.M | re.I)
        )
        for site, signs in SITE_SIGNS.items()
        if site in sites and ("slurm" if site == "polaris" else "pbs") not in queues
    }
    best = max(scores, key=scores.__getitem__, default="slurm")
    return (best, scores[best]) if scores.get(best) else ("slurm", 0)


def framework_of(launches: Sequence[Launch]) -> str:
    """Whose training program is started: by its own name, its options, else by its folder."""
    words = [word.text for launch in launches for word in (launch.script, *launch.arguments)]
    programs = [name for launch in launches for name in launch.programs]
    if any(
        "megatron_gpt_pretraining" in word or re.match(r"(training\.)?trainer\.", word)
        for word in words
    ):
        return "nemo"
    sign = re.compile(r"--(deepspeed|zero[-_]stage)|.*pretrain_gpt_alcf", re.DOTALL)
    if "deepspeed" in programs or any(sign.match(word) for word in words):
        return "megatron-deepspeed"
    everything = " ".join(words)
    by_folder = (
        re.search(r"megatron-deepspeed", everything, re.I) and "Megatron-LM" not in everything
    )
    return "megatron-deepspeed" if by_folder else "megatron-lm"


def calls_of(commands: Sequence[StartedProgram]) -> list[DocumentCall]:
    """Starts of the documents' own scripts among the commands of a job."""
    return [
        DocumentCall(run, called, command)
        for command in commands
        if command.kind in ("submit", "unknown", "step")
        for _, run, pattern, _ in DOCUMENTS
        if (
            called := next(
                (word.text for word in command.words if re.search(pattern, word.text)), ""
            )
        )
    ]


def run_of(script: Script) -> str:
    """The run whose script reads most of the names that are set, else whose machine the text clearly speaks of."""
    names = {setting.name for setting in script.settings}
    names |= {name for command in script.commands for name in command.environment}
    _, run, _, knobs = max(DOCUMENTS, key=lambda document: len(names & document[3]))
    if names & knobs:
        return run
    site, score = _most_signs(script, SITE_SIGNS)
    return next(run for place, run, *_ in DOCUMENTS if place == site) if score >= 4 else ""
