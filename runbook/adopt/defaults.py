"""What a script leaves open: its program's own defaults, and the catalogue's model of its shape."""

from collections.abc import Mapping
from typing import Any

from runbook.adopt.findings import Findings
from runbook.params.schema.entries import Model
from runbook.params.schema.run_file import SHAPE_FIELDS

MEGATRON_DEFAULTS: dict[str, Any] = {
    "training.schedule": "linear", "training.min_learning_rate": 0.0, "training.adam_beta2": 0.999,
    "training.weight_decay": 0.01, "training.clip_gradient": 1.0, "training.dropout": 0.1,
    "training.init_std": 0.02, "training.log_interval": 100, "training.eval_interval": 1000,
    "training.eval_iterations": 100, "training.save_interval": 0, "training.seed": 1234, "data.split": "969,30,1",
}  # fmt: skip
"""What Megatron's own parser takes where an option is missing (both pinned versions), where that is not ours."""


def fill(findings: Findings, framework: str, *, from_options: bool) -> None:
    """Give every value that the run needs; what was found in the script stays."""
    if from_options and framework != "nemo":
        for key, value in MEGATRON_DEFAULTS.items():
            findings.take(key, value, 0, "the program's own default; the script does not say", over=False)
        _precision(findings)
        if framework == "megatron-lm":
            findings.take("parallel.zero_stage", 0, 0, "no --use-distributed-optimizer", over=False)
    if "data.dataset" not in findings.carried:
        findings.leave(0, "the text", "the script names none: the small shipped corpus is taken; set data.dataset")
    _length(findings)
    if findings.value("data.split", "").endswith(",0,0") and not findings.value("data.held_out"):
        line = findings.carried["data.split"].line
        findings.take("training.eval_interval", 0, line, "the split leaves nothing to validate with")
        findings.does(line, "--eval-interval, --eval-iters", "no evaluation: the split leaves nothing to validate with")
    _nodes(findings)
    _batch(findings)
    if findings.value("parallel.sequence") and findings.number("parallel.tensor", 1) == 1:
        line = findings.carried["parallel.sequence"].line
        findings.does(line, "sequence parallelism with one tensor rank", "the program switches it off; so do we")
        findings.take("parallel.sequence", False, line, "one tensor rank")
    if findings.value("training.offload") is False:
        findings.drop("training.offload")


def _precision(findings: Findings) -> None:
    findings.take("training.precision", "fp32", 0, "neither --fp16 nor --bf16", over=False)
    scale = findings.carried.get("training.static_loss_scale")
    if findings.value("training.precision") == "fp16":
        source = "the program's own 2^32 skips the first 16 steps"
        findings.take("training.initial_loss_scale", 65536.0, 0, source, over=False)
    elif scale:
        findings.does(scale.line, f"{scale.source} {scale.value:g}", "only fp16 has a loss scale")
        findings.drop("training.static_loss_scale")


def _length(findings: Findings) -> None:
    """Of the lengths exactly one: the document's own, tokens before samples before iterations."""
    for name, prefix in (("length", ""), ("warmup", "warmup_"), ("decay", "decay_")):
        units = [f"training.{prefix}{unit}" for unit in ("tokens", "samples", "iterations", "fraction")]
        there = [findings.carried[key] for key in units if key in findings.carried]
        given = [length for length in there if length.value]
        for second in given[1:]:
            value = second.value if prefix else f"{second.value:,}"
            why = f"a second {name}; {given[0].key} says how long"
            findings.leave(second.line, f"{second.source} {value}", why)
            findings.drop(second.key)
        if prefix:
            findings.drop(*(length.key for length in there if not length.value))
        elif not given:
            findings.take("training.iterations", 1000, 0, "the script does not say how long")


