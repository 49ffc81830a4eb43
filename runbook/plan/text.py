"""The plan as tables for people, from the content of plan.json; the notebook and the command line show the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runbook.plan.choices import FULL, SMOKE
from runbook.plan.data_text import data_table
from runbook.plan.flops import CONVENTIONS
from runbook.plan.summary_text import summary_table
from runbook.plan.table import UNKNOWN, Row, Table
from runbook.units import show_bytes, show_count, show_duration

PART_WORDS = {
    "matrices": "matrix products of the layers",
    "elementwise": "norms, activations, dropout",
    "output": "output layer and loss",
    "recompute": "recomputed in the backward pass",
    "launching": "starting kernels",
    "tensor": "waiting for tensor-parallel communication",
    "pipeline": "sending between stages",
    "bubble": "pipeline bubble",
    "data": "data-parallel communication that nothing hides",
    "waiting": "waiting for the slowest",
}

_PARTS = {
    "layers": "layers",
    "token_embedding": "token embedding",
    "position_embedding": "position embedding",
    "final_norm": "last norm",
    "output": "output layer",
    "total": "whole model",
}


def tables(plan: Mapping[str, Any]) -> tuple[Table, ...]:
    """The whole plan in the order a person decides in."""
    makers = (
        summary_table,
        sizes_table,
        layout_table,
        memory_table,
        flops_table,
        time_table,
        parts_table,
        storage_table,
        data_table,
        endurance_table,
        places_table,
        checks_table,
    )
    return tuple(table for make in makers if (table := make(plan)).rows)


def sizes_table(plan: Mapping[str, Any]) -> Table:
    """Parameters by part, and the labels people use beside the counts."""
    rows = [_row("parameters: " + words, plan, _part(part), section="parameters") for part, words in _PARTS.items()]
    rows.append(_row("parameters on a rank", plan, _per_rank, section="parameters"))
    rows.append(
        _row(
            "first loss expected",
            plan,
            lambda phase: f"{phase['first_loss']:.2f} = ln({phase['padded_vocabulary']:,})",
            section="parameters",
        )
    )
    rows.append(_row("vocabulary", plan, _vocabulary, section="phases"))
    return Table("Sizes", tuple(rows), "; ".join(label["text"] for label in plan["labels"]))


def layout_table(plan: Mapping[str, Any]) -> Table:
    """Devices, batch, length and learning rate, each with its sum."""
    rows = [
        _row("model", plan, lambda spec: f"{spec['model']['name']}: {_shape(spec['model'])}"),
        _row("devices", plan, devices_sum),
        _row("batch", plan, batch_sum),
        _row("length", plan, duration_sum),
        _row("learning rate", plan, _learning_rate),
        _row("number format", plan, lambda spec: str(spec["precision"]["format"])),
        _row("recomputed in the backward pass", plan, lambda spec: str(spec["recompute"])),
    ]
    return Table("Layout, batch and length", tuple(rows))


def memory_table(plan: Mapping[str, Any]) -> Table:
    """Bytes by part on the fullest rank, and against what there is."""
    parts = {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer": "optimizer states",
        "activations": "activations",
        "logits": "logits",
        "attention_scores": "attention scores, where they are kept",
        "buffers": "buffers of the engine, where they are known",
        "optimizer_moment": "the optimizer's step, when activations are gone",
        "host": "in main memory, for each device",
    }
    rows = [_row(words, plan, _bytes(part), section="memory") for part, words in parts.items()]
    rows += [
        _row("needed, at least", plan, lambda phase: _of(phase, "least_bytes"), section="memory"),
        _row("needed, at most", plan, lambda phase: _of(phase, "most_bytes"), section="memory"),
        _row("there is", plan, lambda phase: _of(phase, "limit_bytes"), section="memory"),
    ]
    note = "Parts are those of one rank of the fullest stage; on accelerators, buffers of libraries are not counted."
    return Table("Memory", tuple(rows), note)


def flops_table(plan: Mapping[str, Any]) -> Table:
    """Operations of a token in every convention: the same speed prints as many different TFLOP/s."""
    rows = tuple(
        {
            "convention": name + (" (ours)" if name == plan["flops"][FULL]["convention"] else ""),
            "counts": "recomputed work too" if convention.kind == "hardware" else "the model's work",
            "formula": convention.formula,
            "smoke test": f"{plan['flops'][SMOKE]['per_token'][name] / 1e9:.4g} GFLOP a token",
            "training": f"{plan['flops'][FULL]['per_token'][name] / 1e9:.4g} GFLOP a token",
        }
        for name, convention in CONVENTIONS.items()
    )
    return Table(
        "Operations by convention", rows, "Compare reports by tokens/s; a TFLOP/s means nothing without its name."
    )


def time_table(plan: Mapping[str, Any]) -> Table:
    """Expected time; empty words where it cannot be known, with the reason."""

    def shown(key: str, show: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
        return lambda phase: UNKNOWN if phase[key] is None else show(phase[key])

    rows = [
        _row("a step", plan, shown("seconds_per_iteration", show_duration), section="time"),
        _row("all steps and evaluations", plan, shown("seconds", show_duration), section="time"),
        _row("tokens/s", plan, shown("tokens_per_second", lambda value: f"{value:,.0f}"), section="time"),
        _row(
            "TFLOP/s a device",
            plan,
            shown("tflops_per_device", lambda value: f"{value:.3g} (megatron-full)"),
            section="time",
        ),
        _row("share of the peak (MFU)", plan, shown("mfu", lambda value: f"{value:.1%}"), section="time"),
        _row("device hours", plan, shown("device_hours", lambda value: f"{value:,.4g}"), section="time"),
        _row("cost", plan, shown("cost", lambda value: f"{value:,.2f}"), section="time"),
        _row("from", plan, lambda phase: str(phase["basis"]), section="time"),
    ]
    return Table("Time", tuple(rows), "Loading, compiling and checkpoints come on top.")


def parts_table(plan: Mapping[str, Any]) -> Table:
    """Where a step's time goes, on accelerators that are modelled part by part."""
    parts = {phase: plan["time"][phase]["parts"] for phase in (SMOKE, FULL)}
    names = [name for name in parts[FULL] or () if name != "waiting"] + ["waiting"]
    if not parts[FULL]:
        return Table("Where a step's time goes", (), "Modelled part by part on accelerators only.")
    rows = []
    for name in names:
        row = {"part": PART_WORDS.get(name, name)}
        for phase, column in ((SMOKE, "smoke test"), (FULL, "training")):
            seconds, whole = (parts[phase] or {}).get(name, 0.0), sum((parts[phase] or {}).values())
            row[column] = f"{show_duration(seconds)} ({seconds / whole:.1%})" if seconds else "0"
        rows.append(row)
    return Table("Where a step's time goes", tuple(rows))


