"""`python -m runbook.training.offline sample|export|import|score`: work with a checkpoint without a training.

The request is JSON on standard input; the answer is one line of JSON on standard output. All but
`score`, which torchrun may start many times, is the work of one process.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.plan_file.errors import RefusedError, TrainingError
from runbook.plan_file.schema import PhasePlan, read_plan
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import CPU, Ranks, die_with_launcher, hide_gpus, ranks_from

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OfflineRequest:
    """What is asked for; each command reads its own keys."""

    # Of the checkpoint; 0: the newest whole one
    iteration: int = 0
    prompts: tuple[tuple[int, ...], ...] = ()
    # How many to draw at most after each
    tokens: int = 0
    # 0 takes the likeliest token each time
    temperature: float = 0.7
    top_p: float = 0.0
    """Draw from the likeliest tokens with this share of the probability; 0: the 40 likeliest."""
    # False computes the whole text again for each token
    cache: bool = True
    # Of the draw; None: the plan's
    seed: int | None = None
    # Tokens after which nothing is drawn, in addition to the end of a document
    stops: tuple[int, ...] = ()
    # In float32, with the optimizer's float32 weights, as `score` does
    exact: bool = False
    out: str = ""  # folder to export to
    # The most that a file of weights has
    shard_bytes: int = 5 * 10**9
    source: str = ""  # folder to import from
    # Which to score: `trained`, `first`
    weights: tuple[str, ...] = ("trained",)
    # Contexts, and how each goes on
    pairs: tuple[tuple[list[int], list[int]], ...] = ()


def sample(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Continue each prompt by up to `tokens` ids.

    What becomes of one does not depend on the others.
    """
    import torch

    from runbook.training import scoring
    from runbook.training.checkpoints import weights
    from runbook.training.engines import gpt_model

    _check_prompts(request, spec.model.shape.vocabulary)
    _check_draw(request)
    seed = spec.seed if request.seed is None else int(request.seed)
    if not 0 <= seed < 2**63:
        raise RefusedError(TrainingMessage.SEED_OUT_OF_RANGE, seed=seed, highest=2**63 - 1)
    if request.exact:
        spec = scoring.in_float32(spec)
    checkpoint = weights.newest_weights(spec, request.iteration)
    stops = {spec.sampling.end_of_document, *request.stops}
    (gpt,) = gpt_model.build_model(spec, draw=False)
    checkpoint.fill(gpt, masters=request.exact)
    gpt.eval()
    continuations: list[list[int]] = []
    for prompt in request.prompts:
        longest = len(prompt) + int(request.tokens)
        scores = _Scores(gpt, spec, longest if request.cache else 0)
        generator = torch.Generator().manual_seed(seed)
        ids = [int(token) for token in prompt]
        while len(ids) < longest:
            choices = scores.after(ids)
            if not bool(torch.isfinite(choices).all()):
                raise RefusedError(TrainingMessage.SCORES_NOT_NUMBERS, folder=checkpoint.folder)

            token = gpt_model.draw_token(
                choices, generator, float(request.temperature), float(request.top_p)
            )
            ids.append(token)
            if token in stops:
                break

        continuations.append(ids[len(prompt) :])

    return {
        "iteration": checkpoint.iteration,
        "folder": str(checkpoint.folder),
        "ids": continuations,
    }


def _check_prompts(request: OfflineRequest, vocabulary: int) -> None:
    """`RefusedError` where there is no prompt, an empty one, or one with an unknown token."""
    if not request.prompts or not all(request.prompts):
        raise RefusedError(TrainingMessage.EMPTY_PROMPT)
    for ids in request.prompts:
        for token in ids:
            if not 0 <= int(token) < vocabulary:
                raise RefusedError(
                    TrainingMessage.PROMPT_OUTSIDE_VOCABULARY, token=token, vocabulary=vocabulary
                )


