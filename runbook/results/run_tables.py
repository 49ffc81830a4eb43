"""Tables of runs: numbers, plan versus actual, published results, variants, scaling, and the numbers behind figures."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runbook.core.table import Row, Table
from runbook.core.units import show_bytes, show_count
from runbook.plan_file.schema import PlannedParallel, Shape
from runbook.planning.cost.flops import CONVENTIONS, OURS, tflops_per_device
from runbook.planning.plan import Plan
from runbook.results.history import History, Step, ValidationLoss, by_segment
from runbook.results.metrics import WARM_UP_RULE, Summary, find_alarms, measured
from runbook.results.published_results import (
    PEAKS,
    RESULTS,
    Published,
    nearest,
    peak_tflops,
    same_device,
)
from runbook.results.wall_time import WallTime

Numbers = Mapping[str, float | None]
"""Numbers by name, with the unit in the name; None: not known."""


def numbers_table(
    summary: Summary, *, title: str = "Numbers of this run", history: History | None = None
) -> Table:
    """What was measured, one row a number, with the unit beside it, how it was found, and in which lines it stands."""
    lines = _lines(history) if history is not None and history.steps else {}
    whole = lines.get("all", "metrics.jsonl")
    spread = "no step was timed"
    if summary.seconds_low is not None and summary.seconds_high is not None:
        between = f"{summary.seconds_low:.3g} to {summary.seconds_high:.3g} s"
        spread = f"median of {summary.measured_iterations}, 80 % in {between}"
    tokens = (
        f"global batch {summary.global_batch} x {summary.sequence_length} tokens / median step time"
    )
    lowest = "not known" if summary.lowest_loss is None else f"{summary.lowest_loss:.4g}"
    memory = show_bytes(summary.memory_bytes) + " at most on the last rank"
    numbers = (
        (
            "iterations",
            summary.iterations,
            "",
            f"{summary.first_iteration} to {summary.last_iteration}",
        ),
        ("segments", summary.segments, "", f"{summary.repeated_iterations} iterations done twice"),
        ("step time", summary.seconds_per_iteration, "s/iteration", spread),
        ("throughput", summary.samples_per_second, "samples/s", "global batch / median step time"),
        ("throughput", summary.tokens_per_second, "tokens/s", tokens),
        (
            "throughput",
            summary.tokens_per_second_per_device,
            "tokens/s/device",
            f"{summary.world_size} devices",
        ),
        (
            "speed",
            summary.tflops_per_device,
            "TFLOP/s/device",
            f"convention {summary.tflops_convention or 'none'}",
        ),
        ("waiting for data", _percent(summary.data_wait_share), "% of step time", ""),
        ("first loss", summary.first_loss, "nat/token", ""),
        ("last loss", summary.last_loss, "nat/token", f"lowest {lowest}"),
        ("fall of the loss", _percent(summary.relative_fall), "% of the first", ""),
        ("validation loss", summary.validation_loss, "nat/token", "last evaluation"),
        (
            "spikes",
            len(summary.spikes),
            "",
            ", ".join(str(spike.since) for spike in summary.spikes),
        ),
        ("skipped steps", summary.skipped, "", ""),
        ("NaN steps", summary.nan, "", ""),
        ("largest gradient norm", summary.largest_grad_norm, "", "before clipping"),
        ("memory", summary.memory_bytes or None, "B", memory),
    )
    rows = [
        {
            "what": what,
            "value": value,
            "unit": unit,
            "remark": remark,
            "source": lines.get(what, whole),
        }
        for what, value, unit, remark in numbers
    ]
    return Table(rows, title, (WARM_UP_RULE,), source="metrics.jsonl")


def _lines(history: History) -> dict[str, str]:
    """File and lines of each number: those of one step, or from the first to the last."""
    path = history.source
    steps = history.steps
    found = {
        "all": f"{path}:{steps[0].line}-{steps[-1].line}",
        "validation loss": "validation.jsonl",
    }
    with_loss = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    if with_loss:
        found |= {
            "first loss": _line_of(history, with_loss[0]),
            "last loss": _line_of(history, with_loss[-1]),
        }
    with_norm = [
        step for step in steps if step.grad_norm is not None and math.isfinite(step.grad_norm)
    ]
    if with_norm:
        found["largest gradient norm"] = _line_of(
            history, max(with_norm, key=lambda step: step.grad_norm or 0.0)
        )
    return found


def _line_of(history: History, step: Step) -> str:
    return f"{history.source}:{step.line}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def plan_versus_actual(planned: Numbers, actual: Numbers, remarks: Mapping[str, str] = {}) -> Table:
    """Each number the plan gave beside what came true.

    A name that only one of them holds is shown with the other side empty, so that nothing silently drops out.

    >>> plan_versus_actual({"step (s)": 2.0, "memory (B)": 5}, {"step (s)": 2.5}).rows[0]
    {'what': 'step (s)', 'planned': 2.0, 'actual': 2.5, 'ratio': 1.25, 'remark': ''}
    """
    rows = []
    for what in dict.fromkeys((*planned, *actual)):
        plan = planned.get(what)
        real = actual.get(what)
        ratio = real / plan if plan and real is not None else None
        remark = remarks.get(what) or (
            "not measured" if real is None else "not planned" if plan is None else ""
        )
        rows.append(
            {"what": what, "planned": plan, "actual": real, "ratio": ratio, "remark": remark}
        )
    return Table(rows, "Plan versus actual", source="plan.json, metrics.jsonl, events.jsonl")


def planned_numbers(plan: Plan, phase: str) -> dict[str, float | None]:
    """All that plan.json promises of a phase, under the names of `actual_numbers`."""
    spec = plan.phases[phase]
    time = plan.time[phase]
    memory = plan.memory[phase]
    least = memory.least_bytes or 0  # of a node where the processes of one share it, as on a CPU
    return {
        "iterations": spec.duration.iterations,
        "processes": spec.parallel.world_size,
        "global batch (sequences)": spec.batch.global_,
        "tokens consumed (tokens)": spec.duration.tokens,
        "step time (s/iteration)": time.seconds_per_iteration,
        "throughput (tokens/s)": time.tokens_per_second,
        "speed (TFLOP/s/device)": time.tflops_per_device,
        "first loss (nat/token)": math.log(spec.model.vocabulary),
        "memory of a process (B)": least
        / (spec.parallel.world_size if memory.limit_of == "node" else 1)
        or None,
        "wall time (s)": time.seconds,
    }


def actual_numbers(summary: Summary, account: WallTime | None = None) -> dict[str, float | None]:
    """What came true, under names with units: the right-hand side of `plan_versus_actual`."""
    wall_time = {"wall time (s)": account.wall_seconds} if account is not None else {}
    return {
        "iterations": summary.last_iteration,
        "processes": summary.world_size,
        "global batch (sequences)": summary.global_batch,
        "tokens consumed (tokens)": summary.consumed_tokens,
        "step time (s/iteration)": summary.seconds_per_iteration,
        "throughput (tokens/s)": summary.tokens_per_second,
        "speed (TFLOP/s/device)": summary.tflops_per_device,
        "first loss (nat/token)": summary.first_loss,
        "memory of a process (B)": summary.memory_bytes or None,
        **wall_time,
    }


def speed_table(
    summary: Summary, shape: Shape, *, device: str, precision: str, peak: float | None
) -> Table:
    """The same speed as TFLOP/s in every convention, with MFU or HFU where the device's peak is known."""
    rows = []
    for name, convention in CONVENTIONS.items():
        value = None
        if summary.samples_per_second and summary.world_size:
            value = tflops_per_device(shape, summary.samples_per_second, summary.world_size, name)
        share = 100 * value / peak if value is not None and peak else None
        hardware = convention.kind == "hardware"
        own = summary.tflops_per_device if name == summary.tflops_convention else None
        rows.append(
            {
                "convention": name,
                "counts": "recomputed work too" if hardware else "the model's work",
                "formula": convention.formula,
                "speed (TFLOP/s/device)": value,
                "speed (TFLOP/s, all devices)": value * summary.world_size
                if value is not None
                else None,
                "MFU (%)": None if hardware else share,
                "HFU (%)": share if hardware else None,
                "printed by the trainer (TFLOP/s/device)": own,
            }
        )
    notes = _peak_note(peak, device, precision)
    return Table(rows, "One speed in every convention", notes, source=f"metrics.jsonl, {PEAKS}")


