"""Predicts the speed of a training run that a table row describes.

Documented rules fill in the shape, the layout and other missing values.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from runbook.core.errors import ParamsError
from runbook.core.units import four_digits
from runbook.params.schema.entries import Model, with_shape
from runbook.plan_file.schema import Layout, ModelShape
from runbook.planning import sizes
from runbook.planning.cost import flops
from runbook.planning.cost.accelerators import Accelerator, find_accelerator
from runbook.planning.cost.iteration import CALIBRATED, StepSetup, iteration, known
from runbook.planning.cost.measured_steps import Correction
from runbook.tools.speed.intervals import half_width
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.published_rows import NEEDED, PublishedRow, read_row

SHAPE_TOLERANCE = 0.08
"""Largest relative difference allowed between the parameter counts in the catalogue and the row."""
MICRO_TOKENS = 16384
"""Largest micro-batch, in tokens, assumed if the size is not given and there is no pipeline."""
TUNED_MICRO_TOKENS = 8192
"""Largest micro-batch, in tokens, assumed for vendor recipes without tensor parallelism.

NeMo recipes from 2024 and 2025 use at most this many on H100.
"""
PIPELINE_MICRO_TOKENS = 2048
"""Largest micro-batch, in tokens, assumed with a pipeline.

A micro-batch with a single sequence may be longer.
"""
DEFAULT_SEQUENCE = 2048
ASSUMED_DEVICES = 64
"""Device count assumed if a row does not state one."""
_BATCH_TOKENS = (
    (2, 0.5e6),
    (10, 1e6),
    (60, 2e6),
    (300, 4e6),
)
"""Assumed tokens per global batch, as rows of a limit and this number.

