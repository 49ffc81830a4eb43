"""The LUMI document's table of results for a run and its variants; scaling efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runbook.core.table import Table
from runbook.plan_file.schema import PlannedParallel, Shape
from runbook.planning.cost import flops
from runbook.results.published_results import peak_tflops

LUMI_CONVENTION = "megatron-deepspeed-f4"
"""LUMI's script recomputes activations, so its log counts the forward pass twice: hardware FLOP/s, not the model's."""
KEPT_CONVENTION = "megatron-deepspeed-f3"
"""What the same log says of a run that keeps its activations."""


@dataclass(frozen=True)
class ThroughputRow:
    """One run or variant as the LUMI document's table has it."""

    model: str
    shape: Shape
    """With the vocabulary padded for this layout's tensor-parallel size."""
    parallel: PlannedParallel
    devices_per_node: int
    recompute: str = "full"
    samples_per_second: float | None = None
    name: str = field(default="", compare=False)
    """Of the run or variant."""
    refused: str = ""
    """Why the plan would not start it."""
    source: str = field(default="", compare=False)
    """File and line the samples/s come from."""

    @property
    def convention(self) -> str:
        """Formula of T (TFLOP/s per device)."""
        return KEPT_CONVENTION if self.recompute == "none" else LUMI_CONVENTION


def results_table(rows: Sequence[ThroughputRow], *, device: str, precision: str, source: str) -> Table:
    """The LUMI document's table for any runs: its columns, from samples/s, and the verdict of a row."""
    peak = peak_tflops(device, precision)
    shown = []
    for row in rows:
        tflops, model = speed(row, row.convention), speed(row, flops.OURS)
        cut, refused = row.parallel, f"refused by the plan: {row.refused}" if row.refused else ""
        shown.append(
            {
                "Model Size": row.model,
                "Nodes": -(-cut.world_size // (row.devices_per_node or cut.world_size)),
                "PP": cut.pipeline,
                "TP": cut.tensor,
                "DP": cut.data * cut.context,
                "Zero Stage": cut.zero_stage,
                "T (samples/s)": row.samples_per_second,
                "T (TFLOP/s per device)": tflops,
                "% of peak": 100 * tflops / peak if tflops is not None and peak else None,
                "MFU (%)": 100 * model / peak if model is not None and peak else None,
                "verdict": refused or ("never measured" if tflops is None else "ok"),
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


def speed(row: ThroughputRow, convention: str) -> float | None:
    """TFLOP/s per device; None where it was not measured."""
    if row.samples_per_second is None:
        return None
    return flops.tflops_per_device(row.shape, row.samples_per_second, row.parallel.world_size, convention)


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