def endurance_table(plan: Mapping[str, Any]) -> Table:
    """Saves to each storage tier, failures, jobs in a row and energy of the training; what is not known says so."""
    found = plan["endurance"]

    def shown(value: float | None, show: Callable[[float], str]) -> str:
        return UNKNOWN if value is None else show(value)

    between = found["hours_between_failures"]
    rows = [
        {"what": "between two saves, as chosen", "training": shown(found["interval_seconds"], show_duration)},
        {"what": "between two failures", "training": shown(between and 3600 * between, show_duration)},
    ]
    for save in found["saves"]:
        best = shown(save["best_interval_seconds"], show_duration)
        least = shown(save["added_share"], lambda share: f"{share:.1%}")
        chosen = shown(save["added_share_as_chosen"], lambda share: f"{share:.1%}")
        text = f"{show_duration(save['write_seconds'])} a save; best every {best}: adds {least}, as chosen {chosen}"
        rows.append({"what": f"{save['tier']} ({save['bytes_per_second'] / 1e9:g} GB/s)", "training": text})
    limit = found["walltime_seconds"]
    jobs = shown(found["jobs"], lambda count: f"{count:,} of at most {show_duration(limit)}")
    energy = shown(found["energy_kwh"], lambda value: f"{value:,.4g} kWh: {found['energy_basis']}")
    rows += [{"what": "jobs in a row", "training": jobs}, {"what": "energy", "training": energy}]
    note = f"Failures: {found['failure_source']}; best interval by Daly." if found["failure_source"] else ""
    return Table("Saves, failures, jobs and energy", tuple(rows), note)


def storage_table(plan: Mapping[str, Any]) -> Table:
    """Bytes of data and checkpoints."""
    data = plan["data"]
    rows = [
        _row("one checkpoint", plan, _checkpoint, section="checkpoint"),
        _row(
            "disk for checkpoints",
            plan,
            lambda phase: f"{show_bytes(phase['disk_bytes'])} ({phase['num_checkpoints']} at a time)",
            section="checkpoint",
        ),
        _row("steps between checkpoints", plan, lambda spec: str(spec["checkpoint"]["interval"] or "only at the end")),
    ]
    tokens = f"{data['estimated_tokens']:,} tokens" if data["estimated_tokens"] else f"tokens {UNKNOWN}"
    size = show_bytes(data["estimated_bytes"]) if data["estimated_bytes"] else f"size {UNKNOWN}"
    names = ", ".join(part["dataset"] for part in data.get("parts", [data]))
    return Table("Storage", tuple(rows), f"Data {names}: {tokens}, {size} ({data['tokens_from']}).")


