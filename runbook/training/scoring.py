"""Computes the likelihood of texts under a model, in any layout, for `offline score`.

Tensor and pipeline parallelism are as planned, and the replicas share the texts. Everything is
computed in float32, with the float32 weights from the optimizer if the checkpoint has them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state

from runbook.plan_file.schema import PhasePlan, Tuning
from runbook.training.checkpoints import weights
from runbook.training.engines import gpt_model
from runbook.training.engines.engine import whole_logits
from runbook.training.process_groups import device, gather_on_first_rank

Ids: TypeAlias = list[int]
BATCH_TOKENS = 1024
"""Largest number of tokens in one forward pass. Each token has scores for the whole vocabulary."""


def in_float32(spec: PhasePlan) -> PhasePlan:
    """Return the plan for the same model in float32, without the options that only training needs."""
    precision = dataclasses.replace(spec.precision, format="fp32", fp8="none")
    return dataclasses.replace(
        spec,
        precision=precision,
        engine="megatron-core",
        tuning=Tuning(),
        recompute="none",
    )


class Scorer:
    """A model that scores texts and is not trained further.

    Every method is called on every rank.
    """

    def __init__(self, spec: PhasePlan, name: str) -> None:
        """Load the newest complete checkpoint (`trained`), or the initial weights (`first`)."""
        spec = in_float32(spec)
        self.spec = spec
        self.iteration = 0
        checkpoint = None
        if name == "trained":
            checkpoint = weights.newest_weights(spec)
        (self._gpt,) = gpt_model.build_model(spec, draw=checkpoint is None)
        if checkpoint:
            self.iteration = checkpoint.iteration
            checkpoint.fill(self._gpt, masters=True)

        self._gpt.eval()

    def log_likelihoods(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, bool]]:
        """Score each continuation of a context.

        Return the log probability, and whether each token in it is the most likely one.
        """
        copies = parallel_state.get_data_parallel_world_size()
        copy = parallel_state.get_data_parallel_rank()
        own_scores: dict[int, tuple[float, bool]] = {}
        lengths = [len(context) + len(continuation) for context, continuation in pairs]
        # Texts with more tokens than positions in the model are truncated at the beginning. One
        # additional token is kept, because the last token is only predicted and needs no position.
        longest = self.spec.model.shape.positions + 1
        for chosen in _batches(lengths)[copy::copies]:
            texts = []
            for index in chosen:
                context, continuation = pairs[index]
                texts.append([*context, *continuation][-longest:])

            logits = self._logits([text[:-1] for text in texts])
            if logits is None:
                continue
            for row, index in enumerate(chosen):
                _, continuation = pairs[index]
                last = len(texts[row]) - 1
                count = min(len(continuation), last)
                scores = torch.log_softmax(logits[row, last - count : last], -1)
                own_scores[index] = _likelihood(scores, texts[row][-count:])

        scores_of_all: dict[int, tuple[float, bool]] = {}
        for scores_of_rank in gather_on_first_rank(own_scores):
            scores_of_all |= scores_of_rank
        return [scores_of_all[index] for index in sorted(scores_of_all)]

    def _logits(self, texts: list[Ids]) -> Any:
        """Return scores [text, position, token in the vocabulary], or None on earlier stages."""
        length = max(map(len, texts))
        padded = [[*text, *[0] * (length - len(text))] for text in texts]
        ids = torch.tensor(padded, device=device())
        positions = torch.arange(length, device=device())[None].expand_as(ids)
        with torch.no_grad():
            if not parallel_state.is_pipeline_first_stage():
                hidden = torch.empty(
                    length, len(texts), self.spec.model.shape.hidden, device=device()
                )
                previous_rank = parallel_state.get_pipeline_model_parallel_prev_rank()
                torch.distributed.recv(hidden, previous_rank)
                self._gpt.set_input_tensor(hidden)

            output = self._gpt(ids, positions, None)
            if parallel_state.is_pipeline_last_stage():
                return whole_logits(output)[..., : self.spec.model.shape.vocabulary]
            next_rank = parallel_state.get_pipeline_model_parallel_next_rank()
            torch.distributed.send(output.contiguous(), next_rank)
            return None


def _likelihood(scores: torch.Tensor, tokens: list[int]) -> tuple[float, bool]:
    """Return the log probability of these tokens, and whether each one is the most likely.

    `scores` [token, vocabulary] are log probabilities.
    """
    ids = torch.tensor(tokens, device=scores.device)[:, None]
    likelihoods = scores.gather(1, ids)[:, 0]
    # This sum is in double precision, because a long text has thousands of values.
    log_probability = float(likelihoods.double().sum())
    return log_probability, bool((likelihoods == scores.amax(-1)).all())


def _batches(lengths: list[int]) -> list[list[int]]:
    """Group texts of similar length into batches, the longest first.

    >>> _batches([600, 3, 500, 2])
    [[0], [2, 1], [3]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= BATCH_TOKENS:
            batches[-1].append(index)
        else:
            batches.append([index])

    return batches
