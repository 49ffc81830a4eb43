"""The result tables of the documents the project starts from, recomputed and judged row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runbook.analysis.published import peak_tflops, read_table
from runbook.analysis.table import Table
from runbook.params.schema import Precision
from runbook.plan import flops, sizes
from runbook.plan.checkpoint import checkpoint_bytes, write_seconds
from runbook.plan.memory import state_bytes
from runbook.plan.sizes import Shape

LUMI = "lumi_table.csv"
AZURE = "azure_checkpoint.csv"
GCD = "MI250X-GCD"
GCDS_PER_NODE = 8
GCD_BYTES = 64 * 2**30
LUMI_CONVENTION = "megatron-deepspeed-f4"
"""LUMI's script recomputes activations, so its log counts the forward pass twice: hardware FLOP/s, not the model's."""
LUMI_MODELS = {"125M": (12, 768, 12), "13B": (40, 5120, 40)}
"""Layers, hidden, heads of the two sizes in the document; sequence 2048."""


@dataclass(frozen=True)
class Measured:
    """One run or variant as the LUMI document's table has it; stated figures are None for our own runs."""

    model: str
    shape: Shape
    """With the vocabulary padded for this layout's tensor-parallel size."""
    nodes: int
    devices: int
    pipeline: int
    tensor: int
    data: int
    zero_stage: int
    samples_per_second: float | None
    stated_tflops: float | None = None
    stated_percent: float | None = None
    rounding: float = 0.0
    """Half of the last digit of samples_per_second."""
    name: str = field(default="", compare=False)
    """Of the run or variant."""
    convention: str = ""
    """Formula of T (TFLOP/s per device), where it is not the table's."""
    refused: str = ""
    """Why the plan would not start it."""
    source: str = field(default="", compare=False)
    """File and line the samples/s come from."""


def gpt(layers: int, hidden: int, heads: int, *, tensor: int = 1, length: int = 2048, vocabulary: int = 50257) -> Shape:
    """A plain GPT of the paper: learned positions, tied embeddings, feed-forward of four times the width."""
    padded = sizes.padded_vocabulary(vocabulary, tensor)
    return Shape(layers, hidden, heads, heads, 4 * hidden, length, length, vocabulary, padded)


def lumi_rows() -> list[Measured]:
    """The document's eight rows."""
    rows = []
    for line, row in enumerate(read_table(LUMI), start=2):
        nodes, tensor = int(row["nodes"]), int(row["tensor"])
        known = row["samples_per_second"] != "?"
        rows.append(
            Measured(
                model=row["model"],
                shape=gpt(*LUMI_MODELS[row["model"]], tensor=tensor),
                nodes=nodes,
                devices=nodes * GCDS_PER_NODE,
                pipeline=int(row["pipeline"]),
                tensor=tensor,
                data=int(row["data"]),
                zero_stage=int(row["zero_stage"]),
                samples_per_second=float(row["samples_per_second"]) if known else None,
                stated_tflops=float(row["tflops_per_gcd"]) if known else None,
                stated_percent=float(row["percent_of_peak"]) if known else None,
                rounding=0.0005,
                source=f"{LUMI}:{line}",
            )
        )
    return rows


def results_table(
    rows: Sequence[Measured],
    *,
    device: str = GCD,
    precision: str = "fp16",
    convention: str = LUMI_CONVENTION,
    device_bytes: int = GCD_BYTES,
    source: str = LUMI,
) -> Table:
    """The LUMI document's table for any runs: its columns, recomputed from samples/s, and what is wrong with a row."""
    peak = peak_tflops(device, precision)
    shown = []
    for place, row in enumerate(rows):
        used = row.convention or convention
        fitting = _fitting(row, used)
        shape = fitting[1] if fitting is not None else row.shape
        tflops, model = _speed(row, used, shape), _speed(row, flops.OURS, shape)
        shown.append(
            {
                "Model Size": row.model,
                "Nodes": row.nodes,
                "PP": row.pipeline,
                "TP": row.tensor,
                "DP": row.data,
                "Zero Stage": row.zero_stage,
                "T (samples/s)": row.samples_per_second,
                "T (TFLOP/s per device)": tflops,
                "% of peak": 100 * tflops / peak if tflops is not None and peak else None,
                "stated (TFLOP/s per device)": row.stated_tflops,
                "stated % of peak": row.stated_percent,
                "MFU (%)": 100 * model / peak if model is not None and peak else None,
                "verdict": _verdict(row, rows[:place], used, device_bytes),
                "run": row.name,
                "source": row.source or source,
            }
        )
    conventions = sorted({row.convention or convention for row in rows} or {convention})
    hardware = any(flops.CONVENTIONS[name].kind == "hardware" for name in conventions)
    notes = (
        f"TFLOP/s in the convention {' or '.join(conventions)}"
        + (" (recomputed work counted: % of peak is HFU)" if hardware else "")
        + f"; MFU in the convention {flops.OURS}",
        f"peak of {device} in {precision}: " + (f"{peak:g} TFLOP/s" if peak else "not known"),
    )
    return Table("Training throughput", tuple(shown), source, notes)


