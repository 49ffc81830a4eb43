"""The tables of a run: its numbers, the plan beside what came true, published results beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runbook.analysis.history import History
from runbook.analysis.metrics import Goodput, Summary
from runbook.analysis.published import PEAKS, RESULTS, Published, nearest, peak_tflops, same_device
from runbook.analysis.table import Table, Waterfall
from runbook.plan.flops import CONVENTIONS, tflops_per_device
from runbook.plan.sizes import Shape
from runbook.units import show_bytes, show_count, show_duration


def numbers_table(
    summary: Summary,
    *,
    title: str = "Numbers of this run",
    source: str = "metrics.jsonl",
    history: History | None = None,
) -> Table:
    """What was measured, one row a number, with the unit beside it, how it was found, and in which lines it stands."""
    lines = _lines(history, source)
    seconds = summary.seconds_per_iteration
    spread = (
        f"median of {summary.measured_iterations}, 80 % in {summary.seconds_low:.3g} to {summary.seconds_high:.3g} s"
        if summary.seconds_low is not None and summary.seconds_high is not None
        else "no step was timed"
    )
    whole = f"global batch {summary.global_batch} x {summary.sequence_length} tokens / median step time"
    rows = [
        _row("iterations", summary.iterations, "", f"{summary.first_iteration} to {summary.last_iteration}"),
        _row("segments", summary.segments, "", f"{summary.repeated_iterations} iterations done twice"),
        _row("step time", seconds, "s/iteration", spread),
        _row("throughput", summary.samples_per_second, "samples/s", "global batch / median step time"),
        _row("throughput", summary.tokens_per_second, "tokens/s", whole),
        _row("throughput", summary.tokens_per_second_per_device, "tokens/s/device", f"{summary.world_size} devices"),
        _row("speed", summary.tflops_per_device, "TFLOP/s/device", f"convention {summary.tflops_convention or 'none'}"),
        _row("waiting for data", _percent(summary.data_wait_share), "% of step time", ""),
        _row("first loss", summary.first_loss, "nat/token", ""),
        _row("last loss", summary.last_loss, "nat/token", f"lowest {_show(summary.lowest_loss)}"),
        _row("fall of the loss", _percent(summary.relative_fall), "% of the first", ""),
        _row("validation loss", summary.validation_loss, "nat/token", "last evaluation"),
        _row("spikes", len(summary.spikes), "", ", ".join(str(spike.iteration) for spike in summary.spikes)),
        _row("skipped steps", summary.skipped, "", ""),
        _row("NaN steps", summary.nan, "", ""),
        _row("largest gradient norm", summary.largest_grad_norm, "", "before clipping"),
        _row(
            "memory", summary.memory_bytes or None, "B", show_bytes(summary.memory_bytes) + " at most on the last rank"
        ),
    ]
    rows = [{**row, "source": lines.get(str(row["what"]), lines["all"])} for row in rows]
    return Table(title, tuple(rows), source, (summary.rule,))


def _lines(history: History | None, source: str) -> dict[str, str]:
    """File and lines of each number: those of one step, or from the first to the last."""
    if history is None or not history.steps:
        return {"all": source}
    path, steps = history.source or source, history.steps
    with_loss = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    norms = [step for step in steps if step.grad_norm is not None and math.isfinite(step.grad_norm)]
    found = {"all": f"{path}:{steps[0].line}-{steps[-1].line}", "validation loss": "validation.jsonl"}
    if with_loss:
        found |= {"first loss": f"{path}:{with_loss[0].line}", "last loss": f"{path}:{with_loss[-1].line}"}
    if norms:
        found["largest gradient norm"] = f"{path}:{max(norms, key=lambda step: step.grad_norm or 0.0).line}"
    return found


def _row(what: str, value: float | None, unit: str, remark: str) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "remark": remark}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _show(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def plan_versus_actual(planned: Mapping[str, Any], actual: Mapping[str, Any], remarks: Mapping[str, str] = {}) -> Table:
    """Each number the plan gave beside what came true.

    Both are mappings of a name with its unit (`"seconds per iteration (s)"`) to a number; a name that only one of
    them holds is shown with the other side empty, so that nothing silently drops out.

    >>> plan_versus_actual({"step (s)": 2.0, "memory (B)": 5}, {"step (s)": 2.5}).rows[0]
    {'what': 'step (s)', 'planned': 2.0, 'actual': 2.5, 'ratio': 1.25, 'remark': ''}
    """
    rows = []
    for what in dict.fromkeys((*planned, *actual)):
        plan, real = planned.get(what), actual.get(what)
        remark = remarks.get(what) or ("not measured" if real is None else "not planned" if plan is None else "")
        rows.append({"what": what, "planned": plan, "actual": real, "ratio": _ratio(real, plan), "remark": remark})
    return Table("Plan versus actual", tuple(rows), "plan.json, metrics.jsonl, events.jsonl")


def _ratio(actual: Any, planned: Any) -> float | None:
    if not isinstance(actual, int | float) or not isinstance(planned, int | float) or not planned:
        return None
    return actual / planned


def spec_promises(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a phase of plan.json fixes, under the names that `actual_numbers` uses."""
    return {
        "iterations": spec["duration"]["iterations"],
        "processes": spec["parallel"]["world_size"],
        "global batch (sequences)": spec["batch"]["global"],
        "tokens consumed (tokens)": spec["duration"]["tokens"],
    }


