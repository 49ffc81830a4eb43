"""Determines the model trained by a script: a catalogue model, and the sizes that differ."""

from collections.abc import Mapping, Sequence

from runbook.params.schema.entries import Model, with_shape
from runbook.params.schema.run_file import SHAPE_FIELDS
from runbook.tokens.tokenizer import GPT2_VOCABULARY
from runbook.tools.adopt import program_arguments
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.known_errors import Evidence
from runbook.tools.adopt.launches import option
from runbook.tools.adopt.messages import AdoptMessage

_KINDS: dict[str, str | float] = {
    "activation": "gelu",
    "tied_embeddings": True,
    "biases": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "qkv_biases": False,
    "norm_epsilon": 1e-5,
    "rope_base": 10_000,
}


def take_shape(
    models: Mapping[str, Model], kind: Mapping[str, str | float], findings: Findings
) -> None:
    """Set `model`, and `training.shape` only if the catalogue has no such model."""
    shape = findings.shape
    missing = [name for name in _CORE_FIELDS if not shape[name]]
    named_model = models.get(str(findings.value("model", "")))
    if missing and named_model:
        _drop_shape_of_named_model(named_model, shape, findings)
        _report_kind(str(findings.value("model")), named_model, kind, findings)
        return
    if len(missing) == len(_CORE_FIELDS) and not kind:
        return
    full_kind = {**_KINDS, **kind}
    usable = _with_room_for_tokenizer(models, findings)
    name = _nearest_model(_of_nearest_kind(usable, full_kind), shape, findings)
    model = models[name]
    if missing:
        _let_model_stand_in(name, shape, missing, findings)
    else:
        line = findings.carried["training.shape.layers"].line
        source = f"{shape['layers']} layers x {shape['hidden']}, {shape['heads']} heads"
        findings.take("model", name, line, source)
    _take_positions(model, full_kind, findings)
    _drop_implied(model, shape, findings, keep_widths=not missing)
    if not missing:
        _take_widths(model, shape, full_kind, findings)
    _shorten_smoke_test(model, findings)
    if findings.value("training.sequence_length") == model.sequence_length:
        findings.drop("training.sequence_length")
    _report_kind(name, model, full_kind, findings)


def _let_model_stand_in(
    name: str,
    shape: Mapping[str, int],
    missing: Sequence[str],
    findings: Findings,
) -> None:
    """Use the nearest model as a placeholder if the script lacks a size that identifies it."""
    unknown = f"the script does not set {', '.join(missing)}"
    findings.take("model", name, 0, f"placeholder: {unknown}")
    findings.unknown_model = unknown
    findings.ask("model", unknown)
    sizes = [f"{value} {field}" for field, value in shape.items() if value]
    sizes_text = ", ".join(sizes) or "the kind of model"
    why = f"the script has no number for it, only {sizes_text}: set model"
    findings.leave(0, f"the model's {', '.join(missing)}", why)


def _drop_implied(
    model: Model,
    shape: Mapping[str, int],
    findings: Findings,
    *,
    keep_widths: bool,
) -> None:
    """Drop the sizes that the model has by default.

    If `keep_widths` is set, keep the widths, which are settled later.
    """
    for field, value in shape.items():
        if keep_widths and field in _WIDTHS:
            continue
        if _is_implied(value, model, shape, field):
            findings.drop(f"training.shape.{field}")


_WIDTHS = ("ffn_hidden", "kv_heads")
"""Sizes whose default depends on other sizes."""


def _shorten_smoke_test(model: Model, findings: Findings) -> None:
    """Limit the sequence length in the smoke test to the number of positions.

    Do so only if the model has longer sequences.
    """
    positions = findings.number("training.shape.positions")
    if 0 < positions < model.sequence_length:
        line = findings.carried["training.shape.positions"].line
        source = "limited to the model's number of positions"
        findings.take("training.smoke.sequence_length", positions, line, source)


def _take_positions(model: Model, full_kind: Mapping[str, str | float], findings: Findings) -> None:
    """Drop the number of positions for rotary embeddings, which have no position table.

    If the placeholder is a model with learned positions, give its table enough rows.
    """
    if full_kind["position_embedding"] != "rope":
        return
    carried = findings.carried.get("training.shape.positions")
    if carried:
        text = f"{carried.source} {carried.value}"
        findings.does(carried.line, text, AdoptMessage.ROTARY_WITHOUT_TABLE.fill())
        findings.drop("training.shape.positions")
    sequence = findings.number("training.sequence_length")
    if model.position_embedding == "learned" and sequence > (
        model.positions or model.sequence_length
    ):
        source = f"placeholder: the model has learned positions for sequences of {sequence} tokens"
        findings.take("training.shape.positions", sequence, 0, source)


def _with_room_for_tokenizer(
    models: Mapping[str, Model], findings: Findings
) -> Mapping[str, Model]:
    """Return the models that have a row for each GPT-2 token, if the source uses that tokenizer."""
    if findings.tokenizer_kind != "GPT2BPETokenizer":
        return models
    return {name: model for name, model in models.items() if model.vocabulary >= GPT2_VOCABULARY}