def lumi_table() -> Table:
    """The document's own table, recomputed."""
    return results_table(lumi_rows())


def _speed(row: Measured, convention: str, shape: Shape | None = None) -> float | None:
    if row.samples_per_second is None:
        return None
    return flops.tflops_per_device(shape or row.shape, row.samples_per_second, row.devices, convention)


def _verdict(row: Measured, before: Sequence[Measured], convention: str, device_bytes: int) -> str:
    if row.refused:
        return f"refused by the plan: {row.refused}"
    if row.samples_per_second is None:
        return "never measured"
    if row in before:
        return f"printed twice: the same as row {before.index(row) + 1}"
    ranks = row.pipeline * row.tensor * row.data
    if ranks != row.devices:
        text = f"cannot be right: PP x TP x DP = {ranks}, but there are {row.devices} devices"
        if (fitting := _fitting(row, convention)) is not None:
            tensor, shape = fitting
            padded = shape.padded_vocabulary
            text += f"; TP {tensor} fills them, and {row.stated_tflops} is its number (vocabulary padded to {padded})"
        return text
    needed = _state_bytes(row)
    if device_bytes and needed > device_bytes:
        return (
            f"cannot be right: weights, gradients and optimizer need {needed / 2**30:.1f} GiB of a device's "
            f"{device_bytes / 2**30:.0f} GiB (the speed itself is consistent)"
        )
    return _agreement(row, convention)


def _fitting(row: Measured, convention: str) -> tuple[int, Shape] | None:
    """Where the layout does not fill the devices: the tensor size that does, if the stated speed is that size's."""
    tensor, rest = divmod(row.devices, row.pipeline * row.data)
    if rest or tensor == row.tensor or row.stated_tflops is None:
        return None
    shape = replace(row.shape, padded_vocabulary=sizes.padded_vocabulary(row.shape.vocabulary, tensor))
    speed = _speed(row, convention, shape)
    return (tensor, shape) if speed is not None and round(speed, 2) == row.stated_tflops else None


def _agreement(row: Measured, convention: str) -> str:
    tflops = _speed(row, convention)
    if row.stated_tflops is None or tflops is None or row.samples_per_second is None:
        return "ok"
    if round(tflops, 2) == row.stated_tflops:
        return "ok"
    band = tflops * row.rounding / row.samples_per_second
    if abs(tflops - row.stated_tflops) <= band + 0.005:
        return f"ok within the rounding of samples/s (+-{band:.3f} TFLOP/s)"
    return f"stated {row.stated_tflops}, recomputed {tflops:.2f}"


def _state_bytes(row: Measured) -> float:
    states = state_bytes(Precision.FP16, deepspeed=True, zero_stage=row.zero_stage, data=row.data)
    largest = max(
        sizes.on_rank(row.shape, tensor=row.tensor, pipeline=row.pipeline, stage=stage).total
        for stage in range(row.pipeline)
    )
    return largest * states.total


def azure_checkpoint_table(parameters: int = 174_615_846_912, stated_tib: float = 2.3) -> Table:
    """The Azure document's write times beside the same in one unit: TiB and GB/s do not divide without 1.0995."""
    true_bytes = checkpoint_bytes(parameters, Precision.FP16)
    rows = []
    for row in read_table(AZURE):
        rate = float(row["bandwidth_gb_per_second"])
        consistent = write_seconds(stated_tib * 2**40, rate * 1e9) / 60
        stated = float(row["stated_minutes"])
        rows.append(
            {
                "tier": row["tier"],
                "size (TiB)": int(row["size_tib"]),
                "bandwidth (GB/s)": rate,
                "stated (min)": stated,
                "as stated: 2.3 x 1024 / bandwidth (min)": stated_tib * 1024 / rate / 60,
                f"{stated_tib} TiB in bytes (min)": consistent,
                "true size (min)": write_seconds(true_bytes, rate * 1e9) / 60,
                "stated / true size": stated / (write_seconds(true_bytes, rate * 1e9) / 60),
            }
        )
    notes = (
        f"the document divides GiB by GB/s: its {stated_tib} TiB in bytes takes 7.4 % longer than it says",
        f"true size: {parameters:,} parameters x 14 B = {true_bytes / 1e12:.3f} TB = {true_bytes / 2**40:.3f} TiB",
    )
    return Table("Checkpoint write time", tuple(rows), AZURE, notes)