def _peak_note(peak: float | None, device: str, precision: str) -> tuple[str, ...]:
    if peak is None:
        return (
            f"no datasheet peak is known for {device} in {precision}: no MFU is given, none is guessed",
        )
    return (f"peak of {device} in {precision}: {peak:g} TFLOP/s, dense",)


def published_table(
    summary: Summary, *, parameters: int, device: str, precision: str, peak: float | None
) -> Table:
    """This run first, then the published results most like it.

    Speeds are compared in tokens/s/device, and only where device and size allow it; a row that cannot be compared is
    context, and says why.
    """
    speed = summary.tokens_per_second_per_device
    length = summary.sequence_length
    known = CONVENTIONS.get(summary.tflops_convention)
    if summary.tflops_per_device is not None and peak:
        share = 100 * summary.tflops_per_device / peak
    else:
        share = None
    own = Published(
        model="this run",
        parameters=parameters,
        accelerator=device,
        devices=str(summary.world_size),
        precision=precision,
        sequence_length=length,
        tokens_per_second_per_device=speed,
        tflops_per_device=summary.tflops_per_device,
        mfu_percent=share if known and known.kind == "model" else None,
        hfu_percent=share if known and known.kind == "hardware" else None,
        convention=summary.tflops_convention or "none",
    )
    rows = [_published_row(own, None, "", "metrics.jsonl")]
    for one in nearest(parameters, device=device, precision=precision, sequence_length=length):
        reason = why_not_comparable(one, parameters, device)
        theirs = one.tokens_per_second_per_device
        ratio = speed / theirs if not reason and speed and theirs else None
        source = f"{one.source} ({one.date}; {one.confidence}; {RESULTS} line {one.line})"
        rows.append(_published_row(one, ratio, reason or "yes", source))
    notes = _peak_note(peak, device, precision)
    source = f"metrics.jsonl, {RESULTS}, {PEAKS}"
    return Table(rows, "This run and the nearest published results", notes, source=source)