def places_table(plan: Mapping[str, Any]) -> Table:
    """Where each phase writes: never the same place twice."""
    places = [
        ("checkpoint", "folder"),
        ("log", "metrics"),
        ("log", "validation"),
        ("log", "samples"),
        ("log", "tensorboard"),
        ("data", "cache"),
    ]
    rows = [_row(f"{section} {key}", plan, _place(section, key)) for section, key in places]
    return Table(
        "Places", tuple(rows), "Relative to the run's folder. A full run never loads a smoke test's checkpoint."
    )


def checks_table(plan: Mapping[str, Any]) -> Table:
    """Every rule that was applied; a failing one never gets here."""
    rows = tuple(
        {key: check[key] for key in ("name", "verdict", "value", "rule", "remedy")} for check in plan["checks"]
    )
    counts = {
        verdict: sum(check["verdict"] == verdict for check in plan["checks"]) for verdict in ("pass", "warn", "unknown")
    }
    return Table("Checks", rows, ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def devices_sum(spec: Mapping[str, Any]) -> str:
    """How the devices are used, as a product."""
    parallel = spec["parallel"]
    words = [f"{parallel['tensor']} tensor", f"{parallel['pipeline']} pipeline"]
    if parallel["context"] > 1:
        words.append(f"{parallel['context']} context")
    product = " x ".join([*words, f"{parallel['data']} data copies"])
    virtual = f", {parallel['virtual_pipeline']} chunks a stage" if parallel["virtual_pipeline"] > 1 else ""
    return f"{product} = {parallel['world_size']}{virtual}, ZeRO {parallel['zero_stage']}"


def batch_sum(spec: Mapping[str, Any]) -> str:
    """One step's batch as a product.

    >>> spec = {"batch": {"micro": 1, "global": 4, "num_microbatches": 2}, "parallel": {"data": 2}}
    >>> batch_sum(spec | {"model": {"sequence_length": 1024}})
    '1 micro x 2 copies x 2 steps = 4 sequences = 4,096 tokens'
    """
    batch, tokens = spec["batch"], spec["batch"]["global"] * spec["model"]["sequence_length"]
    return (
        f"{batch['micro']} micro x {_count(spec['parallel']['data'], 'copy', 'copies')} x "
        f"{_count(batch['num_microbatches'], 'step', 'steps')} = {batch['global']:,} sequences = {tokens:,} tokens"
    )


def duration_sum(spec: Mapping[str, Any]) -> str:
    """The whole length as a product."""
    length = spec["duration"]
    return (
        f"{length['iterations']:,} iterations x {spec['batch']['global']:,} = {length['samples']:,} samples = "
        f"{show_count(length['tokens'])} tokens"
    )


def _row(
    what: str, plan: Mapping[str, Any], show: Callable[[Mapping[str, Any]], str], *, section: str = "phases"
) -> Row:
    return {"what": what, "smoke test": show(plan[section][SMOKE]), "training": show(plan[section][FULL])}


def _part(part: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda phase: f"{phase['whole'][part]:,}"


def _bytes(part: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda phase: show_bytes(phase["fullest_stage"][part])


def _place(section: str, key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda spec: str(spec[section][key])


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _per_rank(phase: Mapping[str, Any]) -> str:
    ranks = phase["per_rank_by_stage"]
    return f"{max(ranks):,}" + (f" (the fullest of {len(ranks)} stages)" if len(ranks) > 1 else "")


def _vocabulary(spec: Mapping[str, Any]) -> str:
    model = spec["model"]
    return f"{model['vocabulary']:,}, padded to {model['padded_vocabulary']:,}"


def _shape(model: Mapping[str, Any]) -> str:
    return (
        f"{model['layers']} layers x {model['hidden']:,} hidden, {model['heads']} heads, "
        f"sequence {model['sequence_length']:,}"
    )


def _learning_rate(spec: Mapping[str, Any]) -> str:
    rate = spec["learning_rate"]
    steps = rate["warmup_samples"] / spec["batch"]["global"]
    return (
        f"peak {rate['peak']:g} by step {steps:,.0f}, then {rate['schedule']} to {rate['minimum']:g} over "
        f"{rate['decay_samples']:,} samples"
    )


def _of(phase: Mapping[str, Any], key: str) -> str:
    return f"{show_bytes(phase[key])} a {phase['limit_of']}" if phase[key] else UNKNOWN


def _checkpoint(phase: Mapping[str, Any]) -> str:
    return f"{show_bytes(phase['checkpoint_bytes'])} = {phase['bytes_per_parameter']} B a parameter"
