"""Speed of a training that somebody describes in a table: shape, layout and the rest filled in by stated rules."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.units import four_digits
from runbook.params.schema.entries import Model, with_shape
from runbook.plan_file.schema import Shape
from runbook.planning import sizes
from runbook.planning.cost import flops
from runbook.planning.cost.accelerators import Accelerator, find_accelerator
from runbook.planning.cost.iteration import CALIBRATED, StepSetup, iteration, known
from runbook.tools.speed.published_rows import NEEDED, PublishedRow, read_row

SHAPE_TOLERANCE = 0.08
"""A model of the catalogue is taken by name or size where its count is this close to the parameters given."""
MICRO_TOKENS = 16384
"""Tokens of a micro-batch at most, where its size is not given and there is no pipeline."""
DEFAULT_SEQUENCE = 2048
SPREAD = {"tuned": 0.10, "fused": 0.11, "eager": 0.11, "unfused": 0.12}
"""Half of the interval of 80 %, of the number, by code: what fits left over on rows that they never saw."""
WIDEST = 256
"""Units of width for each layer that a model has at most where its name does not say more than its size."""


@dataclass(frozen=True)
class Prediction:
    """What is expected of one row, or why nothing can be said."""

    row: PublishedRow
    tokens_s_per_accel: float | None
    tflops_per_accel: float | None
    reason: str
    setup: StepSetup | None = None
    shape_from: str = ""
    assumed: tuple[str, ...] = ()
    seconds_per_step: float | None = None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Tokens/s of a device between which 80 % of such rows lie; twice as wide for a family without a training."""
        if self.setup is None or self.tokens_s_per_accel is None:
            return None, None
        half = 1 + SPREAD[self.setup.code] * (1 if self.setup.device.family in CALIBRATED else 2)
        return four_digits(self.tokens_s_per_accel / half), four_digits(
            self.tokens_s_per_accel * half
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values; null where nothing can be said, with the reason."""
        return {
            "row": self.row.number,
            "model": self.row.model,
            "accelerator": self.row.accelerator,
            **dict(zip(("low", "high"), self.interval, strict=True)),
            "tokens_s_per_accel": self.tokens_s_per_accel,
            "tflops_per_accel": self.tflops_per_accel,
            "flops_convention": self.row.convention,
            "reason": self.reason or None,
            "shape": self.shape_from or None,
            "assumed": list(self.assumed),
            "seconds_per_step": self.seconds_per_step,
            "iteration_ms": self.seconds_per_step and four_digits(1e3 * self.seconds_per_step),
            "unknown": list(self.row.unknown),
        }


def check_columns(columns: Iterable[str] | None) -> None:
    """Raise `ParamsError` where a file is no table of results."""
    missing = [name for name in NEEDED if name not in (columns or ())]
    if missing:
        found = ", ".join(list(columns or ())[:6]) or "nothing"
        raise ParamsError(
            f"the table has no column {' and no column '.join(missing)} (its first line: {found}). A table of results "
            "begins with a line of names as published_results.csv has: model, params_b, accelerator, n_accel, "
            "precision, seq_len, global_batch, tp, pp, dp, ... ; separate by commas and name at least these two."
        )


def predict_rows(
    rows: Iterable[Mapping[str, str | None]], models: Mapping[str, Model]
) -> list[Prediction]:
    """One prediction a row, in order; the answer columns are never read."""
    return [predict(read_row(number, cells), models) for number, cells in enumerate(rows, 1)]


def predict(row: PublishedRow, models: Mapping[str, Model]) -> Prediction:
    """The expected speed of one row."""
    found = setup_of(row, models)
    if isinstance(found, str):
        return Prediction(row, None, None, found)
    setup, shape_from, assumed = found
    if reason := known(setup.device, setup.precision):
        return Prediction(row, None, None, reason)
    step = iteration(setup)
    sequences = setup.num_microbatches * setup.micro_batch * setup.data / step.seconds / setup.world
    return Prediction(
        row,
        four_digits(sequences * setup.shape.sequence_length),
        four_digits(flops.flops(setup.shape, sequences, row.convention) / 1e12),
        "",
        setup,
        shape_from,
        assumed,
        four_digits(step.seconds),
    )


def setup_of(
    row: PublishedRow, models: Mapping[str, Model]
) -> tuple[StepSetup, str, tuple[str, ...]] | str:
    """Everything the model of an iteration needs, where the shape is from, what was assumed; or why not."""
    device = find_accelerator(row.accelerator)
    if device is None:
        return f"the accelerator {row.accelerator!r} is not in our table, and no peak is guessed"
    if not row.precision:
        return "4-bit floating point has no calibration here"
    if re.search(r"\bmoe\b|mixtral|deepseek|\ba\d+b\b|gpt[- ]oss", row.model, re.IGNORECASE):
        return (
            f"{row.model} is a mixture of experts, which this model of an iteration does not know"
        )
    named = next((name for name in models if name in _words(row.model)), "")
    if named and not row.billions:
        row = replace(row, billions=_count(models[named]) / 1e9)
    if not row.billions:
        return f"neither params_b nor the name {row.model!r} says how large the model is"
    assumed: list[str] = []
    sequence = row.sequence_length or DEFAULT_SEQUENCE
    if not row.sequence_length:
        assumed.append(f"sequence of {sequence}")
    model, shape_from = shape_for(row, models)
    if row.sizes["layers"] and row.sizes["hidden"]:
        model = with_shape(model, row.sizes)
        shape_from = "columns of the table"
    row = replace(row, recompute=row.recompute or "none")
    tensor, pipeline = _cut(row, device, assumed)
    shape = sizes.shape_of(model, tensor=tensor, sequence_length=sequence)
    devices = row.devices or max(tensor * pipeline, 64)
    if not row.devices:
        assumed.append(f"{devices} devices")
    data = max(1, devices // (tensor * pipeline * row.context))
    if data * tensor * pipeline * row.context != devices:
        assumed.append(
            f"{devices} devices are no multiple of tensor x pipeline x context: {data} copies"
        )
    global_batch = row.global_batch or _usual_batch(row, data, pipeline, sequence, assumed)
    chunks = row.virtual_pipeline if row.virtual_pipeline > 1 else _chunks(row, shape, pipeline)
    own = {
        "shape": shape,
        "device": device,
        "tensor": tensor,
        "pipeline": pipeline,
        "data": data,
        "virtual_pipeline": chunks,
        "micro_batch": row.micro_batch or 1,
        "global_batch": global_batch,
        "sequence": row.code != "unfused" and row.flash,
    }
    if row.network:
        own["device"] = replace(device, network_bandwidth=row.network * 1e9 / 8)
    setup = StepSetup(
        **sizes.same_fields(StepSetup, row) | own, hides_sends=row.code == "tuned" and chunks > 1
    )
    if not row.micro_batch:
        setup = replace(setup, micro_batch=_micro_batch(setup))
    if device.name == "MI250X-GCD" and "GCD" not in row.accelerator.upper():
        assumed.append("a GCD, as PyTorch counts them, not a module of two")
    if not re.search(rf"(?<![A-Z0-9]){device.name.split('-')[0]}", row.accelerator.upper()):
        assumed.append(f"planned as {device.name}, which {row.accelerator!r} is taken for")
    if setup.device.family not in CALIBRATED:
        assumed.append(
            f"no training on {setup.device.family} was published to us: measured matrix products only"
        )
    return setup, shape_from, tuple(assumed)


def shape_for(row: PublishedRow, models: Mapping[str, Model]) -> tuple[Model, str]:
    """The shape of a row's model and where it is from.

    The catalogue's model of that name, else the nearest in size with heads of 64 to 160; if its count is off, hidden is
    scaled by the 0.4th power of the ratio of parameters (a multiple of 128) and the layers to the count.
    """
    wanted = row.billions * 1e9
    length = row.sequence_length
    llama = "llama" in row.model.lower()
    family = {name: model for name, model in models.items() if ("llama" in name) == llama} or models
    if (
        "gpt" not in row.model.lower()
    ):  # the documents' test shapes are far wider than deep, as nobody trains a model
        family = {
            name: model for name, model in family.items() if model.hidden <= WIDEST * model.layers
        } or family
    for name, model in family.items():
        if name in _words(row.model) and abs(_count(model, length) / wanted - 1) <= SHAPE_TOLERANCE:
            return model, f"{name} of the catalogue"
    usual = {
        name: model for name, model in family.items() if 64 <= model.hidden // model.heads <= 160
    } or family
    name, model = min(
        usual.items(), key=lambda item: abs(math.log(_count(item[1], length) / wanted))
    )
    if abs(_count(model, length) / wanted - 1) <= SHAPE_TOLERANCE / 2:
        return model, f"{name} of the catalogue, by size"
    return _scaled(
        model, wanted, row.model
    ), f"{name} of the catalogue, scaled to {row.billions:g} B"


def _words(text: str) -> set[str]:
    plain = text.lower()
    words = set(re.findall(r"[a-z0-9.]+", plain))
    if match := re.search(r"llama[- ]?(\d)?(?:\.\d)?.*?(\d+(?:\.\d+)?b)", plain):
        words.add(f"llama-{match[1] or '3'}-{match[2]}")
    return words


def _count(model: Model, sequence: int = 0) -> int:
    """Parameters, with a learned position for each token of the sequence."""
    if model.position_embedding == "learned":
        learned = model.hidden * max(0, sequence - model.positions)
    else:
        learned = 0
    return (model.parameters or sizes.whole(sizes.shape_of(model)).total) + learned


def _scaled(model: Model, wanted: float, name: str) -> Model:
    ratio = wanted / _count(model)
    layers_said = re.search(r"(\d+) layers(?:, (\d+))?", name)
    hidden = max(128, round(model.hidden * ratio**0.4 / 128) * 128)
    if layers_said and layers_said[2]:
        hidden = int(layers_said[2])
    inner = round(model.ffn_hidden * hidden / model.hidden) if model.ffn_hidden else 0
    heads = max(1, hidden // 128)
    kv_heads = max(1, round(heads * model.kv_heads / model.heads)) if model.kv_heads else 0
    changed = model.model_copy(
        update={
            "hidden": hidden,
            "heads": heads,
            "kv_heads": kv_heads,
            "ffn_hidden": inner,
            "layers": 1,
        }
    )
    shape = sizes.shape_of(changed)
    layer = sizes.layer(shape)
    layers = max(1, round((wanted - sizes.whole(shape).total + layer) / layer))
    return changed.model_copy(update={"layers": int(layers_said[1]) if layers_said else layers})


def _cut(row: PublishedRow, device: Accelerator, assumed: list[str]) -> tuple[int, int]:
    """Tensor and pipeline; where they are not given, the least that holds 60 % of the memory in states."""
    if row.tensor and row.pipeline:
        return row.tensor, row.pipeline
    if row.zero_stage == 3:
        return row.tensor or 1, row.pipeline or 1
    copies = row.devices or 64
    tensor = row.tensor or 1
    pipeline = row.pipeline or 1
    most = 4 if row.billions < 15 or row.code == "unfused" else 8
    while tensor * pipeline < copies:
        share = max(1, copies // (tensor * pipeline)) if row.zero_stage else 1
        need = row.billions * 1e9 / (tensor * pipeline) * (6 + 12 / share)
        if need <= 0.6 * device.memory_bytes:
            break
        if not row.tensor and tensor < min(most, device.devices_per_node):
            tensor *= 2
        elif not row.pipeline:
            pipeline *= 2
        else:
            break
    assumed.append(f"tensor {tensor} x pipeline {pipeline}")
    return tensor, pipeline


def _usual_batch(
    row: PublishedRow, data: int, pipeline: int, sequence: int, assumed: list[str]
) -> int:
    limits = ((2, 0.5e6), (10, 1e6), (60, 2e6), (300, 4e6))
    tokens = next((tokens for billions, tokens in limits if row.billions < billions), 16e6)
    batch = max(
        data * max(1, 2 * pipeline if pipeline > 1 else 1), round(tokens / sequence / data) * data
    )
    assumed.append(f"global batch of {batch}")
    return batch


def _micro_batch(setup: StepSetup) -> int:
    """The largest divisor of a copy's share within `MICRO_TOKENS` and the memory; 1 where there is a pipeline."""
    share = max(1, setup.global_batch // setup.data)
    if setup.pipeline > 1:
        return max(
            size
            for size in range(1, max(1, 2048 // setup.shape.sequence_length) + 1)
            if share % size == 0
        )
    free = free_bytes(setup)
    each = sequence_bytes(setup)
    most = max(
        1, min(int(free / each), MICRO_TOKENS * setup.context // setup.shape.sequence_length)
    )
    return max(size for size in range(1, min(share, most) + 1) if share % size == 0)


def free_bytes(setup: StepSetup) -> float:
    """Memory beside the states, nine tenths of the device in all."""
    parameters = sizes.whole(setup.shape).total / setup.tensor / setup.pipeline
    copies = setup.data * setup.context
    states = (18.0, 6 + 12 / copies, 4 + 14 / copies, 18 / copies)[setup.zero_stage]
    gathered = 8 * sizes.layer(setup.shape, tensor=setup.tensor) if setup.zero_stage == 3 else 0
    return 0.9 * setup.device.memory_bytes - parameters * states - gathered


def sequence_bytes(setup: StepSetup) -> float:
    """Activations of one sequence: what is kept of each layer, one layer's working set, the logits."""
    shape = setup.shape
    unit = shape.sequence_length * shape.hidden / setup.context
    kept, working = (2.0, 40.0) if setup.recompute == "full" else (34.0 / setup.tensor, 0.0)
    logits = 8.0 * shape.padded_vocabulary / shape.hidden / setup.tensor
    return unit * (kept * shape.layers / setup.pipeline + working + logits)


def _chunks(row: PublishedRow, shape: Shape, pipeline: int) -> int:
    """Interleaved chunks a vendor's recipe would have: two or more where layers and code allow it."""
    if pipeline == 1 or row.code != "tuned":
        return 1
    layers = shape.layers // pipeline
    return max((size for size in (2, 3, 4, 5, 6) if layers % size == 0), default=1)
