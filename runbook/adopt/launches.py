"""The commands that start a training: step program, container, starter, training script and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.adopt.interpreter import Command
from runbook.adopt.marks import Word

STEPS = ("srun", "mpiexec", "mpirun", "aprun")
CONTAINERS = ("singularity", "apptainer")
STARTERS = ("torchrun", "deepspeed")
_TRAINS = re.compile(r"(pretrain|train|finetune)\w*\.py$|megatron_gpt_pretraining\.py$")
_NOT_TRAINING = (
    "echo",
    "printf",
    "git",
    "cp",
    "mv",
    "rm",
    "cat",
    "grep",
    "egrep",
    "sed",
    "ls",
    "tail",
    "watch",
    "wget",
)


@dataclass(frozen=True)
class Launch:
    """One start of a training."""

    parts: tuple[tuple[str, tuple[Word, ...]], ...]
    """Programs around the training script, outermost first, each with its own options."""
    script: Word
    arguments: tuple[Word, ...]
    command: Command

    @property
    def line(self) -> int:
        """Where the command begins."""
        return self.command.line

    def part(self, *names: str) -> tuple[Word, ...] | None:
        """The options of the first of these programs, or None where none is there."""
        return next((words for name, words in self.parts if name in names), None)

    @property
    def programs(self) -> list[str]:
        """The programs around the script, outermost first."""
        return [name for name, _ in self.parts]


def launches_of(commands: Sequence[Command]) -> list[Launch]:
    """Every command that starts a training script; one inside `bash -c` counts once."""
    return [launch for command in commands if (launch := _launch(command))]


def option(words: Sequence[Word], *names: str) -> Word | None:
    """The value of an option, as `--name value`, `--name=value` or `-nvalue`; dashes and underscores are alike."""
    found = None
    for number, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        plain = name.lstrip("-").replace("_", "-")
        if not word.text.startswith("-") or plain not in names:
            continue
        if equals:
            found = Word(value, word.line)
        elif number + 1 < len(words):
            found = words[number + 1]
    return found


def _launch(command: Command) -> Launch | None:
    words = command.words
    if words[0].text.rpartition("/")[2] in _NOT_TRAINING:
        return None
    launcher = any(re.match(r"(training=|stages=\[training)", word.text) for word in words)
    place = next((number for number, word in enumerate(words) if _is_script(word.text, launcher)), None)
    if place is None:
        return None
    parts: list[tuple[str, tuple[Word, ...]]] = []
    start = None
    for number, word in enumerate(words[:place]):
        name = word.text.rpartition("/")[2]
        if name in (*STEPS, *CONTAINERS, *STARTERS) or (name.startswith("python") and not word.text.startswith("-")):
            if start is not None:
                parts.append((parts_name(words[start]), words[start + 1 : number]))
            start = number
    if start is not None:
        parts.append((parts_name(words[start]), words[start + 1 : place]))
    run_module = [number for number, (_, own) in enumerate(parts) if option(own, "m") and "run" in _module(own)]
    for number in run_module:  # python -m torch.distributed.run
        parts[number] = ("torchrun", parts[number][1])
    return Launch(tuple(parts), words[place], tuple(words[place + 1 :]), command)


def parts_name(word: Word) -> str:
    """The program's own name.

    >>> parts_name(Word("/usr/bin/python3", 1)), parts_name(Word("apptainer", 1))
    ('python', 'singularity')
    """
    name = word.text.rpartition("/")[2]
    return "python" if name.startswith("python") else "singularity" if name in CONTAINERS else name


def _is_script(text: str, launcher: bool) -> bool:
    """A training script, or the main.py of NeMo's launcher where it is told to train."""
    return bool(_TRAINS.search(text) or (launcher and text.endswith("/main.py"))) and not text.startswith("-")


def _module(words: Sequence[Word]) -> str:
    found = option(words, "m")
    return found.text if found else ""