A row applies to models with fewer billion parameters than its limit.
"""
_LARGEST_BATCH_TOKENS = 16e6
VOCABULARY_TOLERANCE = 0.02
"""Largest relative difference between a padded vocabulary and the stated one."""
WIDEST = 256
"""Largest ratio of hidden size to layers, for a model whose name states only its size."""
_MIXTURE_OF_EXPERTS = r"\bmoe\b|mixtral|deepseek|\ba\d+b\b|gpt[- ]oss"


@dataclass(frozen=True)
class Prediction:
    """The speed predicted for a row, or the reason why it cannot be predicted."""

    row: PublishedRow
    tokens_s_per_accel: float | None
    tflops_per_accel: float | None
    reason: str
    setup: StepSetup | None = None
    shape_from: str = ""
    assumed: tuple[str, ...] = ()
    seconds_per_step: float | None = None
    correction: Correction | None = None
    """The correction from measured rows on the same system, which the speeds include."""

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Range of tokens/s/device for 80 % of similar rows (`intervals`)."""
        if self.setup is None or self.tokens_s_per_accel is None:
            return None, None
        if self.correction:
            as_planned = self.tokens_s_per_accel * self.correction.factor
            slowest = as_planned / self.correction.high
            return four_digits(slowest), four_digits(as_planned / self.correction.low)
        spread = half_width(self.setup)
        low = self.tokens_s_per_accel / (1 + spread)
        high = self.tokens_s_per_accel * (1 + spread)
        return four_digits(low), four_digits(high)

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as plain values.

        If the speed is unknown, the numbers are None and the reason is given.
        """
        low, high = self.interval
        return {
            "row": self.row.number,
            "model": self.row.model,
            "accelerator": self.row.accelerator,
            "low": low,
            "high": high,
            "tokens_s_per_accel": self.tokens_s_per_accel,
            "tflops_per_accel": self.tflops_per_accel,
            "flops_convention": self.row.convention,
            "reason": self.reason or None,
            "shape": self.shape_from or None,
            "assumed": list(self.assumed),
            "seconds_per_step": self.seconds_per_step,
            "iteration_ms": self.seconds_per_step and four_digits(1e3 * self.seconds_per_step),
            "unknown": list(self.row.unknown),
            "measurements": self.correction.measurements if self.correction else 0,
        }


def check_columns(columns: Iterable[str] | None) -> None:
    """Raise `ParamsError` unless these columns belong to a table of results."""
    names = list(columns or ())
    missing = [name for name in NEEDED if name not in names]
    if not missing:
        return
    first_line = ", ".join(names[:6]) or "nothing"
    raise ParamsError(
        SpeedMessage.COLUMNS_MISSING, missing=" and no column ".join(missing), first_line=first_line
    )


def predict_rows(
    rows: Iterable[Mapping[str, str | None]], models: Mapping[str, Model]
) -> list[Prediction]:
    """Return one prediction for each row, in order.

    The columns with the measured speed are never read.
    """
    return [predict(read_row(number, cells), models) for number, cells in enumerate(rows, 1)]


def predict(row: PublishedRow, models: Mapping[str, Model]) -> Prediction:
    """Predict the speed for one row."""
    row_setup = setup_of(row, models)
    if isinstance(row_setup, str):
        return Prediction(row, None, None, row_setup)
    setup, shape_from, assumed = row_setup
    reason = known(setup.device, setup.precision)
    if reason:
        return Prediction(row, None, None, reason)
    step = iteration(setup)
    layout = setup.layout
    sequences = setup.num_microbatches * setup.micro_batch * layout.data
    sequences_per_second = sequences / step.seconds / layout.world_size
    flop_per_second = flops.flops(setup.shape, sequences_per_second, row.convention)
    return Prediction(
        row,
        four_digits(sequences_per_second * setup.shape.sequence_length),
        four_digits(flop_per_second / 1e12),
        "",
        setup,
        shape_from,
        tuple(assumption.text for assumption in assumed),
        four_digits(step.seconds),
    )


class AssumedValue(StrEnum):
    """A value that a row does not state about the training run."""

    SEQUENCE = "sequence"
    LAYOUT = "layout"
    DEVICES = "devices"
    REPLICAS = "replicas"
    GLOBAL_BATCH = "global batch"
    DEVICE = "device"


class Assumption(NamedTuple):
    """An assumed value, and the text that names it."""

    value: AssumedValue
    text: str


def assumed_batch(global_batch: int) -> Assumption:
    """Return the assumption about a global batch."""
    return Assumption(
        AssumedValue.GLOBAL_BATCH, SpeedMessage.GLOBAL_BATCH.fill(sequences=global_batch)
    )


class RowSetup(NamedTuple):
    """A row as input for the step model."""

    setup: StepSetup
    shape_from: str
    """Where the model shape comes from."""
    assumed: tuple[Assumption, ...]


def setup_of(row: PublishedRow, models: Mapping[str, Model]) -> RowSetup | str:
    """Return all input for the step model, or the reason why there can be no prediction."""
    device = find_accelerator(row.accelerator)
    if device is None:
        return SpeedMessage.UNKNOWN_ACCELERATOR.fill(accelerator=row.accelerator)
    if not row.precision:
        return "4-bit floating point has no calibration here"
    if row.experts > 1 or re.search(_MIXTURE_OF_EXPERTS, row.model, re.IGNORECASE):
        return f"{row.model} is a mixture of experts, which this step model does not cover"

    row = _with_billions(row, models)
    if not row.billions:
        return f"neither params_b nor the name {row.model!r} states the size of the model"
    assumed: list[Assumption] = []
    model, shape_from = shape_for(row, models)
    if row.sizes["layers"] and row.sizes["hidden"]:
        model = _with_stated_parameters(with_shape(model, row.sizes), row)
        shape_from = SpeedMessage.COLUMNS_OF_TABLE.fill()

    setup = _assumed_setup(row, model, device, assumed)
    for note in _device_notes(row, setup.device):
        assumed.append(Assumption(AssumedValue.DEVICE, note))

    return RowSetup(setup, shape_from, tuple(assumed))


def _with_stated_parameters(model: Model, row: PublishedRow) -> Model:
    """Return the model, with a gated feed-forward block or an untied head if its size implies that.

    No column states these two properties, but they follow from the layers, widths, vocabulary and
    parameter count.
    """
    parameters = row.billions * 1e9
    length = row.sequence_length
    if _size_error(model, length, parameters) <= SHAPE_TOLERANCE:
        return model
    kinds = [model]
    for activation in ("gelu", "swiglu"):
        for is_tied in (True, False):
            kind = {"activation": activation, "tied_embeddings": is_tied}
            kinds.append(model.model_copy(update=kind))

    nearest = min(kinds, key=lambda kind: _size_error(kind, length, parameters))
    return nearest if _size_error(nearest, length, parameters) <= SHAPE_TOLERANCE else model


def _with_billions(row: PublishedRow, models: Mapping[str, Model]) -> PublishedRow:
    """Return the row with a parameter count, if the model name or the other columns imply one.

    If the catalogue lacks the name, the count is that for a GPT with these layers and hidden units.
    """
    if row.billions:
        return row
    name = _catalogue_name(row.model, models)
    if name:
        return replace(row, billions=_parameter_count(models[name]) / 1e9)
    return replace(row, billions=12e-9 * row.sizes["layers"] * row.sizes["hidden"] ** 2)


def _catalogue_name(text: str, models: Mapping[str, Model]) -> str:
    """Return the longest catalogue name that a model name contains, or "".

    "Nemotron 22B" is nemotron-22b, although the catalogue also has 22b.
    """
    names = _name_words(text)
    return max((name for name in models if name in names), key=len, default="")


def _assumed_setup(
    row: PublishedRow,
    model: Model,
    device: Accelerator,
    assumed: list[Assumption],
) -> StepSetup:
    """Return the step model input for a row.

    Values that the row does not state are assumed, and added to `assumed`.
    """
    sequence_length = row.sequence_length or DEFAULT_SEQUENCE
    if not row.sequence_length:
        assumed.append(
            Assumption(AssumedValue.SEQUENCE, SpeedMessage.SEQUENCE.fill(tokens=sequence_length))
        )
    row = replace(row, recompute=row.recompute or "none")
    if row.devices_per_node:
        device = replace(device, devices_per_node=row.devices_per_node)
    layout = _assumed_layout(row, device, assumed)
    shape = sizes.shape_of(model, tensor=layout.tensor, sequence_length=sequence_length)
    shape = replace(shape, head_width=row.head_width)
    global_batch = row.global_batch
    if not global_batch:
        global_batch = _usual_batch(row, layout, sequence_length)
        assumed.append(assumed_batch(global_batch))

    if not layout.virtual_pipeline:
        layout = replace(layout, virtual_pipeline=_chunks(row, shape, layout.pipeline))

    if row.network:
        bytes_per_second = row.network * 1e9 / 8
        device = replace(device, network_bandwidth=bytes_per_second)

    setup = StepSetup(
        shape=shape,
        layout=layout,
        micro_batch=row.micro_batch or 1,
        global_batch=global_batch,
        device=device,
        precision=row.precision,
        recompute=row.recompute,
        shown_data=1.0 if row.has_no_overlap else 0.0,
        overlaps_tensor=row.overlaps_tensor,
        hides_sends=row.interleaves and layout.virtual_pipeline > 1,
        flash=row.flash,
        code=row.code,
        cuda_graphs=row.cuda_graphs,
        half_sums=row.half_sums,
        first_sharding=row.first_sharding,
        has_ddp_buckets=row.has_ddp_buckets,
        first_megatron=row.first_megatron,
        launches_block=row.launches_block,
        stops_early=row.stops_early,
        fused_loss=row.fused_loss,
        first_flash=row.first_flash,
        plain_activation=row.plain_activation,
        first_vendor_attention=row.first_vendor_attention,
        first_blackwell=(
            row.first_blackwell and row.code == "tuned" and device.family == "Blackwell"
        ),
        is_other_program=row.is_other_program,
        fp8_recipe=row.fp8_recipe,
    )
    if not row.micro_batch:
        setup = replace(setup, micro_batch=_micro_batch(setup))
    return setup


def _device_notes(row: PublishedRow, device: Accelerator) -> list[str]:
    """Return notes about the device that was chosen for the row's accelerator."""
    notes = []
    accelerator = row.accelerator.upper()
    if device.name == "MI250X-GCD" and "GCD" not in accelerator:
        notes.append(SpeedMessage.GCD.fill())
    short_name = device.name.split("-")[0]
    if not re.search(rf"(?<![A-Z0-9]){short_name}", accelerator):
        note = SpeedMessage.TAKEN_FOR.fill(planned=device.name, accelerator=row.accelerator)
        notes.append(note)
    if device.family not in CALIBRATED:
        notes.append(SpeedMessage.NOT_CALIBRATED.fill(family=device.family))

    return notes


