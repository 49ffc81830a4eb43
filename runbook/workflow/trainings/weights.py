"""A run's checkpoint at work, in a process of its own: text from it, export to and import from Hugging Face's GPT-2."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.core import shell
from runbook.core.errors import DataError, ParamsError, ProgramError
from runbook.params.schema.run_file import PHASES
from runbook.tokens.tokenizer import decode, encode
from runbook.workflow.run_files import read_plan_file, tokenizer_of

TRAINED = "04-training"
REFUSED = 2
LIMIT_SECONDS = 24 * 3600.0
"""Longer than any model takes; Ctrl-C ends it."""


@dataclass(frozen=True)
class Sample:
    """What a model made of a prompt."""

    iteration: int
    prompt: str
    continuation: str
    ids: tuple[int, ...]


def sample_text(folder: Path, prompt: str = "", phase: str = TRAINED, *, seed: int = 1234, **wish: float) -> Sample:
    """Continue a prompt from the newest whole checkpoint; an empty prompt is the run's own, or a new document.

    `wish` has `tokens`, `temperature` (0 takes the likeliest token each time) and `iteration`, for an older one.
    """
    phases = read_plan_file(folder).phases
    if phase not in phases:
        raise ParamsError(f"{phase} trains nothing; {', '.join(name for name in PHASES if name in phases)} do.")
    tokenizer, sampling = tokenizer_of(folder), phases[phase].sampling
    prompt, end = prompt or sampling.prompt, sampling.end_of_document
    ids = encode(prompt, tokenizer) if prompt else [end] if end >= 0 else []
    if not ids:
        raise ParamsError(
            "There is no prompt, and this tokenizer has no end of document to begin after: give --prompt."
        )
    answer = _ask_trainer("sample", folder, phase, {"iteration": 0, **wish, "seed": seed, "ids": ids})
    return Sample(answer["iteration"], prompt, decode(answer["ids"], tokenizer), tuple(answer["ids"]))


def export_weights(folder: Path, out: Path, phase: str = TRAINED, iteration: int = 0) -> int:
    """Write config.json, model.safetensors and the tokenizer's name of the newest checkpoint; returns its iteration."""
    answer = _ask_trainer("export", folder, phase, {"out": str(out.absolute()), "iteration": iteration})
    return int(answer["iteration"])


def import_weights(folder: Path, source: Path, phase: str = TRAINED) -> str:
    """Let the run begin with the weights of a Hugging Face GPT-2 folder; returns the checkpoint's folder."""
    if not (source / "config.json").is_file():
        raise DataError(f"{source} has no config.json: give the folder of a Hugging Face GPT-2 model.")
    return str(_ask_trainer("import", folder, phase, {"source": str(source.absolute())})["folder"])


def _ask_trainer(command: str, folder: Path, phase: str, request: dict[str, object]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "runbook.training.offline", command, str(folder / "plan.json"), "--phase", phase]
    done = shell.run(argv, input=json.dumps(request), timeout=LIMIT_SECONDS, check=False)
    if done.exit_code == REFUSED:
        raise ParamsError(done.err.strip())
    if done.exit_code:
        hint = " Install the train extra." if "No module named" in done.err else ""
        raise ProgramError(
            f"{command} ended with {shell.how_it_ended(done.exit_code)}.{hint}\n{shell.last_lines(done.err)}"
        )
    answer: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return answer