def _check_draw(request: OfflineRequest) -> None:
    """`RefusedError` where a number that texts are drawn by is none, or out of its range."""
    for name, value, highest in (
        ("temperature", request.temperature, 10.0),
        ("top_p", request.top_p, 1.0),
        ("tokens", request.tokens, 10_000),
    ):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= highest
        ):
            raise RefusedError(
                TrainingMessage.OPTION_OUT_OF_RANGE, name=name, value=value, highest=highest
            )


class _Scores:
    """Scores of the token after a text that grows.

    Keys and values of what was seen are kept for `cached` tokens.
    """

    def __init__(
        self,
        gpt: torch.nn.Module,
        spec: PhasePlan,
        cached: int,
    ) -> None:
        from megatron.core.inference.contexts import StaticInferenceContext

        self._gpt = gpt
        self._model = spec.model
        self._seen = None
        if cached:
            self._seen = StaticInferenceContext(1, min(cached, spec.model.shape.positions))

    def after(self, ids: list[int]) -> torch.Tensor:
        """Those of every token of the vocabulary.

        A text longer than the model's positions is cut at its beginning.
        """
        import torch

        from runbook.training.process_groups import device

        window = ids[-self._model.shape.positions :]
        if len(window) < len(ids):
            # Every token has another position now
            self._seen = None

        start = self._seen.sequence_len_offset if self._seen else 0
        tokens = torch.tensor([window[start:]], device=device())
        positions = torch.arange(start, len(window), device=device())[None]
        with torch.no_grad():
            logits = self._gpt(
                tokens,
                positions,
                None,
                inference_context=self._seen,
                runtime_gather_output=True,
            )

        if self._seen:
            self._seen.sequence_len_offset = len(window)
        choices: torch.Tensor = logits[0, -1, : self._model.shape.vocabulary].float().cpu()
        return choices


def export(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Write config.json and the weights of a Hugging Face folder."""
    from runbook.training.checkpoints import hugging_face, weights

    checkpoint = weights.newest_weights(spec, request.iteration)
    out = Path(request.out)
    end = spec.sampling.end_of_document
    written = hugging_face.export_folder(
        checkpoint,
        spec.model,
        out,
        end,
        request.shard_bytes,
    )
    return {
        "iteration": checkpoint.iteration,
        "folder": str(checkpoint.folder),
        "out": str(out),
        **written,
    }


def import_(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Begin the training from another program's folder.

    A checkpoint of iteration 0 that has weights alone.
    """
    from runbook.training.checkpoints import folders, hugging_face, megatron, state

    root = spec.path(spec.checkpoint.folder)
    if folders.has_checkpoints(root):
        raise RefusedError(TrainingMessage.HAS_CHECKPOINTS, root=root)

    source = Path(request.source)
    # An engine of this name has no optimizer state for the plan's.
    engine: Any
    imported: Any
    if (source / "config.json").is_file():
        imported = hugging_face.ImportedWeights(source, spec.model)
        engine = "hugging-face"
    else:
        imported = megatron.MegatronWeights(source, spec.model)
        engine = "megatron-lm"

    spec = dataclasses.replace(spec, engine=engine)
    start = state.TrainingProgress()
    saved = state.PendingSave(spec, imported, start, in_background=False).finish()
    return {"iteration": 0, "folder": str(saved.folder), "bytes": saved.bytes}


def score(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Log likelihoods of `pairs` for each of `weights`; on the first rank."""
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
    """Answer one request."""
    parser = argparse.ArgumentParser(prog="python -m runbook.training.offline", description=__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("plan", type=Path)
    parser.add_argument("--phase", default="04-training")
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

        # Weights go by the names that they have in megatron-core's own layers.
        os.environ[gpt_model.TRANSFORMER_ENGINE_VARIABLE] = "0"
        # One of GPUs may be looked at on any machine
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
    """The same model on so many ranks, cut as the training is; on one rank not at all."""
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