def shape_for(row: PublishedRow, models: Mapping[str, Model]) -> tuple[Model, str]:
    """Return the model shape for a row, and where the shape comes from.

    Use the model with this name in the catalogue, or else the model nearest in size with a head
    width of 64 to 160. If its parameter count differs, hidden is scaled by the ratio of the counts
    to the power of 0.4 (rounded to a multiple of 128), and the number of layers makes up the
    remainder.
    """
    parameters = row.billions * 1e9
    length = row.sequence_length
    family = _with_vocabulary(_family(row, models), row.sizes["vocabulary"])
    fitting = {}
    for name, model in family.items():
        if _size_error(model, length, parameters) <= SHAPE_TOLERANCE:
            fitting[name] = model

    named = _catalogue_name(row.model, fitting)
    if named:
        return fitting[named], SpeedMessage.OF_CATALOGUE.fill(name=named)

    usual = {
        name: model for name, model in family.items() if 64 <= model.hidden // model.heads <= 160
    }
    candidates = usual or family

    def size_distance(name: str) -> float:
        return abs(math.log(_parameter_count(candidates[name], length) / parameters))

    nearest_name = min(candidates, key=size_distance)
    nearest = candidates[nearest_name]
    if _size_error(nearest, length, parameters) <= SHAPE_TOLERANCE / 2:
        return nearest, SpeedMessage.OF_CATALOGUE_BY_SIZE.fill(name=nearest_name)
    scaled = _scaled(nearest, parameters, row.model)
    source = SpeedMessage.OF_CATALOGUE_SCALED.fill(name=nearest_name, billions=row.billions)
    return scaled, source


