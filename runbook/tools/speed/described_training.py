"""Converts facts about a training run to input for the step model."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from runbook.params.schema.entries import Model
from runbook.plan_file.schema import ModelShape
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.flops import flops
from runbook.planning.cost.iteration import StepSetup, known
from runbook.planning.sizes import shape_of
from runbook.tools.speed.facts import NUMBERS, OFF, Facts
from runbook.tools.speed.predict import AssumedValue, assumed_batch, setup_of, shape_for
from runbook.tools.speed.published_rows import PublishedRow, billions_in, read_row

_SAME_SIZE = (0.75, 1.33)
"""Limits on the ratio of parameter counts, table to run.

Within these limits, the model in the table and the one in the run count as the same.
"""


class DescribedTraining(NamedTuple):
    """A training run as input for the step model."""

    setup: StepSetup
    table_shape: ModelShape | None
    """The model in the table that the expectation is based on, if another one is trained."""
    assumed: list[str]


def described_training(facts: Facts, models: Mapping[str, Model]) -> DescribedTraining | str:
    """Return the training run that the facts describe, or why no expected speed can be computed."""
    if "accelerator" not in facts:
        return "without the accelerator's name, no expectation is possible: no peak is guessed"
    numbers = {key: float(facts.get(key) or 0) for key in NUMBERS}
    switched_off = {key for key, value in facts.items() if value.lower() in OFF}
    # A transformer has about 12 x layers x hidden^2 parameters.
    counted_billions = 12e-9 * numbers["layers"] * numbers["hidden"] ** 2
    billions = counted_billions or billions_in(facts.get("model", ""))
    row = read_row(1, _cells(facts, numbers, switched_off, billions))
    row_setup = setup_of(row, models)
    if isinstance(row_setup, str):
        return row_setup
    reason = known(row_setup.setup.device, row_setup.setup.precision)
    if reason:
        return reason
    setup = _with_options(row_setup.setup, facts, numbers, switched_off)
    table_shape = None
    if numbers["experts"] <= 1:
        table_billions = billions_in(facts.get("expected.model", ""))
        if _differs(table_billions, billions):
            table_row = replace(row, model=facts.get("expected.model", ""), billions=table_billions)
            table_shape = _table_shape(table_row, setup, models)

    assumed = []
    for assumption in row_setup.assumed:
        if assumption.value is AssumedValue.GLOBAL_BATCH:
            assumption = assumed_batch(setup.global_batch)
        assumed.append(assumption.text)

    return DescribedTraining(setup, table_shape, [*assumed, *row.unknown])


def _cells(
    facts: Facts,
    numbers: Mapping[str, float],
    switched_off: set[str],
    billions: float,
) -> dict[str, str]:
    """Return the facts as a row with the columns of published_results.csv."""
    replicas = numbers["dp"] * (numbers["tp"] or 1) * (numbers["pp"] or 1)
    cells = {"n_accel": f"{replicas:.0f}"}
    cells |= facts
    cells["params_b"] = f"{billions:.6f}"
    cells["flash"] = "no" if "flash" in switched_off else "yes"
    if "recompute" in switched_off:
        cells["recompute"] = "none"
    if numbers["layers"]:
        if facts.get("activation") == "swiglu":
            cells["model"] = "llama"
        else:
            cells["model"] = "gpt"

    if "precision" not in facts:
        cells["precision"] = _usual_precision(facts["accelerator"])
    if "weights" in switched_off:
        cells["code"] = "eager"
    if numbers["experts"] > 1:
        # A token is computed only by the experts that it is routed to.
        ffn_width = numbers["ffn"] or 4 * numbers["hidden"]
        experts_per_token = numbers["experts_a_token"] or 2
        cells["ffn"] = f"{ffn_width * experts_per_token:.0f}"
        # The row then describes a dense model that computes as much.
        cells["experts"] = "1"

    return cells


def _usual_precision(accelerator: str) -> str:
    """Return the default precision on a device: bf16, or fp16 if the device has no bf16."""
    device = find_accelerator(accelerator)
    return "bf16" if device is None or "bf16" in device.peaks else "fp16"


def _with_options(
    setup: StepSetup,
    facts: Facts,
    numbers: Mapping[str, float],
    switched_off: set[str],
) -> StepSetup:
    """Return the setup with the options that published results have no column for."""
    layout = setup.layout
    shows_gradients = "overlap_gradients" in switched_off and layout.zero_stage < 2
    global_batch = setup.global_batch
    if "global_batch" not in facts:
        # An assumed batch must be divisible by every micro-batch and every layout of these devices.
        sequences_per_device = max(1.0, global_batch / layout.world_size)
        global_batch = 2 ** round(math.log2(sequences_per_device)) * layout.world_size

    stated_layout = replace(
        layout,
        virtual_pipeline=int(numbers["vp"] or 1),
        sequence=layout.sequence and "sequence" not in switched_off,
    )
    return replace(
        setup,
        layout=stated_layout,
        shown_data=1.0 if shows_gradients else 0.0,
        global_batch=global_batch,
    )


def _differs(table_billions: float, billions: float) -> bool:
    """Return whether the table has a model size, and it differs from that of the run."""
    if not table_billions or not billions:
        return False
    smaller, larger = _SAME_SIZE
    return not smaller < table_billions / billions < larger


def _table_shape(
    table_row: PublishedRow, setup: StepSetup, models: Mapping[str, Model]
) -> ModelShape:
    """Return the model shape in the table, but with the sequence length used in the run."""
    model, _ = shape_for(table_row, models)
    return shape_of(model, sequence_length=setup.shape.sequence_length)


def operations(setup: StepSetup) -> float:
    """Return the floating-point operations per step on all devices (convention: megatron-full)."""
    sequences = setup.num_microbatches * setup.micro_batch * setup.layout.data
    return flops(setup.shape, sequences)


def stated_seconds(setup: StepSetup, facts: Facts, prefix: str) -> dict[str, float]:
    """Return the seconds per step for each speed that was given as `expected` or as `reached`.

    A figure above twice a device's peak is treated as the sum over all devices.
    """
    seconds = {}
    step_seconds = float(facts.get(f"{prefix}.seconds") or 0)
    if step_seconds:
        seconds["seconds"] = step_seconds
    peak_tflops = setup.device.peaks["fp8" if setup.precision == "fp8" else "fp16"]
    tflop_per_token = flops(setup.shape, 1) / setup.shape.sequence_length / 1e12
    tflops_per_unit = {
        "tokens_per_second": tflop_per_token,
        "tflops": 1.0,
        "mfu": peak_tflops / 100,
    }
    for unit, factor in tflops_per_unit.items():
        tflops = float(facts.get(f"{prefix}.{unit}") or 0) * factor
        if not tflops:
            continue
        seconds[unit] = operations(setup) / tflops / 1e12
        is_total = tflops > 2 * peak_tflops
        if not is_total:
            seconds[unit] /= setup.layout.world_size

    return seconds
