"""Result tables of the seed documents, recomputed and judged row by row; scaling efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runbook.core.table import Table
from runbook.plan_file.schema import PhasePlan, Shape
from runbook.planning import sizes
from runbook.planning.cost import flops
from runbook.planning.cost.endurance import checkpoint_bytes
from runbook.planning.cost.memory import state_bytes
from runbook.results.metrics import Summary
from runbook.results.published_results import peak_tflops, read_table

LUMI = "lumi_table.csv"
AZURE = "azure_checkpoint.csv"
GCD = "MI250X-GCD"
GCDS_PER_NODE = 8
GCD_BYTES = 64 * 2**30
LUMI_CONVENTION = "megatron-deepspeed-f4"
"""LUMI's script recomputes activations, so its log counts the forward pass twice: hardware FLOP/s, not the model's."""
KEPT_CONVENTION = "megatron-deepspeed-f3"
"""What the same log says of a run that keeps its activations."""
LUMI_MODELS = {"125M": (12, 768, 12), "13B": (40, 5120, 40)}
"""Layers, hidden, heads of the two sizes in the document; sequence 2048."""


@dataclass(frozen=True)
class ThroughputRow:
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
    convention: str = LUMI_CONVENTION
    """Formula of T (TFLOP/s per device)."""
    refused: str = ""
    """Why the plan would not start it."""
    source: str = field(default="", compare=False)
    """File and line the samples/s come from."""


def gpt(layers: int, hidden: int, heads: int, *, tensor: int = 1, length: int = 2048, vocabulary: int = 50257) -> Shape:
    """A plain GPT of the paper: learned positions, tied embeddings, feed-forward of four times the width."""
    padded = sizes.padded_vocabulary(vocabulary, tensor)
    return Shape(layers, hidden, heads, heads, 4 * hidden, length, length, vocabulary, padded)


def lumi_rows() -> list[ThroughputRow]:
    """The document's eight rows."""
    rows = []
    for line, row in enumerate(read_table(LUMI), start=2):
        nodes, tensor = int(row["nodes"]), int(row["tensor"])
        known = row["samples_per_second"] != "?"
        rows.append(
            ThroughputRow(
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
    rows: Sequence[ThroughputRow],
    *,
    device: str = GCD,
    precision: str = "fp16",
    device_bytes: int = GCD_BYTES,
    source: str = LUMI,
) -> Table:
    """The LUMI document's table for any runs: its columns, recomputed from samples/s, and what is wrong with a row."""
    peak = peak_tflops(device, precision)
    shown = []
    for place, row in enumerate(rows):
        fitting = _fitting(row)
        fitted = replace(row, shape=fitting[1]) if fitting is not None else row
        tflops, model = _speed(fitted, row.convention), _speed(fitted, flops.OURS)
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
                "verdict": _verdict(row, rows[:place], device_bytes),
                "run": row.name,
                "source": row.source or source,
            }
        )
    conventions = sorted({row.convention for row in rows} or {LUMI_CONVENTION})
    hardware = any(flops.CONVENTIONS[name].kind == "hardware" for name in conventions)
    counted = " (recomputed work counted: % of peak is HFU)" if hardware else ""
    notes = (
        f"TFLOP/s in the convention {' or '.join(conventions)}{counted}; MFU in the convention {flops.OURS}",
        f"peak of {device} in {precision}: " + (f"{peak:g} TFLOP/s" if peak else "not known"),
    )
    return Table(shown, "Training throughput", notes, source=source)


def _speed(row: ThroughputRow, convention: str) -> float | None:
    if row.samples_per_second is None:
        return None
    return flops.tflops_per_device(row.shape, row.samples_per_second, row.devices, convention)


def _verdict(row: ThroughputRow, before: Sequence[ThroughputRow], device_bytes: int) -> str:
    tflops = _speed(row, row.convention)
    if row.refused:
        return f"refused by the plan: {row.refused}"
    if row.samples_per_second is None or tflops is None:
        return "never measured"
    if row in before:
        return f"printed twice: the same as row {before.index(row) + 1}"
    ranks = row.pipeline * row.tensor * row.data
    if ranks != row.devices:
        text = f"cannot be right: PP x TP x DP = {ranks}, but there are {row.devices} devices"
        if (fitting := _fitting(row)) is not None:
            tensor, padded = fitting[0], fitting[1].padded_vocabulary
            text += f"; TP {tensor} fills them, and {row.stated_tflops} is its number (vocabulary padded to {padded})"
        return text
    layout = {"tensor": row.tensor, "pipeline": row.pipeline}
    states = state_bytes("fp16", deepspeed=True, zero_stage=row.zero_stage, data=row.data)
    needed = states.total * max(sizes.on_rank(row.shape, **layout, stage=n).total for n in range(row.pipeline))
    if device_bytes and needed > device_bytes:
        return (
            f"cannot be right: weights, gradients and optimizer need {needed / 2**30:.1f} GiB of a device's "
            f"{device_bytes / 2**30:.0f} GiB (the speed itself is consistent)"
        )
    if row.stated_tflops is None or round(tflops, 2) == row.stated_tflops:
        return "ok"
    band = tflops * row.rounding / row.samples_per_second
    if abs(tflops - row.stated_tflops) <= band + 0.005:
        return f"ok within the rounding of samples/s (+-{band:.3f} TFLOP/s)"
    return f"stated {row.stated_tflops}, recomputed {tflops:.2f}"