def _family(row: PublishedRow, models: Mapping[str, Model]) -> Mapping[str, Model]:
    """Return the Llama models for a Llama row, otherwise the rest, or all if none are left."""
    is_llama = "llama" in row.model.lower()
    family = {}
    for name, model in models.items():
        if ("llama" in name) == is_llama:
            family[name] = model

    if not family:
        family = dict(models)
    if "gpt" in row.model.lower():
        return family
    # Test models in the catalogue have very few layers for their width. Nobody trains models with
    # these shapes in practice.
    usual = {}
    for name, model in family.items():
        if model.hidden <= WIDEST * model.layers:
            usual[name] = model

    return usual or family


def _with_vocabulary(models: Mapping[str, Model], vocabulary: int) -> Mapping[str, Model]:
    """Return the models with the stated vocabulary, or all if no model has it or no size is stated."""
    if not vocabulary:
        return models
    of_size = {}
    for name, model in models.items():
        if abs(model.vocabulary / vocabulary - 1) <= VOCABULARY_TOLERANCE:
            of_size[name] = model

    return of_size or models


def _size_error(model: Model, sequence_length: int, parameters: float) -> float:
    """Return how far a model's parameter count is from the given one, as a share of the latter."""
    return abs(_parameter_count(model, sequence_length) / parameters - 1)


def _name_words(text: str) -> set[str]:
    """Return a model name's words, and adjacent words joined by "-" (nemotron-22b, llama-3-8b)."""
    plain = text.lower()
    in_order = re.findall(r"[a-z0-9.]+", plain)
    name_words = {*in_order, *map("-".join, pairwise(in_order))}
    llama = re.search(r"llama[- ]?(\d)?(?:\.\d)?.*?(\d+(?:\.\d+)?b)", plain)
    if llama:
        version = llama[1] or "3"
        name_words.add(f"llama-{version}-{llama[2]}")

    return name_words


