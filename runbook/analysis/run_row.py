"""A run's own measurement as a row of the LUMI document's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.analysis.documents import Measured
from runbook.analysis.metrics import Summary
from runbook.analysis.tables import shape_from_spec

RECOMPUTED, KEPT = "megatron-deepspeed-f4", "megatron-deepspeed-f3"
"""What Megatron-DeepSpeed's log would say, with and without recomputing activations: the document's own formula."""


def run_row(
    spec: Mapping[str, Any],
    summary: Summary | None,
    *,
    devices_per_node: int,
    name: str = "",
    refused: str = "",
    source: str = "",
) -> Measured:
    """A phase of plan.json and what was measured of it; `summary` is None where it was not run."""
    model, parallel = spec["model"], spec["parallel"]
    world = int(parallel["world_size"])
    return Measured(
        model=str(model.get("label") or model.get("name", "")),
        shape=shape_from_spec(spec),
        nodes=max(1, -(-world // devices_per_node)) if devices_per_node else 1,
        devices=world,
        pipeline=int(parallel["pipeline"]),
        tensor=int(parallel["tensor"]),
        data=int(parallel["data"]) * int(parallel.get("context", 1)),
        zero_stage=int(parallel["zero_stage"]),
        samples_per_second=summary.samples_per_second if summary else None,
        name=name,
        convention=KEPT if spec.get("recompute", "none") == "none" else RECOMPUTED,
        refused=refused,
        source=source,
    )