def _fitting(row: ThroughputRow) -> tuple[int, Shape] | None:
    """Where the layout does not fill the devices: the tensor size that does, if the stated speed is that size's."""
    tensor, rest = divmod(row.devices, row.pipeline * row.data)
    if rest or tensor == row.tensor or row.stated_tflops is None:
        return None
    shape = replace(row.shape, padded_vocabulary=sizes.padded_vocabulary(row.shape.vocabulary, tensor))
    speed = _speed(replace(row, shape=shape), row.convention)
    return (tensor, shape) if speed is not None and round(speed, 2) == row.stated_tflops else None


def azure_checkpoint_table() -> Table:
    """The Azure document's write times beside the same in one unit: TiB and GB/s do not divide without 1.0995."""
    parameters, stated_tib = 174_615_846_912, 2.3
    true_bytes = checkpoint_bytes(parameters, "fp16")
    rows = []
    for row in read_table(AZURE):
        rate = float(row["bandwidth_gb_per_second"])
        stated, true_minutes = float(row["stated_minutes"]), true_bytes / (rate * 1e9) / 60
        rows.append(
            {
                "tier": row["tier"],
                "size (TiB)": int(row["size_tib"]),
                "bandwidth (GB/s)": rate,
                "stated (min)": stated,
                "as stated: 2.3 x 1024 / bandwidth (min)": stated_tib * 1024 / rate / 60,
                f"{stated_tib} TiB in bytes (min)": stated_tib * 2**40 / (rate * 1e9) / 60,
                "true size (min)": true_minutes,
                "stated / true size": stated / true_minutes,
            }
        )
    notes = (
        f"the document divides GiB by GB/s: its {stated_tib} TiB in bytes takes 7.4 % longer than it says",
        f"true size: {parameters:,} parameters x 14 B = {true_bytes / 1e12:.3f} TB = {true_bytes / 2**40:.3f} TiB",
    )
    return Table(rows, "Checkpoint write time", notes, source=AZURE)


def throughput_row(
    spec: PhasePlan, summary: Summary | None, *, devices_per_node: int, name: str, source: str
) -> ThroughputRow:
    """A phase of plan.json and what was measured of it; `summary` is None where it was not run."""
    model, parallel = spec.model, spec.parallel
    world = parallel.world_size
    return ThroughputRow(
        model=model.label or model.name,
        shape=model,
        nodes=max(1, -(-world // devices_per_node)) if devices_per_node else 1,
        devices=world,
        pipeline=parallel.pipeline,
        tensor=parallel.tensor,
        data=parallel.data * parallel.context,
        zero_stage=parallel.zero_stage,
        samples_per_second=summary.samples_per_second if summary else None,
        name=name,
        convention=KEPT_CONVENTION if spec.recompute == "none" else LUMI_CONVENTION,
        source=source,
    )


def scaling_table(points: Sequence[tuple[str, int, float]], *, source: str = "metrics.jsonl of each run") -> Table:
    """Efficiency of each point (label, devices, samples/s): samples/s/device over that of the fewest devices.

    >>> round(scaling_table([("1 node", 8, 2.686), ("2 nodes", 16, 4.711)]).rows[1]["efficiency (%)"], 1)
    87.7
    """
    if not points:
        return Table((), "Scaling", ("no point was given",), source=source)
    ordered = sorted(points, key=lambda point: point[1])
    label, fewest, slowest = ordered[0]
    rows = [
        {
            "run": name,
            "devices": devices,
            "speed (samples/s)": speed,
            "speed (samples/s/device)": speed / devices,
            "speed-up": speed / slowest,
            "ideal speed-up": devices / fewest,
            "efficiency (%)": 100 * speed / devices / (slowest / fewest),
        }
        for name, devices, speed in ordered
    ]
    return Table(rows, "Scaling", (f"against {label} with {fewest} devices",), source=source)
