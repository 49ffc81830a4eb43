"""`python -m runbook.training.offline sample|export|import|score`: use a saved checkpoint.

The request is JSON on standard input, and the answer is a line of JSON on standard output. Each
command runs in a single process, except `score`, which torchrun may start in many processes.
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

from runbook.plan_file.errors import RefusedError, TrainingError
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.training.messages import TrainingMessage
from runbook.training.offline_request import OfflineRequest
from runbook.training.ranks import CPU, Ranks, die_with_launcher, hide_gpus, ranks_from


def sample(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Continue each prompt by up to `tokens` ids."""
    from runbook.training import sampling

    return sampling.continue_prompts(spec, request)


def export(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Write config.json and the weights to a Hugging Face folder."""
    from runbook.training.checkpoints import hugging_face, weights

    checkpoint = weights.newest_weights(spec, request.iteration)
    end = spec.sampling.end_of_document
    written = hugging_face.export_folder(checkpoint, spec.model, request, end)
    return {
        "iteration": checkpoint.iteration,
        "folder": str(checkpoint.folder),
        "out": request.out,
        **written,
    }


def import_(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Start the training from weights in a folder written by a different program.

    The function writes a checkpoint for iteration 0 with only weights.
    """
    from runbook.training.checkpoints import folders, hugging_face, megatron_import, state

    root = spec.path(spec.checkpoint.folder)
    if folders.has_checkpoints(root):
        raise RefusedError(TrainingMessage.HAS_CHECKPOINTS, root=root)

    source = Path(request.source)
    # No engine has this name, so loading skips the optimizer state.
    engine: Any
    imported: Any
    if (source / "config.json").is_file():
        imported = hugging_face.ImportedWeights(source, spec.model)
        engine = "hugging-face"
    else:
        imported = megatron_import.MegatronWeights(source, spec.model)
        engine = "megatron-lm"

    spec = dataclasses.replace(spec, engine=engine)
    start = state.TrainingProgress()
    saved = state.PendingSave(spec, imported, start, in_background=False).finish()
    return {"iteration": 0, "folder": str(saved.folder), "bytes": saved.bytes}


def score(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Return the log likelihoods of `pairs` for each entry in `weights`, on the first rank."""
    from runbook.training.scoring import Scorer

    scorers = (Scorer(spec, name) for name in request.weights)
    answers = [(scorer.iteration, scorer.log_likelihoods(request.pairs)) for scorer in scorers]
    return {"iteration": answers[-1][0], "answers": [likelihoods for _, likelihoods in answers]}


COMMANDS = {
    "sample": sample,
    "export": export,
    "import": import_,
    "score": score,
}


def main() -> int:
    """Handle one request, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runbook.training.offline", description=__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("plan", type=Path)
    parser.add_argument("--phase", default=FULL)
    arguments = parser.parse_args()
    try:
        start = time.monotonic()
        if arguments.command == "score":
            own_ranks = ranks_from(os.environ)
        else:
            own_ranks = Ranks(
                0,
                1,
                0,
                "alone",
                "",
                0,
            )

        die_with_launcher(own_ranks)
        spec = on_ranks(read_plan(arguments.plan, arguments.phase), own_ranks.world_size)
        if own_ranks.rank == 0:
            request = OfflineRequest(**json.loads(sys.stdin.read() or "{}"))
        else:
            request = OfflineRequest()

        warnings.filterwarnings("ignore")
        logging.getLogger("megatron.core").setLevel(logging.ERROR)
        from runbook.training import cpu, process_groups
        from runbook.training.checkpoints import state
        from runbook.training.engines import gpt_model

        # Weights are named as in megatron-core layers.
        os.environ[gpt_model.TRANSFORMER_ENGINE_VARIABLE] = "0"
        # A checkpoint written on GPUs can be used on any machine
        if spec.device == CPU:
            hide_gpus()
        cpu.answer_for_cpu()
        process_groups.join_process_group(own_ranks, spec.limits.process_group_timeout_seconds)
        process_groups.make_parallel_groups(spec)
        request = process_groups.share_value(request)
        reply = COMMANDS[arguments.command](state.keep_checkpoint_padding(spec), request)
        process_groups.leave_process_groups()
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code

    if own_ranks.rank == 0:
        sys.stdout.write(json.dumps({**reply, "seconds": time.monotonic() - start}) + "\n")
    return 0


def on_ranks(spec: PhasePlan, world_size: int = 1) -> PhasePlan:
    """Return the plan for this many ranks, in the layout used in training or for a single rank."""
    tensor = 1
    pipeline = 1
    if world_size > 1:
        tensor = spec.parallel.tensor
        pipeline = spec.parallel.pipeline

    if world_size % (tensor * pipeline):
        raise RefusedError(
            TrainingMessage.RANKS_DO_NOT_DIVIDE,
            world_size=world_size,
            tensor=tensor,
            pipeline=pipeline,
        )

    parallel = dataclasses.replace(
        spec.parallel,
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=1,
        context=1,
        sequence=False,
        zero_stage=0,
        data=world_size // (tensor * pipeline),
        world_size=world_size,
    )
    return dataclasses.replace(spec, parallel=parallel)


if __name__ == "__main__":
    sys.exit(main())
