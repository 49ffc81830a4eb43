"""Selects the pieces of each sequence a context-parallel rank computes.

All supported versions of megatron-core divide sequences in the same way.
"""

import inspect

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_batch_on_this_cp_rank

_HAS_HYBRID_GROUPS = "is_hybrid_cp" in inspect.signature(get_batch_on_this_cp_rank).parameters
"""Whether megatron-core requires context-parallel groups of different sizes, as in 0.18 and later."""


def slice_sequences(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return this rank's pieces of each sequence, or full sequences without context parallelism.

    The group is passed explicitly. Otherwise megatron-core 0.18 and newer would use all ranks of
    the job, and data-parallel ranks would silently train on pieces of their sequences.
    """
    group = parallel_state.get_context_parallel_group()
    if _HAS_HYBRID_GROUPS:
        pieces = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)
    else:
        pieces = get_batch_on_this_cp_rank(batch, cp_group=group)

    return dict(pieces)