def _parameter_count(model: Model, sequence_length: int = 0) -> int:
    """Return the parameter count, including a learned embedding for each position."""
    if model.position_embedding == "learned":
        more_positions = model.hidden * max(0, sequence_length - model.positions)
    else:
        more_positions = 0

    count = model.parameters or sizes.whole(sizes.shape_of(model)).total
    return count + more_positions


def _scaled(model: Model, parameters: float, name: str) -> Model:
    """Return a model scaled to a parameter count.

    Layers and hidden size in the name take precedence.
    """
    ratio = parameters / _parameter_count(model)
    stated = re.search(r"(\d+) layers(?:, (\d+))?", name)
    hidden = max(128, round(model.hidden * ratio**0.4 / 128) * 128)
    if stated and stated[2]:
        hidden = int(stated[2])
    heads = max(1, hidden // 128)
    ffn_hidden = 0
    if model.ffn_hidden:
        ffn_hidden = round(model.ffn_hidden * hidden / model.hidden)
    kv_heads = 0
    if model.kv_heads:
        kv_heads = max(1, round(heads * model.kv_heads / model.heads))
    sizes_of_one_layer = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "ffn_hidden": ffn_hidden,
        "layers": 1,
    }
    one_layer = model.model_copy(update=sizes_of_one_layer)
    if stated:
        layers = int(stated[1])
    else:
        shape = sizes.shape_of(one_layer)
        layer_parameters = sizes.layer(shape)
        other_parameters = sizes.whole(shape).total - layer_parameters
        layers = max(1, round((parameters - other_parameters) / layer_parameters))

    return one_layer.model_copy(update={"layers": layers})


def _assumed_layout(row: PublishedRow, device: Accelerator, assumed: list[Assumption]) -> Layout:
    """Return the layout for a row, with complete replicas.

    Values that the row does not state are assumed, and added to `assumed`.
    """
    tensor, pipeline = _tensor_and_pipeline(row, device, assumed)
    layout = replace(
        row.layout,
        tensor=tensor,
        pipeline=pipeline,
        sequence=row.code != "unfused" and row.flash,
    )
    devices = row.layout.world_size or max(tensor * pipeline, ASSUMED_DEVICES)
    if not row.layout.world_size:
        assumed.append(Assumption(AssumedValue.DEVICES, SpeedMessage.DEVICES.fill(devices=devices)))
    replicas = layout.over(devices).data
    devices_in_use = replicas * layout.ranks_per_replica
    if devices_in_use != devices:
        text = SpeedMessage.NO_MULTIPLE.fill(devices=devices, replicas=replicas)
        assumed.append(Assumption(AssumedValue.REPLICAS, text))

    return layout.over(devices_in_use)


def _tensor_and_pipeline(
    row: PublishedRow, device: Accelerator, assumed: list[Assumption]
) -> tuple[int, int]:
    """Return the tensor and pipeline sizes.

    Sizes that are not given are the smallest that let the states fit in 60 % of the memory.
    """
    stated = row.layout
    if stated.tensor and stated.pipeline:
        return stated.tensor, stated.pipeline
    if stated.zero_stage == 3:
        return stated.tensor or 1, stated.pipeline or 1
    tensor, pipeline = _least_that_fit(row, device)
    text = SpeedMessage.LAYOUT.fill(tensor=tensor, pipeline=pipeline)
    assumed.append(Assumption(AssumedValue.LAYOUT, text))
    return tensor, pipeline


def _least_that_fit(row: PublishedRow, device: Accelerator) -> tuple[int, int]:
    """Return the smallest tensor and pipeline sizes that let a row's states fit.

    Sizes that the row states are not changed.
    """
    stated = row.layout
    tensor = stated.tensor or 1
    pipeline = stated.pipeline or 1
    devices = stated.world_size or ASSUMED_DEVICES
    is_small = row.billions < 15 or row.code == "unfused"
    usual_tensor = 4 if is_small else 8
    largest_tensor = min(usual_tensor, device.devices_per_node)
    while tensor * pipeline < devices:
        if _state_bytes(row, devices, tensor * pipeline) <= 0.6 * device.memory_bytes:
            break
        if not stated.tensor and tensor < largest_tensor:
            tensor *= 2
        elif not stated.pipeline:
            pipeline *= 2
        else:
            break

    return tensor, pipeline


