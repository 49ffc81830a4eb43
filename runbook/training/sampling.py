"""Let the model continue a text, to see before and after training what it has learnt."""

from __future__ import annotations

import torch

from runbook.training.distributed import device
from runbook.training.engine import Engine
from runbook.training.spec import Spec

TEMPERATURE = 0.7
CHOICES = 40


def continue_text(spec: Spec, engine: Engine) -> list[int]:
    """Ids that follow the spec's prompt; the same for the same weights. Ends early at the end of a document."""
    ids = list(spec.sampling.prompt_ids)
    generator = torch.Generator().manual_seed(spec.seed)
    for _ in range(spec.sampling.tokens):
        logits = engine.next_token_logits(torch.tensor([ids], device=device()))
        token = torch.zeros(1, dtype=torch.int64, device=device())
        if logits is not None:
            token[0] = draw(logits[0, -1, : spec.model.vocabulary].float().cpu(), generator)
        # The last rank is in the last pipeline stage and has the scores; the others follow it.
        torch.distributed.broadcast(token, src=torch.distributed.get_world_size() - 1)
        ids.append(int(token))
        if ids[-1] == spec.sampling.end_of_document:
            break
    return ids[len(spec.sampling.prompt_ids) :]


def draw(logits: torch.Tensor, generator: torch.Generator, temperature: float = TEMPERATURE) -> int:
    """One of the likeliest tokens, by chance: the single likeliest one repeats itself for ever in small models.

    At temperature 0 it is the likeliest all the same.
    """
    best, tokens = torch.topk(logits, min(CHOICES, len(logits)))
    if not temperature:
        return int(tokens[0])
    return int(tokens[torch.multinomial(torch.softmax(best / temperature, 0), 1, generator=generator)])
