"""Tables about runs: results, published results, variants, scaling."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from runbook.core import quantities
from runbook.core.table import Row, Table
from runbook.core.units import show_bytes, show_count
from runbook.plan_file.schema import Layout, ModelShape
from runbook.planning.cost.flops import CONVENTIONS, OURS, tflops_per_device
from runbook.results.history import History, Step, ValidationLoss, by_segment
from runbook.results.messages import ResultMessage
from runbook.results.metrics import WARM_UP_RULE, Summary, find_alarms, measured
from runbook.results.published_results import (
    PEAKS,
    RESULTS,
    THIS_RUN,
    Published,
    nearest,
    peak_tflops,
    same_device,
)


@dataclass(frozen=True)
class _Number:
    """A row in the results table."""

    what: str
    value: float | None
    unit: str = ""
    remark: str = ""


def numbers_table(
    summary: Summary, *, title: str = "Numbers of this run", history: History | None = None
) -> Table:
    """Return a table with the measured values.

    Each value has a unit, a remark and the lines it comes from.
    """
    lines = _lines(history) if history is not None and history.steps else {}
    all_lines = lines.get("all", "metrics.jsonl")
    rows = []
    for number in (*_speed_numbers(summary), *_loss_numbers(summary), *_other_numbers(summary)):
        rows.append(
            {
                "what": number.what,
                "value": number.value,
                "unit": number.unit,
                "remark": number.remark,
                "source": lines.get(number.what, all_lines),
            }
        )

    return Table(rows, title, (WARM_UP_RULE,), source="metrics.jsonl")


def _speed_numbers(summary: Summary) -> list[_Number]:
    span = f"{summary.first_iteration} to {summary.last_iteration}"
    repeated = f"{summary.repeated_iterations} iterations run twice"
    spread = "no step was timed"
    if summary.seconds_low is not None and summary.seconds_high is not None:
        between = f"{summary.seconds_low:.3g} to {summary.seconds_high:.3g} s"
        spread = f"median of {summary.measured_iterations}, 80 % in {between}"

    samples_formula = "global batch / median step time"
    tokens_formula = (
        f"global batch {summary.global_batch} x {summary.sequence_length} tokens / median step time"
    )
    devices = f"{summary.world_size} devices"
    convention = f"convention {summary.tflops_convention or 'none'}"
    tokens_per_device = summary.tokens_per_second_per_device
    return [
        _Number("iterations", summary.iterations, "", span),
        _Number("segments", summary.segments, "", repeated),
        _Number("step time", summary.seconds_per_iteration, "s/iteration", spread),
        _Number("throughput", summary.samples_per_second, "samples/s", samples_formula),
        _Number("throughput", summary.tokens_per_second, "tokens/s", tokens_formula),
        _Number("throughput", tokens_per_device, "tokens/s/device", devices),
        _Number("speed", summary.tflops_per_device, "TFLOP/s/device", convention),
        _Number(quantities.WAITING_FOR_DATA, _percent(summary.data_wait_share), "% of step time"),
    ]


def _loss_numbers(summary: Summary) -> list[_Number]:
    if summary.lowest_loss is None:
        lowest = "not known"
    else:
        lowest = f"{summary.lowest_loss:.4g}"

    return [
        _Number("first loss", summary.first_loss, "nat/token"),
        _Number("last loss", summary.last_loss, "nat/token", f"lowest {lowest}"),
        _Number("fall of the loss", _percent(summary.relative_fall), "% of the first"),
        _Number("validation loss", summary.validation_loss, "nat/token", "last evaluation"),
    ]


def _other_numbers(summary: Summary) -> list[_Number]:
    spike_iterations = ", ".join(str(spike.since) for spike in summary.spikes)
    memory = show_bytes(summary.memory_bytes) + " at most on the last rank"
    return [
        _Number("spikes", len(summary.spikes), "", spike_iterations),
        _Number("skipped steps", summary.skipped),
        _Number("NaN steps", summary.nan),
        _Number("largest gradient norm", summary.largest_grad_norm, "", "before clipping"),
        _Number("memory", summary.memory_bytes or None, "B", memory),
    ]


def _lines(history: History) -> dict[str, str]:
    """Return the file and lines each value comes from: one step, or all steps."""
    path = history.source
    steps = history.steps
    lines = {
        "all": f"{path}:{steps[0].line}-{steps[-1].line}",
        "validation loss": "validation.jsonl",
    }
    with_loss = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    if with_loss:
        lines["first loss"] = _line_of(history, with_loss[0])
        lines["last loss"] = _line_of(history, with_loss[-1])

    with_norm = [
        step for step in steps if step.grad_norm is not None and math.isfinite(step.grad_norm)
    ]
    if with_norm:
        largest = max(with_norm, key=lambda step: step.grad_norm or 0.0)
        lines["largest gradient norm"] = _line_of(history, largest)

    return lines


def _line_of(history: History, step: Step) -> str:
    return f"{history.source}:{step.line}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def speed_table(
    summary: Summary,
    shape: ModelShape,
    *,
    device: str,
    precision: str,
    peak: float | None,
) -> Table:
    """Return a table with TFLOP/s in every convention, and MFU or HFU if the peak is known."""
    rows = []
    for name, convention in CONVENTIONS.items():
        tflops = None
        if summary.samples_per_second and summary.world_size:
            tflops = tflops_per_device(shape, summary.samples_per_second, summary.world_size, name)
        all_devices = None if tflops is None else tflops * summary.world_size
        share = _percent_of_peak(tflops, peak)
        is_hardware = convention.kind == "hardware"
        if name == summary.tflops_convention:
            printed = summary.tflops_per_device
        else:
            printed = None

        rows.append(
            {
                "convention": name,
                "counts": "recomputed work too" if is_hardware else "the model's work",
                "formula": convention.formula,
                quantities.SPEED: tflops,
                "speed (TFLOP/s, all devices)": all_devices,
                quantities.MFU: None if is_hardware else share,
                quantities.HFU: share if is_hardware else None,
                quantities.PRINTED_SPEED: printed,
            }
        )

    notes = _peak_note(peak, device, precision)
    return Table(
        rows, "The same speed in every convention", notes, source=f"metrics.jsonl, {PEAKS}"
    )


def _percent_of_peak(tflops: float | None, peak: float | None) -> float | None:
    """Return TFLOP/s as a percentage of the device peak, or None if either is unknown."""
    if tflops is None or not peak:
        return None
    return 100 * tflops / peak


def _peak_note(peak: float | None, device: str, precision: str) -> tuple[str, ...]:
    if peak is None:
        note = ResultMessage.NO_PEAK.fill(device=device, precision=precision)
    else:
        note = ResultMessage.PEAK.fill(device=device, precision=precision, peak=peak)

    return (note,)


def published_table(
    summary: Summary,
    *,
    parameters: int,
    device: str,
    precision: str,
    peak: float | None,
) -> Table:
    """Return a table with this run, followed by the published results most similar to it.

    Speeds in tokens/s/device are compared only between runs on the same device and of similar size.
    Other rows serve as context, and say why they are not comparable.
    """
    tokens_per_second = summary.tokens_per_second_per_device
    length = summary.sequence_length
    this_run = _this_run(
        summary,
        parameters,
        device,
        precision,
        peak,
    )
    rows = [_published_row(this_run, None, "", "metrics.jsonl")]
    for result in nearest(parameters, device=device, precision=precision, sequence_length=length):
        reason = why_not_comparable(result, parameters, device)
        published_speed = result.tokens_per_second_per_device
        ratio = None
        if not reason and tokens_per_second and published_speed:
            ratio = tokens_per_second / published_speed
        table_line = f"{RESULTS} line {result.line}"
        source = f"{result.source} ({result.date}; {result.confidence}; {table_line})"
        rows.append(_published_row(result, ratio, reason or "yes", source))

    notes = _peak_note(peak, device, precision)
    source = f"metrics.jsonl, {RESULTS}, {PEAKS}"
    return Table(rows, "This run and the nearest published results", notes, source=source)


def _this_run(
    summary: Summary,
    parameters: int,
    device: str,
    precision: str,
    peak: float | None,
) -> Published:
    """Return this run in the form of a published result."""
    share = _percent_of_peak(summary.tflops_per_device, peak)
    convention = CONVENTIONS.get(summary.tflops_convention)
    kind = convention.kind if convention else None
    return Published(
        model=THIS_RUN,
        parameters=parameters,
        accelerator=device,
        devices=str(summary.world_size),
        precision=precision,
        sequence_length=summary.sequence_length,
        tokens_per_second_per_device=summary.tokens_per_second_per_device,
        tflops_per_device=summary.tflops_per_device,
        mfu_percent=share if kind == "model" else None,
        hfu_percent=share if kind == "hardware" else None,
        convention=summary.tflops_convention or "none",
    )


def _published_row(
    result: Published,
    ratio: float | None,
    comparable: str,
    source: str,
) -> Row:
    return {
        "model": result.model,
        "parameters": show_count(result.parameters) if result.parameters else "not stated",
        "device": result.accelerator,
        "devices": result.devices,
        "precision": result.precision,
        "sequence (tokens)": result.sequence_length,
        "speed (tokens/s/device)": result.tokens_per_second_per_device,
        quantities.RATIO_TO_PUBLISHED: ratio,
        quantities.SPEED: result.tflops_per_device,
        "convention": result.convention,
        quantities.MFU: result.mfu_percent,
        quantities.HFU: result.hfu_percent,
        "comparable": comparable,
        "source": source,
    }


def why_not_comparable(result: Published, parameters: int, device: str) -> str:
    """Return why a published speed cannot be compared with this run, or '' if it can.

    >>> result = nearest(125e6, device="A100-80GB")[0]
    >>> why_not_comparable(result, 124_000_000, "A100-80GB")
    ''
    >>> why_not_comparable(result, 124_000_000, "cpu")
    'no: this run used a CPU, shown as context only'
    """
    if device.lower() == "cpu":
        return ResultMessage.CONTEXT_ONLY.fill()
    if not same_device(device, result.accelerator):
        return ResultMessage.OTHER_DEVICE.fill(published_device=result.accelerator, device=device)
    if not result.parameters or not 0.8 <= result.parameters / parameters <= 1.25:
        return ResultMessage.OTHER_SIZE.fill()
    return ""


def loss_table(
    history: History, validation: Sequence[ValidationLoss] = (), *, vocabulary: int = 0
) -> Table:
    """Return a table with facts about the loss curve: ends, lowest point, restarts and alarms."""
    rows = []
    if vocabulary:
        first_loss = math.log(vocabulary)
        rows.append(
            _loss_row(
                "ln(vocabulary)",
                None,
                first_loss,
                "an untrained model",
                "plan.json",
            )
        )

    rows += _curve_rows(history, validation)
    if validation:
        last = validation[-1]
        remark = f"{len(validation)} evaluations"
        row = _loss_row(
            "validation",
            last.iteration,
            last.loss,
            remark,
            "validation.jsonl",
        )
        rows.append(row)

    return Table(rows, "Loss in numbers", source=history.source)


def _loss_row(
    name: str,
    iteration: int | None,
    loss: float | None,
    remark: str,
    source: str,
) -> Row:
    return {
        "what": name,
        "iteration": iteration,
        "loss (nat/token)": loss,
        "remark": remark,
        "source": source,
    }


def _curve_rows(history: History, validation: Sequence[ValidationLoss]) -> list[Row]:
    """Return the rows about single steps, each with the line number in metrics.jsonl."""
    steps = {step.iteration: step for step in history.steps}
    rows: list[Row] = []

    def add(
        name: str,
        iteration: int,
        loss: float | None,
        remark: str,
    ) -> None:
        step = steps.get(iteration)
        source = _line_of(history, step) if step else history.source
        rows.append(
            _loss_row(
                name,
                iteration,
                loss,
                remark,
                source,
            )
        )

    losses = history.losses
    if losses:
        add("first", *losses[0], "")
        add("lowest", *min(losses, key=lambda point: point[1]), "")
        add("last", *losses[-1], "")

    for iteration in history.restarts:
        restarted = steps.get(iteration)
        add("restart", iteration, restarted.loss if restarted else None, "first step of the job")

    for alarm in find_alarms(history.steps, validation, history.alarm_settings):
        loss = alarm.value if alarm.metric == "loss" else None
        add(alarm.kind, alarm.since, loss, alarm.evidence)

    with_loss = {iteration for iteration, _ in losses}
    without_loss = [iteration for iteration in steps if iteration not in with_loss]
    if without_loss:
        add("no loss", without_loss[0], None, f"{len(without_loss)} steps")
    return rows


def throughput_table(
    history: History, *, sequence_length: int, planned: float | None = None
) -> Table:
    """Return a table with the speed in each segment, to show slowdowns and slow restarts."""
    rows = []
    for steps in by_segment(measured(history)):
        first = steps[0]
        last = steps[-1]
        rates = [step.global_batch * sequence_length / step.seconds for step in steps]
        median_rate = statistics.median(rates)
        rows.append(
            {
                "segment": first.segment,
                "iterations": f"{first.iteration} to {last.iteration}",
                quantities.THROUGHPUT: median_rate,
                "slowest step (tokens/s)": min(rates),
                "fastest step (tokens/s)": max(rates),
                quantities.PERCENT_OF_PLAN: 100 * median_rate / planned if planned else None,
                "source": f"{history.source}:{first.line}-{last.line}",
            }
        )

    return Table(rows, "Throughput in numbers", ("medians after warm-up",), source=history.source)


LUMI_CONVENTION = "megatron-deepspeed-f4"
"""FLOP formula used in the log from LUMI.