def _state_bytes(row: PublishedRow, devices: int, model_parallel: int) -> float:
    """Return the bytes needed for weights, gradients and optimizer states on one device.

    A parameter takes 6 bytes for its bf16 weight and fp32 gradient, and 12 for the optimizer
    states, which ZeRO shards over the replicas.
    """
    replicas = max(1, devices // model_parallel) if row.layout.zero_stage else 1
    parameters = row.billions * 1e9 / model_parallel
    return parameters * (6 + 12 / replicas)


def _usual_batch(row: PublishedRow, layout: Layout, sequence_length: int) -> int:
    """Return the usual global batch for a model this large, in sequences."""
    tokens = _LARGEST_BATCH_TOKENS
    for billions, batch_tokens in _BATCH_TOKENS:
        if row.billions < billions:
            tokens = batch_tokens
            break

    least_per_replica = 2 * layout.pipeline if layout.pipeline > 1 else 1
    usual_per_replica = round(tokens / sequence_length / layout.data)
    return max(least_per_replica, usual_per_replica) * layout.data


def _micro_batch(setup: StepSetup) -> int:
    """Return the largest micro-batch that divides a replica's sequences.

    Without a pipeline, the limits are the memory and `MICRO_TOKENS` (`TUNED_MICRO_TOKENS` for a
    vendor's recipe without tensor parallelism); with a pipeline, the limit is
    `PIPELINE_MICRO_TOKENS`.
    """
    layout = setup.layout
    sequences_per_replica = max(1, setup.global_batch // layout.data)
    sequence_length = setup.shape.sequence_length
    if layout.pipeline > 1:
        largest = max(1, PIPELINE_MICRO_TOKENS // sequence_length)
    else:
        fitting = int(_free_bytes(setup) / _sequence_bytes(setup))
        is_recipe = setup.code == "tuned" and layout.tensor == 1
        tokens = TUNED_MICRO_TOKENS if is_recipe else MICRO_TOKENS
        within_tokens = tokens * layout.context // sequence_length
        largest = max(1, min(fitting, within_tokens))
        largest = min(largest, sequences_per_replica)

    return max(size for size in range(1, largest + 1) if sequences_per_replica % size == 0)


def _free_bytes(setup: StepSetup) -> float:
    """Return the bytes left for activations: nine tenths of a device's memory, minus the states."""
    layout = setup.layout
    parameters = sizes.whole(setup.shape).total / layout.tensor / layout.pipeline
    replicas = layout.data * layout.context
    bytes_per_parameter = (
        18.0,
        6 + 12 / replicas,
        4 + 14 / replicas,
        18 / replicas,
    )[layout.zero_stage]
    gathered = 0
    if layout.zero_stage == 3:
        gathered = 8 * sizes.layer(setup.shape, tensor=layout.tensor)
    return 0.9 * setup.device.memory_bytes - parameters * bytes_per_parameter - gathered


def _sequence_bytes(setup: StepSetup) -> float:
    """Return how many bytes the activations for one sequence take.

    The activations comprise those that each layer keeps, the working set of one layer, and the
    logits.
    """
    layout = setup.layout
    shape = setup.shape
    token_bytes = shape.sequence_length * shape.hidden / layout.context
    if setup.recompute == "full":
        per_layer = 2.0
        working = 40.0
    else:
        per_layer = 34.0 / layout.tensor
        working = 0.0

    logits = 8.0 * shape.padded_vocabulary / shape.hidden / layout.tensor
    return token_bytes * (per_layer * shape.layers / layout.pipeline + working + logits)


def _chunks(row: PublishedRow, shape: ModelShape, pipeline: int) -> int:
    """Return how many interleaved chunks a vendor recipe uses.

    The number is at least two if the code is tuned and a stage's layers can be divided.
    """
    if pipeline == 1 or not row.interleaves:
        return 1
    layers_per_stage = shape.layers // pipeline
    return max((size for size in (2, 3, 4, 5, 6) if layers_per_stage % size == 0), default=1)
