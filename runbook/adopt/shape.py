"""Which model of the catalogue a script's shape is, or the nearest one with what differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.adopt.findings import Findings
from runbook.params.catalogue import Model

FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "positions")
_KINDS = {"activation": "gelu", "tied_embeddings": True, "biases": True, "position_embedding": "learned",
          "normalization": "layernorm"}  # fmt: skip


def take_shape(models: Mapping[str, Model], kind: Mapping[str, Any], findings: Findings, prefer: str = "") -> None:
    """Set `model`, with `training.shape` only where the catalogue has no such model."""
    wanted = {name: findings.number(f"training.shape.{name}") for name in FIELDS}
    if not all(wanted[name] for name in ("layers", "hidden", "heads")):
        _partly(models, wanted, findings)
        return
    line = findings.taken["training.shape.layers"].line
    source = f"{wanted['layers']} layers x {wanted['hidden']}, {wanted['heads']} heads"
    of_kind = {name: model for name, model in models.items() if _same_kind(model, kind)} or dict(models)
    name = _best(of_kind, wanted, findings, prefer)
    model = models[name]
    findings.take("model", name, line, source)
    for field in FIELDS:
        own = getattr(model, field)
        given = wanted[field]
        if not given or given == own or (own == 0 and given == _implied(model, wanted, field)):
            findings.drop(f"training.shape.{field}")
    if findings.value("training.sequence_length") == model.sequence_length:
        findings.drop("training.sequence_length")
    if not _same_kind(model, kind):
        findings.leave(
            line,
            ", ".join(f"{key}={value}" for key, value in kind.items()),
            "params/models.yaml has no such kind of model: write an entry",
        )


def _partly(models: Mapping[str, Model], wanted: Mapping[str, int], findings: Findings) -> None:
    """A model that is named, with some of its shape given beside it."""
    model = models.get(str(findings.value("model", "")))
    for field in FIELDS:
        if model and wanted[field] and wanted[field] == getattr(model, field):
            findings.drop(f"training.shape.{field}")


def _implied(model: Model, wanted: Mapping[str, int], field: str) -> int:
    hidden = wanted["hidden"] or model.hidden
    return {
        "ffn_hidden": 4 * hidden,
        "kv_heads": wanted["heads"] or model.heads,
        "positions": model.sequence_length,
    }.get(field, 0)


def _best(models: Mapping[str, Model], wanted: Mapping[str, int], findings: Findings, prefer: str) -> str:
    sequence = findings.number("training.sequence_length")

    def distance(name: str) -> tuple[float, ...]:
        model = models[name]
        core = sum(getattr(model, field) != wanted[field] for field in ("layers", "hidden", "heads"))
        weight = wanted["layers"] * wanted["hidden"] ** 2
        other = abs(model.layers * model.hidden**2 / weight - 1)
        rest = sum(
            bool(wanted[field]) and wanted[field] not in (getattr(model, field), _implied(model, wanted, field))
            for field in ("kv_heads", "ffn_hidden", "positions")
        )
        length = model.vocabulary != 50257, bool(sequence) and model.sequence_length != sequence
        return (core > 0, other if core else 0, core, rest, *map(float, length), prefer not in model.source)

    return min(models, key=distance)


def _same_kind(model: Model, kind: Mapping[str, Any]) -> bool:
    return all(getattr(model, field) == kind.get(field, default) for field, default in _KINDS.items())