def _published_row(one: Published, ratio: float | None, comparable: str, source: str) -> Row:
    return {
        "model": one.model,
        "parameters": show_count(one.parameters) if one.parameters else "not stated",
        "device": one.accelerator,
        "devices": one.devices,
        "precision": one.precision,
        "sequence (tokens)": one.sequence_length,
        "speed (tokens/s/device)": one.tokens_per_second_per_device,
        "this run / published": ratio,
        "speed (TFLOP/s/device)": one.tflops_per_device,
        "convention": one.convention,
        "MFU (%)": one.mfu_percent,
        "HFU (%)": one.hfu_percent,
        "comparable": comparable,
        "source": source,
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


def loss_table(
    history: History, validation: Sequence[ValidationLoss] = (), *, vocabulary: int = 0
) -> Table:
    """What a person reads off the loss curve: where it begins and ends, its lowest point, restarts, alarms."""
    rows: list[Row] = []

    def add(
        what: str, iteration: int | None, loss: float | None, remark: str, source: str = ""
    ) -> None:
        step = steps.get(iteration or 0)
        source = source or (_line_of(history, step) if step else history.source)
        row = {
            "what": what,
            "iteration": iteration,
            "loss (nat/token)": loss,
            "remark": remark,
            "source": source,
        }
        rows.append(row)

    steps = {step.iteration: step for step in history.steps}
    losses = history.losses
    if vocabulary:
        add("ln(vocabulary)", None, math.log(vocabulary), "an untrained model", "plan.json")
    if losses:
        add("first", *losses[0], "")
        add("lowest", *min(losses, key=lambda one: one[1]), "")
        add("last", *losses[-1], "")
    for first in history.restarts:
        add(
            "restart", first, steps[first].loss if first in steps else None, "first step of the job"
        )
    for alarm in find_alarms(history.steps):
        add(
            alarm.kind, alarm.since, alarm.value if alarm.metric == "loss" else None, alarm.evidence
        )
    without = [
        step.iteration
        for step in history.steps
        if step.loss is None or not math.isfinite(step.loss)
    ]
    if without:
        add("no loss", without[0], None, f"{len(without)} steps")
    if validation:
        last = validation[-1]
        add(
            "validation",
            last.iteration,
            last.loss,
            f"{len(validation)} evaluations",
            "validation.jsonl",
        )
    return Table(rows, "Loss in numbers", source=history.source)


def throughput_table(
    history: History, *, sequence_length: int, planned: float | None = None
) -> Table:
    """Speed of each segment: a slope or a slow restart shows as a row that differs."""
    rows = []
    for steps in by_segment(measured(history)):
        rates = [step.global_batch * sequence_length / step.seconds for step in steps]
        middle = statistics.median(rates)
        rows.append(
            {
                "segment": steps[0].segment,
                "iterations": f"{steps[0].iteration} to {steps[-1].iteration}",
                "throughput (tokens/s)": middle,
                "slowest step (tokens/s)": min(rates),
                "fastest step (tokens/s)": max(rates),
                "of the plan (%)": 100 * middle / planned if planned else None,
                "source": f"{history.source}:{steps[0].line}-{steps[-1].line}",
            }
        )
    return Table(rows, "Throughput in numbers", ("medians after warm-up",), source=history.source)


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

    def tflops(self, convention: str) -> float | None:
        """TFLOP/s per device; None where it was not measured."""
        if self.samples_per_second is None:
            return None
        return tflops_per_device(
            self.shape, self.samples_per_second, self.parallel.world_size, convention
        )


def results_table(
    rows: Sequence[ThroughputRow], *, device: str, precision: str, source: str
) -> Table:
    """The LUMI document's table for any runs: its columns, from samples/s, and the verdict of a row."""
    peak = peak_tflops(device, precision)
    shown = []
    for row in rows:
        tflops = row.tflops(row.convention)
        model = row.tflops(OURS)
        cut = row.parallel
        refused = f"refused by the plan: {row.refused}" if row.refused else ""
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
    hardware = any(CONVENTIONS[name].kind == "hardware" for name in conventions)
    counted = " (recomputed work counted: % of peak is HFU)" if hardware else ""
    notes = (
        f"TFLOP/s in the convention {' or '.join(conventions)}{counted}; MFU in the convention {OURS}",
        f"peak of {device} in {precision}: " + (f"{peak:g} TFLOP/s" if peak else "not known"),
    )
    return Table(shown, "Training throughput", notes, source=source)


def scaling_table(
    points: Sequence[tuple[str, int, float]], *, source: str = "metrics.jsonl of each run"
) -> Table:
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
