"""A model of the catalogue with another depth, width or number of heads, chosen in the run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from runbook.params.kinds import Known, Strict, WholeOrZero

if TYPE_CHECKING:
    from runbook.params.catalogue import Model


class OwnShape(Strict):
    """What differs from the model that is named; 0: as it says. The documents' scripts have these as knobs."""

    layers: Annotated[WholeOrZero, Known("NUM_LAYERS", "num_layers", "NLAYERS", "LAYERS")] = 0
    """Transformer layers."""

    hidden: Annotated[WholeOrZero, Known("HIDDEN_SIZE", "hidden_size", "HIDDEN")] = 0
    """Width of the residual stream; the feed-forward block follows, unless ffn_hidden is given."""

    heads: Annotated[WholeOrZero, Known("NUM_ATTENTION_HEADS", "num_attention_heads", "num_attn_heads")] = 0
    """Attention heads; hidden / heads is the head size."""

    kv_heads: Annotated[WholeOrZero, Known("num_query_groups", "num_key_value_heads")] = 0
    """Heads of keys and values."""

    ffn_hidden: Annotated[WholeOrZero, Known("FFN_HIDDEN_SIZE", "ffn_hidden_size")] = 0
    """Width inside the feed-forward block."""

    positions: Annotated[WholeOrZero, Known("max_position_embeddings")] = 0
    """Learned position embeddings."""


FIELDS = tuple(OwnShape.model_fields)


def with_own_shape(model: Model, chosen: Mapping[str, int]) -> Model:
    """The model with what was chosen; its label no longer says its size where the size changed."""
    changed = {name: value for name, value in chosen.items() if value}
    if not changed:
        return model
    if "hidden" in changed and "ffn_hidden" not in changed:
        changed["ffn_hidden"] = 0
    if "heads" in changed and "kv_heads" not in changed:
        changed["kv_heads"] = 0
    resized = {"layers", "hidden", "ffn_hidden", "kv_heads"} & changed.keys()
    layers, hidden = changed.get("layers", model.layers), changed.get("hidden", model.hidden)
    label = f"{layers} x {hidden}" if resized else model.label
    return model.model_copy(update={**changed, "label": label, "parameters": 0})
