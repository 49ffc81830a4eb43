"""A run's checkpoint at work, by the trainer in a process of its own: text from it, Hugging Face's GPT-2 out and in."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import shell
from runbook.data.tokenizer import decode, encode
from runbook.errors import DataError, ParamsError, ProgramError
from runbook.params.schema import PHASES
from runbook.phases.plan_file import read_plan_file

TRAINED = "04-training"
REFUSED = 2
SECONDS = 24 * 3600.0
"""Longer than any model takes; Ctrl-C ends it."""


@dataclass(frozen=True)
class Sample:
    """What a model made of a prompt."""

    iteration: int
    prompt: str
    continuation: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Wish:
    """How a text is to be continued; a temperature of 0 takes the likeliest token each time."""

    prompt: str = ""
    tokens: int = 40
    temperature: float = 0.7
    seed: int = 1234
    iteration: int = 0


def sample(folder: Path, wish: Wish, phase: str = TRAINED) -> Sample:
    """Continue a prompt from the newest whole checkpoint; an empty prompt is the run's own, or a new document."""
    tokenizer, spec = _tokenizer(folder), _spec(folder, phase)
    prompt = wish.prompt or spec["sampling"]["prompt"]
    end = spec["sampling"]["end_of_document"]
    ids = encode(prompt, tokenizer) if prompt else [end] if end >= 0 else []
    if not ids:
        raise ParamsError(
            "There is no prompt, and this tokenizer has no end of document to begin after: give --prompt."
        )
    request = {
        "ids": ids, "tokens": wish.tokens, "temperature": wish.temperature, "seed": wish.seed,
        "iteration": wish.iteration,
    }  # fmt: skip
    answer = _ask("sample", folder, phase, request)
    return Sample(answer["iteration"], prompt, decode(answer["ids"], tokenizer), tuple(answer["ids"]))


def export(folder: Path, out: Path, phase: str = TRAINED, iteration: int = 0) -> dict[str, Any]:
    """Write config.json and model.safetensors of the newest whole checkpoint, and the tokenizer's name beside them."""
    return _ask("export", folder, phase, {"out": str(out.absolute()), "iteration": iteration})


def import_(folder: Path, source: Path, phase: str = TRAINED) -> dict[str, Any]:
    """Let the run begin with the weights of a Hugging Face GPT-2 folder."""
    if not (source / "config.json").is_file():
        raise DataError(f"{source} has no config.json: give the folder of a Hugging Face GPT-2 model.")
    return _ask("import", folder, phase, {"source": str(source.absolute())})


def _ask(command: str, folder: Path, phase: str, request: dict[str, Any]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "runbook.training.offline", command, str(folder / "plan.json"), "--phase", phase]
    done = shell.run(argv, input=json.dumps(request), timeout=SECONDS, check=False)
    if done.exit_code == REFUSED:
        raise ParamsError(done.err.strip())
    if done.exit_code:
        hint = " Install the train extra." if "No module named" in done.err else ""
        raise ProgramError(
            f"{command} ended with {shell.how_it_ended(done.exit_code)}.{hint}\n{shell.last_lines(done.err)}"
        )
    answer: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return answer


def _spec(folder: Path, phase: str) -> dict[str, Any]:
    specs = read_plan_file(folder)["phases"]
    if phase not in specs:
        trains = ", ".join(name for name in PHASES if name in specs)
        raise ParamsError(f"{phase} trains nothing; {trains} do.")
    found: dict[str, Any] = specs[phase]
    return found


def _tokenizer(folder: Path) -> str:
    import yaml

    content = yaml.safe_load((folder / "run.yaml").read_text()) if (folder / "run.yaml").exists() else {}
    return str((content.get("data") or {}).get("tokenizer", "gpt2"))