def _take_widths(
    model: Model,
    shape: Mapping[str, int],
    full_kind: Mapping[str, str | float],
    findings: Findings,
) -> None:
    """Set widths that depend on other sizes if model and program have different defaults.

    The default feed-forward width in the program is 4 x hidden, or 2/3 of that if gated; it has as
    many key-value heads as query heads.
    """
    other_core = {}
    for name in _CORE_FIELDS:
        if shape[name] != getattr(model, name):
            other_core[name] = shape[name]
    resized = with_shape(model, other_core)
    ffn_hidden = shape["ffn_hidden"] or _default_ffn_hidden(shape["hidden"], full_kind)
    kv_heads = shape["kv_heads"] or shape["heads"]
    widths = {
        "ffn_hidden": (ffn_hidden, resized.ffn_hidden or 4 * shape["hidden"]),
        "kv_heads": (kv_heads, resized.kv_heads or shape["heads"]),
    }
    for field, (width, model_width) in widths.items():
        key = f"training.shape.{field}"
        if width == model_width:
            findings.drop(key)
        elif key not in findings.carried:
            source = "the script's" if shape[field] else "the program's default"
            findings.take(key, width, 0, f"{source} {field}")


def _default_ffn_hidden(hidden: int, full_kind: Mapping[str, str | float]) -> int:
    """Return Megatron's default width: 4 x hidden, or if gated 2/3 of that, a multiple of 64."""
    if full_kind["activation"] == "swiglu":
        return int(4 * hidden * 2 / 3 / 64) * 64
    return 4 * hidden


def _of_nearest_kind(
    models: Mapping[str, Model], full_kind: Mapping[str, str | float]
) -> Mapping[str, Model]:
    """Return the models that differ from the wanted kind in the fewest properties."""
    num_different = {}
    for name, model in models.items():
        num_different[name] = len(_other_fields(model, full_kind))
    fewest = min(num_different.values())
    return {name: model for name, model in models.items() if num_different[name] == fewest}


def _other_fields(model: Model, kind: Mapping[str, str | float]) -> list[str]:
    """Return the properties that differ between a model and a kind."""
    fields = []
    for field in _KINDS:
        if field in kind and getattr(model, field) != kind[field]:
            fields.append(field)
    return fields


def _report_kind(
    name: str,
    model: Model,
    kind: Mapping[str, str | float],
    findings: Findings,
) -> None:
    """Report properties that differ between model and script, and record what the script has."""
    full_kind = {field: getattr(model, field) for field in _KINDS} | dict(kind)
    other_fields = _other_fields(model, kind)
    for field in other_fields:
        line = findings.kind_lines.get(field, 0)
        text = AdoptMessage.MODEL_PROPERTY.fill(field=field, value=kind[field])
        why = (
            f"model {name} has {getattr(model, field)}; no model of params/models.yaml is of this "
            "kind"
        )
        findings.leave(line, text, f"{why}: paste the entry, and set model")
    vocabulary = findings.vocabulary
    if vocabulary and not 0 <= model.vocabulary - vocabulary < _PADDING:
        why = AdoptMessage.VOCABULARY_OF_MODEL.fill(model=name, vocabulary=model.vocabulary)
        findings.leave(0, f"the model's vocabulary={vocabulary}", why)
        findings.model_kind.update(full_kind)
        findings.model_kind["vocabulary"] = vocabulary
    elif other_fields:
        findings.model_kind.update(full_kind)


_PADDING = 1024
"""A padded vocabulary has at most this many more rows than the tokenizer has tokens."""
_CORE_FIELDS = ("layers", "hidden", "heads")
"""Shape fields needed to look up a model."""


def _drop_shape_of_named_model(model: Model, shape: Mapping[str, int], findings: Findings) -> None:
    """Drop the sizes that the named model already has."""
    for name in SHAPE_FIELDS:
        if shape[name] and shape[name] == getattr(model, name):
            findings.drop(f"training.shape.{name}")


def take_uneven_stages(framework: str, findings: Findings) -> None:
    """Accept a layout that counts the embedding and the output layer as two more layers.

    The fork for BLOOM divides its 70 layers into 12 stages in this way. None of the pinned forks
    has this option, but our trainer does.
    """
    layers = findings.number("training.shape.layers")
    pipeline = findings.number("parallel.pipeline", 1)
    is_uneven = pipeline > 1 and layers % pipeline != 0
    if framework == "nemo" or not is_uneven or (layers + 2) % pipeline != 0:
        return
    line = findings.carried["parallel.pipeline"].line
    end_layers = (layers + 2) // pipeline - 1
    source = f"{layers} layers, embedding and output layer over {pipeline} stages"
    findings.take("parallel.first_stage_layers", end_layers, line, source)
    findings.take("parallel.last_stage_layers", end_layers, line, source)
    if framework == "megatron-lm":
        return
    why = (
        "its first and last stage have fewer layers, and no pinned fork has an option for that: "
        "our own trainer is used"
    )
    findings.leave(line, f"framework {framework}", why)
    findings.take("training.framework", "runbook", line, source)
    findings.drop("training.offload")


