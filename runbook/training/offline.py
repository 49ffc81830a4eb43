"""`python -m runbook.training.offline sample|export|import`: work with a checkpoint in one process, without a job.

The request is JSON on standard input; the answer is one line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from runbook.training.errors import RefusedError, TrainingError
from runbook.training.spec import Spec, read_plan


def sample(spec: Spec, request: dict[str, Any]) -> dict[str, Any]:
    """Continue `ids` by up to `tokens` ids, drawn at `temperature` from `seed`; 0 takes the likeliest each time."""
    import torch

    from runbook.training import model, whole_weights
    from runbook.training.distributed import device
    from runbook.training.sampling import draw

    ids = [int(token) for token in request["ids"]]
    if not ids or not all(0 <= token < spec.model.vocabulary for token in ids):
        raise RefusedError(f"a prompt needs at least one token, each below the vocabulary of {spec.model.vocabulary}")
    seed = int(request.get("seed", spec.seed))
    if not 0 <= seed < 2**63:
        raise RefusedError(f"seed {seed} is not from 0 to {2**63 - 1}")
    whole = whole_weights.newest(spec, request.get("iteration", 0))
    (gpt,) = model.build(spec)
    _fill(gpt, whole.read(whole.names(), masters=False))
    gpt.eval()
    generator = torch.Generator().manual_seed(seed)
    made: list[int] = []
    with torch.no_grad():
        while len(made) < int(request["tokens"]):
            seen = torch.tensor([(ids + made)[-spec.model.positions :]], device=device())
            logits = gpt(seen, torch.arange(seen.shape[1], device=device())[None], None)
            choices = logits[0, -1, : spec.model.vocabulary].float().cpu()
            made.append(draw(choices, generator, float(request.get("temperature", 0.7))))
            if made[-1] == spec.sampling.end_of_document:
                break
    return {"iteration": whole.iteration, "folder": str(whole.folder), "ids": made}


def export(spec: Spec, request: dict[str, Any]) -> dict[str, Any]:
    """Write Hugging Face's GPT-2 folder."""
    from runbook.training import hugging_face, whole_weights

    whole, out = whole_weights.newest(spec, request.get("iteration", 0)), Path(request["out"])
    hugging_face.export(whole, spec.model, out, spec.sampling.end_of_document)
    return {"iteration": whole.iteration, "folder": str(whole.folder), "out": str(out)}


def import_(spec: Spec, request: dict[str, Any]) -> dict[str, Any]:
    """Begin the training from a Hugging Face GPT-2 folder: a checkpoint of iteration 0, Adam's moments zero."""
    from runbook.training import checkpoints, hugging_face, saving
    from runbook.training.megatron_engine import MegatronEngine
    from runbook.training.progress import Progress

    root = spec.path(spec.checkpoint.folder)
    if checkpoints.has_trace(root):
        raise RefusedError(f"{root} has checkpoints already: weights are imported only before the first step")
    weights = hugging_face.read(Path(request["source"]), spec.model)
    engine = MegatronEngine(spec)
    _fill(engine.models[0], weights)
    engine.optimizer.reload_model_params()
    saved = saving.save(spec, engine, Progress())
    return {"iteration": 0, "folder": str(saved.folder), "bytes": saved.bytes}


def _fill(gpt: Any, weights: dict[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            if name not in weights or weights[name].shape != parameter.shape:
                raise RefusedError(
                    f"the weights lack {name} of shape {tuple(parameter.shape)}: they are of another model"
                )
            parameter.copy_(weights[name])


COMMANDS = {"sample": sample, "export": export, "import": import_}


def main() -> int:
    """Answer one request."""
    parser = argparse.ArgumentParser(prog="python -m runbook.training.offline", description=__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("plan", type=Path)
    parser.add_argument("--phase", default="04-training")
    arguments = parser.parse_args()
    try:
        begun = time.monotonic()
        spec = alone(read_plan(arguments.plan, arguments.phase))
        request = json.loads(sys.stdin.read() or "{}")
        warnings.filterwarnings("ignore")
        logging.getLogger("megatron.core").setLevel(logging.ERROR)
        from runbook.training import cpu, distributed, layers, padding
        from runbook.training.ranks import Ranks

        os.environ[layers.SWITCH] = "0"  # weights go by the names that they have in megatron-core's own layers
        cpu.answer_for_cpu()
        distributed.begin(Ranks(0, 1, 0, "alone", "", 0), spec.limits.process_group_timeout_seconds)
        distributed.cut(spec)
        answer = COMMANDS[arguments.command](padding.kept(spec), request)
        distributed.end()
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps({**answer, "seconds": time.monotonic() - begun}) + "\n")
    return 0


def alone(spec: Spec) -> Spec:
    """The same training on one rank."""
    one = dataclasses.replace(
        spec.parallel, tensor=1, pipeline=1, virtual_pipeline=1, context=1, sequence=False, data=1, world_size=1,
        zero_stage=0,
    )  # fmt: skip
    return dataclasses.replace(spec, parallel=one)


if __name__ == "__main__":
    sys.exit(main())
