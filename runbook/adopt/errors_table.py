"""The rows of a throughput table on a page, each reckoned again: devices, state of a device, doubled rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from runbook.adopt.findings import Found
from runbook.adopt.script import Script
from runbook.params.catalogue import Model

GCDS = 8
"""Devices of a node of the one document that has such a table."""
GCD_BYTES = 64 * 2**30


def table_errors(script: Script, models: Mapping[str, Model]) -> Iterator[Found]:
    """Rows under a head with Nodes, PP, TP, DP and ZeRO stage."""
    head: list[str] = []
    seen: dict[str, int] = {}
    for line, text in enumerate(script.lines, 1):
        cells = [re.sub(r"[*\s]", "", cell).lower() for cell in text.strip().strip("|").split("|")]
        if {"nodes", "pp", "tp", "dp"} <= set(cells):
            head = cells
        elif head and len(cells) == len(head) and any(cell.isdigit() for cell in cells):
            row = dict(zip(head, cells, strict=True))
            yield from _row(line, row, models)
            if "|".join(cells) in seen:
                what = f"the same row as line {seen['|'.join(cells)]}"
                yield Found(15, line, what, "each row is one variant: runbook run lumi-13b --all-variants")
            seen["|".join(cells)] = line


def _row(line: int, row: Mapping[str, str], models: Mapping[str, Model]) -> Iterator[Found]:
    if not all(row[name].isdigit() for name in ("nodes", "pp", "tp", "dp")):
        return
    nodes, pipeline, tensor, copies = (int(row[name]) for name in ("nodes", "pp", "tp", "dp"))
    if pipeline * tensor * copies != nodes * GCDS:
        what = f"PP {pipeline} x TP {tensor} x DP {copies} = {pipeline * tensor * copies}, but {nodes} nodes have "
        yield Found(15, line, f"{what}{nodes * GCDS} GCDs", "devices that do not divide are refused by the plan")
    model = models.get(next(iter(row.values())))
    stage = row.get("zerostage", "")
    if model and stage.isdigit():
        state = state_bytes(parameters_of(model), tensor * pipeline, copies, int(stage))
        if state > GCD_BYTES:
            what = f"{state / 2**30:.1f} GiB of weights, gradients and optimizer on a device of 64 GiB"
            yield Found(16, line, what, "the plan refuses it and shows the sum")


def parameters_of(model: Model) -> int:
    """The model's count, its vocabulary unpadded: enough to judge whether it fits."""
    width = model.ffn_hidden or 4 * model.hidden
    layer = 4 * model.hidden**2 + (3 if model.activation == "swiglu" else 2) * model.hidden * width + 13 * model.hidden
    return model.layers * layer + (model.vocabulary + (model.positions or model.sequence_length)) * model.hidden


def state_bytes(parameters: int, cut: int, copies: int, zero_stage: int) -> float:
    """Weights and gradients of two bytes, twelve of optimizer a parameter; what ZeRO shares is shared by the copies.

    >>> round(state_bytes(12_853_626_880, 1, 8, 1) / 2**30, 1)
    65.8
    """
    shared = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[min(3, max(0, zero_stage))]
    return parameters / cut * (shared[0] + shared[1] / copies)
