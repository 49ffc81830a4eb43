"""The results table from the LUMI document, recomputed and checked row by row: docs/lumi-table.md."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runbook.core.table import Table
from runbook.plan_file.schema import Layout, ModelShape
from runbook.planning import sizes
from runbook.planning.cost.memory import state_bytes
from runbook.results.run_tables import LUMI_CONVENTION, ThroughputRow, results_table

TABLE = Path(__file__).with_name("lumi_table.csv")
"""The table as printed in the document (its unit "FLOP/s" is TFLOP/s)."""
GCDS_PER_NODE = 8
GCD_BYTES = 64 * 2**30
LUMI_MODELS = {"125M": (12, 768, 12), "13B": (40, 5120, 40)}
"""Layers, hidden size and heads for the two models in the document, with sequences of 2,048 tokens.
"""
ROUNDING = 0.0005
"""Half a unit in the last digit of samples/s, as the document prints it."""


@dataclass(frozen=True)
class StatedRow:
    """A row in the document: the layout and samples/s to compute from, and the stated results."""

    row: ThroughputRow
    tflops: float | None
    percent: float | None


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    *,
    tensor: int = 1,
    length: int = 2048,
    vocabulary: int = 50257,
) -> ModelShape:
    """Return a GPT as in the paper.

    It has learned positions, tied embeddings and a feed-forward block of 4 x hidden.
    """
    padded = sizes.padded_vocabulary(vocabulary, tensor)
    return ModelShape(layers, hidden, heads, heads, 4 * hidden, length, length, vocabulary, padded)


def lumi_rows() -> list[StatedRow]:
    """Return the eight rows in the document."""
    rows = []
    with TABLE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            tensor = int(row["tensor"])
            known = row["samples_per_second"] != "?"
            own = ThroughputRow(
                model=row["model"],
                shape=gpt(*LUMI_MODELS[row["model"]], tensor=tensor),
                parallel=Layout(
                    tensor=tensor,
                    pipeline=int(row["pipeline"]),
                    virtual_pipeline=1,
                    context=1,
                    sequence=False,
                    data=int(row["data"]),
                    world_size=int(row["nodes"]) * GCDS_PER_NODE,
                    zero_stage=int(row["zero_stage"]),
                ),
                devices_per_node=GCDS_PER_NODE,
                samples_per_second=float(row["samples_per_second"]) if known else None,
            )
            stated = [
                float(row[name]) if known else None
                for name in ("tflops_per_gcd", "percent_of_peak")
            ]
            rows.append(StatedRow(own, *stated))
    return rows


def judged_table(rows: Sequence[StatedRow]) -> Table:
    """Return the columns in the document, recomputed from its samples/s.

    Each row also has the stated values and the errors in them.
    """
    fitted = []
    for one in rows:
        fit = fitting(one)
        fitted.append(replace(one.row, shape=fit[1]) if fit else one.row)
    table = results_table(fitted, device="MI250X-GCD", precision="fp16", source=TABLE.name)
    shown = []
    for place, (row, one) in enumerate(zip(table, rows, strict=True)):
        kept = {
            name: value for name, value in row.items() if name not in ("verdict", "run", "source")
        }
        stated = {"stated (TFLOP/s per device)": one.tflops, "stated % of peak": one.percent}
        shown.append({**kept, **stated, "verdict": verdict(one, rows[:place])})
    return replace(table, rows=shown, title="")


def verdict(one: StatedRow, before: Sequence[StatedRow]) -> str:
    """Return whether a row can be right, and why if it cannot."""
    row = one.row
    cut = one.row.parallel
    tflops = one.row.tflops(LUMI_CONVENTION)
    if row.samples_per_second is None or tflops is None:
        return "never measured"
    if one in before:
        return f"printed twice: the same as row {before.index(one) + 1}"
    ranks = cut.pipeline * cut.tensor * cut.data
    if ranks != cut.world_size:
        text = f"cannot be right: PP x TP x DP = {ranks}, but there are {cut.world_size} devices"
        if (fit := fitting(one)) is not None:
            tensor = fit[0]
            padded = fit[1].padded_vocabulary
            text += (
                f"; TP {tensor} would use all of them, and would explain {one.tflops} TFLOP/s "
                f"(vocabulary padded to {padded})"
            )
        return text
    layout = {"tensor": cut.tensor, "pipeline": cut.pipeline}
    states = state_bytes("fp16", deepspeed=True, zero_stage=cut.zero_stage, data=cut.data)
    needed = states.total * max(
        sizes.on_rank(row.shape, **layout, stage=n).total for n in range(cut.pipeline)
    )
    if needed > GCD_BYTES:
        return (
            f"cannot be right: weights, gradients and optimizer need {needed / 2**30:.1f} GiB of a device's "
            f"{GCD_BYTES / 2**30:.0f} GiB (the speed itself is consistent)"
        )
    if one.tflops is None or round(tflops, 2) == one.tflops:
        return "ok"
    band = tflops * ROUNDING / row.samples_per_second
    if abs(tflops - one.tflops) <= band + 0.005:
        return f"ok within the rounding of samples/s (+-{band:.3f} TFLOP/s)"
    return f"stated {one.tflops}, recomputed {tflops:.2f}"


def fitting(one: StatedRow) -> tuple[int, ModelShape] | None:
    """Return the tensor size that fills the devices, with the shape padded for it.

    Return None if the row's own size fills them, or if the stated speed does not match the other
    size.
    """
    row = one.row
    cut = one.row.parallel
    tensor, rest = divmod(cut.world_size, cut.pipeline * cut.data)
    if rest or tensor == cut.tensor or one.tflops is None:
        return None
    shape = replace(
        row.shape, padded_vocabulary=sizes.padded_vocabulary(row.shape.vocabulary, tensor)
    )
    found = replace(row, shape=shape).tflops(LUMI_CONVENTION)
    return (tensor, shape) if found is not None and round(found, 2) == one.tflops else None