def _nodes(findings: Findings) -> None:
    """Nodes of the site's size, as many as the layout fills where the script leaves them to sbatch or qsub."""
    taken, own = findings.carried.get("jobs.training.devices_per_node"), findings.site.hardware.devices_per_node
    if taken and own and isinstance(taken.value, int) and taken.value > own and taken.value % own == 0:
        nodes = findings.number("jobs.training.nodes", 1) * (taken.value // own)
        source = f"nodes of {taken.value} devices; the site's have {own}"
        findings.take("jobs.training.nodes", nodes, taken.line, source)
        findings.drop("jobs.training.devices_per_node")
    devices, context = findings.devices_per_node, findings.number("parallel.context", 1)
    group = findings.model_parallel * max(1, context)
    nodes = next(count for count in range(1, group + 1) if count * devices % group == 0)
    why = f"not in the script: the fewest nodes of {devices} devices that {group} divides"
    findings.take("jobs.training.nodes", nodes, 0, why, over=False)
    if findings.value("parallel.context") == 0:  # Ulysses over all devices
        all_devices = findings.number("jobs.training.nodes", 1) * devices
        findings.take("parallel.context", all_devices, findings.carried["parallel.context"].line, "SP_TYPE=ds")


def _batch(findings: Findings) -> None:
    """The global batch where only the micro-batch, or GAS, is given: micro x copies x GAS."""
    steps = findings.number("gas", 1)
    gas, batch_given = findings.carried.get("gas"), findings.carried.get("training.global_batch")
    findings.drop("gas")
    if batch_given and (batch_given.line or not gas):
        return
    world = findings.number("jobs.training.nodes", 1) * findings.devices_per_node
    copies = max(1, world // (findings.model_parallel * max(1, findings.number("parallel.context", 1))))
    micro = findings.number("training.micro_batch", 1)
    source = f"{micro} micro x {copies} copies x {steps} steps"
    findings.take("training.global_batch", micro * copies * steps, gas.line if gas else 0, source)


_KINDS = {"activation": "gelu", "tied_embeddings": True, "biases": True, "position_embedding": "learned",
          "normalization": "layernorm"}  # fmt: skip


def take_shape(models: Mapping[str, Model], kind: Mapping[str, str | int], findings: Findings) -> None:
    """Set `model`, with `training.shape` only where the catalogue has no such model."""
    wanted = {name: findings.number(f"training.shape.{name}") for name in SHAPE_FIELDS}
    if not all(wanted[name] for name in ("layers", "hidden", "heads")):
        if model := models.get(str(findings.value("model", ""))):  # it is named, and some of its shape is given too
            same = [name for name in SHAPE_FIELDS if wanted[name] and wanted[name] == getattr(model, name)]
            findings.drop(*(f"training.shape.{name}" for name in same))
        return
    line = findings.carried["training.shape.layers"].line
    of_kind = {
        name: model
        for name, model in models.items()
        if all(getattr(model, field) == kind.get(field, default) for field, default in _KINDS.items())
    }
    name = _best(of_kind or models, wanted, findings)
    model = models[name]
    findings.take("model", name, line, f"{wanted['layers']} layers x {wanted['hidden']}, {wanted['heads']} heads")
    for field, given in wanted.items():
        own = getattr(model, field)
        if given in (0, own) or (own == 0 and given == _implied(model, wanted, field)):
            findings.drop(f"training.shape.{field}")
    if findings.value("training.sequence_length") == model.sequence_length:
        findings.drop("training.sequence_length")
    if not of_kind:
        text = ", ".join(f"{key}={value}" for key, value in kind.items())
        findings.leave(line, text, "params/models.yaml has no such kind of model: write an entry")


def _implied(model: Model, wanted: Mapping[str, int], field: str) -> int:
    implied = {"ffn_hidden": 4 * wanted["hidden"], "kv_heads": wanted["heads"], "positions": model.sequence_length}
    return implied.get(field, 0)


def _best(models: Mapping[str, Model], wanted: Mapping[str, int], findings: Findings) -> str:
    sequence = findings.number("training.sequence_length")

    def distance(name: str) -> tuple[float, ...]:
        model = models[name]
        core = sum(getattr(model, field) != wanted[field] for field in ("layers", "hidden", "heads"))
        weight = wanted["layers"] * wanted["hidden"] ** 2
        other = abs(model.layers * model.hidden**2 / weight - 1) if core else 0
        rest = sum(
            wanted[field] not in (0, getattr(model, field), _implied(model, wanted, field))
            for field in ("kv_heads", "ffn_hidden", "positions")
        )
        length = model.vocabulary != 50257, sequence not in (0, model.sequence_length)
        return (core > 0, other, core, rest, *length, findings.site.site not in model.source)

    return min(models, key=distance)