def planned_numbers(plan: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """All that plan.json promises of a phase, under the names of `actual_numbers`."""
    time, memory = plan.get("time", {}).get(phase, {}), plan.get("memory", {}).get(phase, {})
    spec = plan["phases"][phase]
    return {
        **spec_promises(spec),
        "step time (s/iteration)": time.get("seconds_per_iteration"),
        "throughput (tokens/s)": time.get("tokens_per_second"),
        "speed (TFLOP/s/device)": time.get("tflops_per_device"),
        "first loss (nat/token)": math.log(spec["model"]["padded_vocabulary"]),
        "memory of a process (B)": _process_bytes(memory, spec["parallel"]["world_size"]),
        "wall time (s)": time.get("seconds"),
    }


def _process_bytes(memory: Mapping[str, Any], world_size: int) -> float | None:
    """The least a process needs; a node's need (on a CPU, where the processes of one node share it) is divided."""
    least = memory.get("least_bytes")
    if not least:
        return None
    return float(least) / world_size if memory.get("limit_of") == "node" else float(least)


def seconds_band(plan: Mapping[str, Any], phase: str) -> tuple[float, float] | None:
    """Shortest and longest step the plan believes in; None where it has no estimate.

    Wide, because the estimate is one division: a factor of 2.5 either way on an accelerator whose peak is known, of 5
    on a CPU, whose cores were not measured.
    """
    estimate = plan.get("time", {}).get(phase, {}).get("seconds_per_iteration")
    if not estimate:
        return None
    factor = 5.0 if plan["phases"][phase].get("device") == "cpu" else 2.5
    return estimate / factor, estimate * factor


def actual_numbers(summary: Summary, parts: Goodput | None = None) -> dict[str, Any]:
    """What came true, under names with units: the right-hand side of `plan_versus_actual`."""
    numbers: dict[str, Any] = {
        "iterations": summary.last_iteration,
        "processes": summary.world_size,
        "global batch (sequences)": summary.global_batch,
        "tokens consumed (tokens)": summary.consumed_tokens,
        "step time (s/iteration)": summary.seconds_per_iteration,
        "throughput (tokens/s)": summary.tokens_per_second,
        "speed (TFLOP/s/device)": summary.tflops_per_device,
        "first loss (nat/token)": summary.first_loss,
        "memory of a process (B)": summary.memory_bytes or None,
    }
    if parts is not None:
        numbers["wall time (s)"] = parts.wall_seconds
    return numbers


def goodput_table(parts: Waterfall) -> Table:
    """Seconds and share of every part of the wall time."""
    wall = parts.wall_seconds
    rows = [
        {"part": "wall time", "seconds (s)": wall, "share (%)": 100.0 if wall else None, "as text": show_duration(wall)}
    ]
    for name, seconds in parts.parts():
        share = 100 * seconds / wall if wall else None
        rows.append({"part": name, "seconds (s)": seconds, "share (%)": share, "as text": show_duration(seconds)})
    return Table("Where the time went", tuple(rows), "metrics.jsonl, validation.jsonl, events.jsonl")


def shape_from_spec(spec: Mapping[str, Any]) -> Shape:
    """The model of a phase of plan.json, as the FLOP formulas want it."""
    return Shape(**{name: spec["model"][name] for name in Shape.__dataclass_fields__})


def speed_table(
    summary: Summary, shape: Shape, *, device: str, precision: str, own_peaks: Mapping[str, float] | None = None
) -> Table:
    """The same speed as TFLOP/s in every convention, with MFU or HFU where the device's peak is known."""
    peak = peak_tflops(device, precision, own_peaks)
    rows = []
    for name, convention in CONVENTIONS.items():
        value = None
        if summary.samples_per_second and summary.world_size:
            value = tflops_per_device(shape, summary.samples_per_second, summary.world_size, name)
        share = 100 * value / peak if value is not None and peak else None
        hardware = convention.kind == "hardware"
        rows.append(
            {
                "convention": name,
                "counts": "recomputed work too" if hardware else "the model's work",
                "formula": convention.formula,
                "speed (TFLOP/s/device)": value,
                "speed (TFLOP/s, all devices)": value * summary.world_size if value is not None else None,
                "MFU (%)": None if hardware else share,
                "HFU (%)": share if hardware else None,
                "printed by the trainer (TFLOP/s/device)": summary.tflops_per_device
                if name == summary.tflops_convention
                else None,
            }
        )
    return Table(
        "One speed in every convention", tuple(rows), f"metrics.jsonl, {PEAKS}", _peak_note(peak, device, precision)
    )


def _peak_note(peak: float | None, device: str, precision: str) -> tuple[str, ...]:
    if peak is None:
        return (f"no datasheet peak is known for {device} in {precision}: no MFU is given, none is guessed",)
    return (f"peak of {device} in {precision}: {peak:g} TFLOP/s, dense",)


def published_table(
    summary: Summary,
    *,
    parameters: int,
    device: str,
    precision: str,
    own_peaks: Mapping[str, float] | None = None,
    count: int = 5,
) -> Table:
    """This run first, then the published results most like it.

    Speeds are compared in tokens/s/device, and only where device and size allow it; a row that cannot be compared is
    context, and says why.
    """
    speed = summary.tokens_per_second_per_device
    peak = peak_tflops(device, precision, own_peaks)
    rows = [_own_row(summary, parameters, device, precision, peak)]
    length = summary.sequence_length
    for one in nearest(parameters, device=device, precision=precision, sequence_length=length, count=count):
        rows.append(_published_row(one, speed, parameters, device))
    source = f"metrics.jsonl, {RESULTS}, {PEAKS}"
    notes = _peak_note(peak, device, precision)
    return Table("This run and the nearest published results", tuple(rows), source, notes)


def _own_row(summary: Summary, parameters: int, device: str, precision: str, peak: float | None) -> dict[str, Any]:
    tflops = summary.tflops_per_device
    known = CONVENTIONS.get(summary.tflops_convention)
    share = 100 * tflops / peak if tflops is not None and peak and known else None
    return {
        "model": "this run",
        "parameters": show_count(parameters),
        "device": device,
        "devices": str(summary.world_size),
        "precision": precision,
        "sequence (tokens)": summary.sequence_length,
        "speed (tokens/s/device)": summary.tokens_per_second_per_device,
        "this run / published": None,
        "speed (TFLOP/s/device)": tflops,
        "convention": summary.tflops_convention or "none",
        "MFU (%)": share if known and known.kind == "model" else None,
        "HFU (%)": share if known and known.kind == "hardware" else None,
        "comparable": "",
        "source": "metrics.jsonl",
    }


def _published_row(one: Published, speed: float | None, parameters: int, device: str) -> dict[str, Any]:
    reason = why_not_comparable(one, parameters, device)
    theirs = one.tokens_per_second_per_device
    ratio = speed / theirs if not reason and speed and theirs else None
    return {
        "model": one.model,
        "parameters": show_count(one.parameters) if one.parameters else "not stated",
        "device": one.accelerator,
        "devices": one.devices,
        "precision": one.precision,
        "sequence (tokens)": one.sequence_length,
        "speed (tokens/s/device)": theirs,
        "this run / published": ratio,
        "speed (TFLOP/s/device)": one.tflops_per_device,
        "convention": one.convention,
        "MFU (%)": one.mfu_percent,
        "HFU (%)": one.hfu_percent,
        "comparable": reason or "yes",
        "source": f"{one.source} ({one.date}; {one.confidence}; {RESULTS} line {one.line})",
    }


def why_not_comparable(one: Published, parameters: int, device: str) -> str:
    """The reason why a published speed says nothing about this run's; empty where it does.

    >>> one = nearest(125e6, device="A100-80GB")[0]
    >>> why_not_comparable(one, 124_000_000, "A100-80GB"), why_not_comparable(one, 124_000_000, "cpu")
    ('', 'no: this run used a CPU, shown as context only')
    """
    if device.lower() == "cpu":
        return "no: this run used a CPU, shown as context only"
    if not same_device(device, one.accelerator):
        return f"no: another device ({one.accelerator} there, {device} here)"
    if not one.parameters or not 0.8 <= one.parameters / parameters <= 1.25:
        return "no: another size; tokens/s depend on it"
    return ""
