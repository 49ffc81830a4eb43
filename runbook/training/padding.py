"""The padding of the vocabulary: a training keeps the one that its checkpoint has, under whatever cut it goes on.

Plans made before this was so, and by Megatron's rule, pad to a multiple of 128 x tensor, so that a change of the cut
changes the padding. Padded rows take part in the loss: left out or added, they would move it by their share of all
rows.
"""

from __future__ import annotations

import dataclasses

import torch

from runbook.training import checkpoints
from runbook.training.distributed import on_first
from runbook.training.report import say
from runbook.training.spec import Spec


def kept(spec: Spec) -> Spec:
    """`spec` with the padding of the newest checkpoint, where that one is of the same vocabulary and can be cut so."""
    model, tensor = spec.model, spec.parallel.tensor
    padded = on_first(lambda: _of_newest(spec))
    if padded in (0, model.padded_vocabulary) or padded < model.vocabulary or padded % tensor:
        return spec
    if torch.distributed.get_rank() == 0:
        say(
            f"the vocabulary of {model.vocabulary:,} stays padded to {padded:,} as in the checkpoint (plan: "
            f"{model.padded_vocabulary:,})"
        )
    return dataclasses.replace(spec, model=dataclasses.replace(model, padded_vocabulary=padded, parameters=0))


def _of_newest(spec: Spec) -> int:
    """The padding of the newest checkpoint that says its vocabulary, where that is the plan's; else 0."""
    found, _ = checkpoints.candidates(spec.path(spec.checkpoint.folder))
    for one in found:
        recipe, shape = one.metadata.get("recipe"), one.metadata.get("model")
        if isinstance(recipe, dict) and isinstance(shape, dict):
            same = recipe.get("model.vocabulary") == spec.model.vocabulary
            padded = shape.get("padded_vocabulary")
            return padded if same and isinstance(padded, int) else 0
    return 0
