"""Samples texts from a model, one token after another."""

from __future__ import annotations

import torch

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.offline_defaults import (
    HIGHEST_TEMPERATURE,
    LIKELIEST_TOKENS,
    MOST_TOKENS,
    TEMPERATURE,
)
from runbook.plan_file.schema import PhasePlan
from runbook.training import scoring
from runbook.training.checkpoints import weights
from runbook.training.engines import gpt_model
from runbook.training.messages import TrainingMessage
from runbook.training.offline_request import OfflineRequest
from runbook.training.process_groups import device


def draw_token(
    logits: torch.Tensor,
    generator: torch.Generator,
    temperature: float = TEMPERATURE,
    top_p: float = 0.0,
) -> int:
    """Draw one of the most likely tokens.

    Candidates are the smallest set of tokens with probabilities that sum to `top_p`, or the first
    `LIKELIEST_TOKENS` if `top_p` is 0. At temperature 0, the most likely token is always taken, and
    small models repeat themselves forever.
    """
    best, tokens = torch.topk(logits, len(logits) if top_p else min(LIKELIEST_TOKENS, len(logits)))
    if not temperature:
        return int(tokens[0])
    shares = torch.softmax(best / temperature, 0)
    if top_p:
        shares[shares.cumsum(0) - shares >= top_p] = 0.0  # The most likely token is always kept
    return int(tokens[torch.multinomial(shares, 1, generator=generator)])


def continue_prompts(spec: PhasePlan, request: OfflineRequest) -> dict[str, object]:
    """Continue each prompt by up to `tokens` ids.

    The result for one prompt does not depend on the other prompts.
    """
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

            token = draw_token(choices, generator, float(request.temperature), float(request.top_p))
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
    """Raise `RefusedError` if there are no prompts, or if one is empty or has an unknown token."""
    if not request.prompts or not all(request.prompts):
        raise RefusedError(TrainingMessage.EMPTY_PROMPT)
    for ids in request.prompts:
        for token in ids:
            if not 0 <= int(token) < vocabulary:
                raise RefusedError(
                    TrainingMessage.PROMPT_OUTSIDE_VOCABULARY, token=token, vocabulary=vocabulary
                )


def _check_draw(request: OfflineRequest) -> None:
    """Raise `RefusedError` if a sampling parameter is not a number or is out of range."""
    for name, value, highest in (
        ("temperature", request.temperature, HIGHEST_TEMPERATURE),
        ("top_p", request.top_p, 1.0),
        ("tokens", request.tokens, MOST_TOKENS),
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
    """Scores for the next token in a growing text.

    Keys and values of up to `cached` earlier tokens are kept.
    """

    def __init__(
        self,
        gpt: torch.nn.Module,
        spec: PhasePlan,
        cached: int,
    ) -> None:
        # This is imported here, because the training loop draws samples without this part of
        # megatron-core
        from megatron.core.inference.contexts import StaticInferenceContext

        self._gpt = gpt
        self._model = spec.model
        self._seen = None
        if cached:
            self._seen = StaticInferenceContext(1, min(cached, spec.model.shape.positions))

    def after(self, ids: list[int]) -> torch.Tensor:
        """Return a score for every token in the vocabulary.

        A text longer than the context is truncated at the beginning.
        """
        window = ids[-self._model.shape.positions :]
        if len(window) < len(ids):
            # Truncation changes the position of every token
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