def take_nemo_model(evidence: Evidence, kind: Mapping[str, str | float]) -> None:
    """Set the model for training with NeMo: read it from the file, or find one of the required type."""
    findings = evidence.findings
    _ask_for_nemo_model(evidence)
    if is_other_kind(kind, findings):
        take_shape(evidence.models, kind, findings)
    else:
        _drop_shape_of_nemo(evidence.models, findings)


def is_other_kind(kind: Mapping[str, str | float], findings: Findings) -> bool:
    """Return whether a source asks for a model type other than GPT-3."""
    kv_heads = findings.number("training.shape.kv_heads")
    if kv_heads not in (0, findings.number("training.shape.heads", kv_heads)):
        return True
    return any(value != _KINDS.get(field, value) for field, value in kind.items())


def _ask_for_nemo_model(evidence: Evidence) -> None:
    """Ask for the model if only a NeMo configuration file determines it."""
    findings = evidence.findings
    arguments = evidence.launches[-1].arguments
    size = program_arguments.size_of(arguments)
    names_size = size is not None and size.text in program_arguments.MODELS
    is_sized = names_size or evidence.script.value("MODEL_SIZE")
    core = [findings.carried.get(f"training.shape.{name}") for name in _CORE_FIELDS]
    is_overridden = all(carried and carried.line for carried in core)
    if evidence.calls or is_sized or is_overridden:
        return
    file = option(arguments, "config-name", "cn")
    name = file.shown if file else "of its configuration, which is missing here,"
    why = (
        f"the file {name} sets it, but neither a NeMo size nor all of layers, hidden and heads are "
        "given"
    )
    findings.leave(file.line if file else 0, "the model", f"{why}: set model")
    findings.unknown_model = why
    findings.ask("model", why)


def _drop_shape_of_nemo(models: Mapping[str, Model], findings: Findings) -> None:
    """Drop the sizes and the sequence length that the model in the NeMo file has by default."""
    model = models.get(str(findings.value("model", "")))
    if model is None:
        return
    shape = findings.shape
    full_shape = {}
    for name in SHAPE_FIELDS:
        full_shape[name] = shape[name] or getattr(model, name)
    for field, value in shape.items():
        if _is_implied(value, model, full_shape, field):
            findings.drop(f"training.shape.{field}")
    if findings.value("training.sequence_length") == model.sequence_length:
        findings.drop("training.sequence_length")


def _is_implied(
    value: int,
    model: Model,
    shape: Mapping[str, int],
    field: str,
) -> bool:
    """Return whether the model already has this value in a field, explicitly or by default."""
    model_value = getattr(model, field)
    if value in (0, model_value):
        return True
    return model_value == 0 and value == _implied(model, shape, field)


def _implied(model: Model, shape: Mapping[str, int], field: str) -> int:
    """Return the value that a shape field has by default.

    Return 0 for fields that are always set.
    """
    implied = {
        "ffn_hidden": 4 * shape["hidden"],
        "kv_heads": shape["heads"],
        "positions": model.sequence_length,
    }
    return implied.get(field, 0)


def _nearest_model(
    models: Mapping[str, Model], shape: Mapping[str, int], findings: Findings
) -> str:
    """Return the name of the model that best matches a shape, a sequence length and the site."""
    distances = {name: _distance(model, shape, findings) for name, model in models.items()}
    return min(distances, key=distances.__getitem__)


def _distance(model: Model, shape: Mapping[str, int], findings: Findings) -> tuple[float, ...]:
    """Return a sort key for the distance between a model and a shape.

    The most important differences come first.
    """
    sequence = findings.number("training.sequence_length")
    core = [field for field in _CORE_FIELDS if shape[field]]
    other_core = sum(getattr(model, field) != shape[field] for field in core)
    size = _size_of_layers(shape["layers"], shape["hidden"])
    relative_size = 0.0
    if other_core and size:
        relative_size = abs(_size_of_layers(model.layers, model.hidden) / size - 1)
    return (
        other_core > 0,
        relative_size,
        other_core,
        _num_other_sizes(model, shape),
        model.vocabulary != GPT2_VOCABULARY,
        sequence not in (0, model.sequence_length),
        findings.site.site not in model.source,
    )


def _size_of_layers(layers: int, hidden: int) -> int:
    """Return a number proportional to the parameter count in the layers."""
    return layers * hidden**2


def _num_other_sizes(model: Model, shape: Mapping[str, int]) -> int:
    """Count the sizes, other than layers, hidden and heads, that differ in a model."""
    count = 0
    for field in ("kv_heads", "ffn_hidden", "positions"):
        size = shape[field] or _implied(model, shape, field)
        model_size = getattr(model, field) or _implied(model, shape, field)
        count += size != model_size
    return count