The script for LUMI recomputes activations, and the log counts the forward pass twice, so it
contains hardware FLOP/s, not model FLOP/s.
"""
KEPT_CONVENTION = "megatron-deepspeed-f3"
"""Formula the same program uses in the log if nothing is recomputed."""


@dataclass(frozen=True)
class ThroughputRow:
    """A run or variant, as a row of the table in the LUMI document."""

    model: str
    shape: ModelShape
    """The model, with the vocabulary padded for the tensor-parallel size in this layout."""
    parallel: Layout
    devices_per_node: int
    recompute: str = "full"
    samples_per_second: float | None = None
    name: str = field(default="", compare=False)
    """Name of the run or variant."""
    refused: str = ""
    """The reason why the plan rejects this layout; empty if it does not."""
    unfinished: str = ""
    """How far the training came if it did not reach its last iteration; empty if it did."""
    source: str = field(default="", compare=False)
    """File and line the samples/s were read from."""

    @property
    def convention(self) -> str:
        """Return the name of the FLOP formula used for the column T (TFLOP/s per device)."""
        if self.recompute == "none":
            return KEPT_CONVENTION
        return LUMI_CONVENTION

    def tflops(self, convention: str) -> float | None:
        """Return the TFLOP/s per device, or None if they were not measured."""
        if self.samples_per_second is None:
            return None
        return tflops_per_device(
            self.shape, self.samples_per_second, self.parallel.world_size, convention
        )


def results_table(
    rows: Sequence[ThroughputRow],
    *,
    device: str,
    precision: str,
    source: str,
) -> Table:
    """Return the table from the LUMI document for any runs, computed from samples/s."""
    peak = peak_tflops(device, precision)
    table_rows = [_results_row(row, peak, source) for row in rows]
    conventions = sorted({row.convention for row in rows} or {LUMI_CONVENTION})
    is_hardware = any(CONVENTIONS[name].kind == "hardware" for name in conventions)
    recomputed = ""
    if is_hardware:
        recomputed = " (with recomputed work: % of peak is HFU)"
    peak_text = f"{peak:g} TFLOP/s" if peak else "not known"
    notes = (
        f"TFLOP/s in the convention {' or '.join(conventions)}{recomputed}; "
        f"MFU in the convention {OURS}",
        f"peak of {device} in {precision}: {peak_text}",
    )
    return Table(table_rows, "Training throughput", notes, source=source)


SAMPLES_PER_SECOND = "T (samples/s)"
TFLOPS_PER_DEVICE = "T (TFLOP/s per device)"
"""A column in the original table in the LUMI document."""
NEVER_MEASURED = "never measured"
"""Verdict on a run without a measured speed."""


def _results_row(row: ThroughputRow, peak: float | None, source: str) -> Row:
    tflops = row.tflops(row.convention)
    layout = row.parallel
    devices_per_node = row.devices_per_node or layout.world_size
    nodes = -(-layout.world_size // devices_per_node)
    if row.refused:
        verdict = f"refused by the plan: {row.refused}"
    elif tflops is None:
        verdict = NEVER_MEASURED
    elif row.unfinished:
        verdict = ResultMessage.NOT_FINISHED.fill(progress=row.unfinished)
    else:
        verdict = "ok"

    return {
        "Model Size": row.model,
        "Nodes": nodes,
        "PP": layout.pipeline,
        "TP": layout.tensor,
        "DP": layout.data * layout.context,
        "Zero Stage": layout.zero_stage,
        SAMPLES_PER_SECOND: row.samples_per_second,
        TFLOPS_PER_DEVICE: tflops,
        quantities.PERCENT_OF_PEAK: _percent_of_peak(tflops, peak),
        quantities.MFU: _percent_of_peak(row.tflops(OURS), peak),
        "verdict": verdict,
        "run": row.name,
        "source": row.source or source,
    }


def scaling_table(
    points: Sequence[tuple[str, int, float]], *, source: str = "metrics.jsonl of each run"
) -> Table:
    """Return a table with the scaling efficiency at each point (label, devices, samples/s).

    Efficiency is samples/s/device divided by the samples/s/device with the fewest devices.

    >>> table = scaling_table([("1 node", 8, 2.686), ("2 nodes", 16, 4.711)])
    >>> round(table.rows[1]["efficiency (%)"], 1)
    87.7
    """
    if not points:
        return Table((), "Scaling", (ResultMessage.NO_POINT.fill(),), source=source)
    ordered = sorted(points, key=lambda point: point[1])
    base_label, base_devices, base_speed = ordered[0]
    base_speed_per_device = base_speed / base_devices
    rows = []
    for label, devices, speed in ordered:
        speed_per_device = speed / devices
        rows.append(
            {
                "run": label,
                "devices": devices,
                "speed (samples/s)": speed,
                "speed (samples/s/device)": speed_per_device,
                "speed-up": speed / base_speed,
                "ideal speed-up": devices / base_devices,
                "efficiency (%)": 100 * speed / devices / base_speed_per_device,
            }
        )

    note = f"relative to {base_label} with {base_devices} devices"
    return Table(rows, "Scaling", (note,), source=source)
