"""Errors of the documents that show in numbers: labels, folders that collide, devices, nodes, state of a device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runbook.adopt.errors_table import parameters_of, state_bytes
from runbook.adopt.findings import Found
from runbook.adopt.launches import option
from runbook.params.catalogue import Model
from runbook.params.own_shape import with_own_shape
from runbook.plan.sizes import label_count, label_fits
from runbook.units import show_count

if TYPE_CHECKING:
    from runbook.adopt.errors_found import Read


def model_of(read: Read) -> Model | None:
    """The model of the run file, with the script's own shape."""
    model = read.models.get(str(read.findings.value("model", "")))
    names = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "positions")
    return (
        with_own_shape(model, {name: read.findings.number(f"training.shape.{name}") for name in names})
        if model
        else None
    )


def _labels(read: Read) -> Iterator[Found]:
    """1 and 2: a size in words that the shape does not have."""
    model = model_of(read)
    if model is None:
        return
    parameters = parameters_of(model)
    remedy = f"the plan shows {show_count(parameters)} beside the label"
    known = {(12, 512): (1, "375M"), (24, 1024): (2, "857M")}.get((model.layers, model.hidden))
    if known:
        number, label = known
        said = read.script.matching(rf"(?i)\b{label[:-1]}\s*M")
        taken = read.findings.taken.get("model")
        if said or (read.calls and taken and taken.line) or (taken and taken.line and _azure_knobs(read)):
            line = said[0][0] if said else taken.line if taken else 0
            what = f'{model.layers} x {model.hidden} is called "{label}"; it has {show_count(parameters)} parameters'
            yield Found(number, line, what, remedy)
    for line, label in _names(read):
        if not label_fits(label, parameters):
            what = f"the name says {label}; the shape has {show_count(parameters)} parameters"
            yield Found(known[0] if known else 1, line, what, remedy)


def prose_labels(read: Read) -> Iterator[Found]:
    """1 and 2 on a page, whatever model its last block has."""
    for number, label in ((1, "375"), (2, "857")):
        for line, _ in read.script.matching(rf"\b{label}\s*M\b")[:1] if read.script.prose else ():
            what = {1: "12 x 512 has 64.6 M parameters", 2: "24 x 1024 has 356 M parameters"}[number]
            yield Found(number, line, f'"{label}M": {what}', "the plan shows the count beside the label")


def _azure_knobs(read: Read) -> bool:
    return not read.launches and any(one.name == "NUM_LAYERS" for one in read.script.settings)


def _names(read: Read) -> Iterator[tuple[int, str]]:
    """Job names and model sizes that name a count."""
    for one in read.script.directives:
        match = re.search(r"\d+(?:\.\d+)?[mMbB](?![A-Za-z])", one.value)
        if one.name in ("job-name", "N") and match and label_count(match[0]):
            yield one.line, match[0]
    size = read.script.value("model_size")
    if size and re.fullmatch(r"\d+(\.\d+)?", size.text):
        yield size.line, f"{size.text}B"


def _shared_checkpoints(read: Read) -> Iterator[Found]:
    """14: the small model's checkpoint where the large one looks for its own."""
    remedy = "the smoke test and the training have folders of their own; a check refuses a shared one"
    calls = read.called("azure-175b")
    starts = []
    for call in calls:
        values = {**call.command.values, **call.command.environment}
        shape = (values.get("NUM_LAYERS"), values.get("HIDDEN_SIZE"))
        starts.append((call.command.line, shape, values.get("CHECKPOINT_PATH")))
    for line, shape, place in starts:
        others = [other for other in starts if other[0] != line and _texts(other[1]) != _texts(shape)]
        if any(
            place is None or (there and there.text == place.text)
            for _, _, there in others
            if (there is None) == (place is None)
        ):
            yield Found(14, line, "another size is started with the same CHECKPOINT_PATH, from which it loads", remedy)
            return
    if len(calls) == 1 and starts[0][1][0] is not None and starts[0][2] is None and not read.launches:
        what = "a smaller model saves into the folder from which the full run then loads"
        yield Found(14, starts[0][0], what, remedy)
        return
    yield from _shared_by_launches(read, remedy)


def _texts(words: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(getattr(word, "text", "") for word in words)


def _shared_by_launches(read: Read, remedy: str) -> Iterator[Found]:
    seen: dict[str, tuple[str, str]] = {}
    for launch in read.launches:
        save = option(launch.arguments, "save")
        shape = tuple(
            found.text if (found := option(launch.arguments, name)) else "" for name in ("num-layers", "hidden-size")
        )
        if save is None:
            continue
        if seen.get(save.shown, shape) != shape:
            yield Found(14, save.line, f"two sizes of model save into {save.shown}", remedy)
        seen[save.shown] = (shape[0], shape[1])
        knobs = {one.name for one in read.script.settings if one.default}
        names_size = any(part and len(part) > 1 and part in save.shown for part in shape)
        if {"NUM_LAYERS", "HIDDEN_SIZE"} & knobs and "CHECKPOINT_PATH" in knobs and not names_size:
            line = next(one.line for one in read.script.settings if one.name == "CHECKPOINT_PATH")
            what = "the model's size is a knob, and every size saves into and loads from one CHECKPOINT_PATH"
            yield Found(14, line, what, remedy)


def _devices(read: Read) -> Iterator[Found]:
    """15: devices that tensor, pipeline and copies do not make up."""
    findings, remedy = read.findings, "devices that do not divide are refused by the plan"
    nodes = findings.taken.get("jobs.training.nodes")
    devices = findings.number("jobs.training.devices_per_node") or read.site.hardware.devices_per_node
    tensor, pipeline = findings.number("parallel.tensor", 1), findings.number("parallel.pipeline", 1)
    if nodes is None or not isinstance(nodes.value, int):
        return
    world = nodes.value * devices
    group = tensor * pipeline * findings.number("parallel.context", 1)
    if world % group:
        what = f"{nodes.value} nodes x {devices} = {world} devices do not divide by tensor x pipeline = {group}"
        line = findings.taken["parallel.tensor"].line if "parallel.tensor" in findings.taken else nodes.line
        yield Found(15, line, what, remedy)
    for one in read.script.settings:
        counts = one.name.lower() in ("num_gpus", "ngpus", "total_gpus") and one.raw.isdigit()
        if counts and int(one.raw) not in (world, devices):
            yield Found(
                15, one.line, f"{one.name}={one.raw}, but {nodes.value} nodes x {devices} are {world} devices", remedy
            )
        if one.name.lower() in ("dp_size", "dp", "dpsize") and one.raw.isdigit() and int(one.raw) * group != world:
            what = f"PP {pipeline} x TP {tensor} x DP {one.raw} = {int(one.raw) * group}, but there are {world} devices"
            yield Found(15, one.line, what, remedy)


def _state(read: Read) -> Iterator[Found]:
    """16: more state than a device holds."""
    model, memory = model_of(read), read.site.hardware.device_memory
    if model is None or not memory or read.findings.value("training.offload"):
        return
    findings = read.findings
    cut = findings.number("parallel.tensor", 1) * findings.number("parallel.pipeline", 1)
    devices = findings.number("jobs.training.devices_per_node") or read.site.hardware.devices_per_node
    copies = max(1, findings.number("jobs.training.nodes", 1) * devices // cut)
    state = state_bytes(parameters_of(model), cut, copies, findings.number("parallel.zero_stage", 1))
    if state > memory:
        taken = findings.taken.get("parallel.zero_stage") or findings.taken["model"]
        what = f"{state / 2**30:.1f} GiB of weights, gradients and optimizer on a device of {memory / 2**30:.0f} GiB"
        yield Found(16, taken.line, what, "the plan refuses it and shows the sum; more tensor, pipeline or copies")


def _nodes(read: Read) -> Iterator[Found]:
    """18: the queue is asked for other nodes than the program is told."""
    remedy = "nodes have one origin: jobs.training.nodes"
    asked = [one for one in read.script.directives if one.name == "nodes" and one.value.isdigit()]
    if not asked and read.script.prose:
        rows = read.script.matching(r"#SBATCH --nodes=(\d+)")
        told = read.script.matching(r"\bnum_node=(\d+)")
        if rows and told and rows[0][1][1] != told[0][1][1]:
            what = f"#SBATCH --nodes={rows[0][1][1]}, but num_node={told[0][1][1]} in line {told[0][0]}"
            yield Found(18, rows[0][0], what, remedy)
    for one in asked[-1:]:
        told_values = [
            (s.name, s.raw, s.line)
            for s in read.script.settings
            if s.name.lower() in ("num_node", "num_nodes", "nnodes") and s.raw.isdigit()
        ]
        told_values += [
            ("--nnodes", word.text, word.line)
            for launch in read.launches
            if (word := option(launch.part("torchrun") or (), "nnodes")) and word.text.isdigit()
        ]
        for name, number, line in told_values:
            if number != one.value:
                yield Found(
                    18, line, f"{name}={number}, but the queue is asked for {one.value} nodes (line {one.line})", remedy
                )
        called = read.called("lumi-13b")
        if called and one.value != "2" and not read.launches:
            what = f"{one.value} nodes are asked for; {called[0].script} has num_node=2 and num_gpus=16 written in"
            yield Found(18, one.line, what, remedy)


def _polaris(read: Read) -> Iterator[Found]:
    """25: a benchmark that is called a training; tensor ranks outside a node."""
    key = read.script.value("MODEL_SIZE_KEY")
    if key and key.text.upper() == "GPT25B":
        what = (
            "GPT25B has 29.3 B parameters; the script runs 10 steps on genomes, with its optimizer in the node's memory"
        )
        yield Found(25, key.line, what, "params/polaris-25b.yaml says so, and the plan shows 29.3 B")
    taken = read.findings.taken.get("parallel.tensor")
    devices = read.findings.number("jobs.training.devices_per_node") or read.site.hardware.devices_per_node
    if taken and taken.line and isinstance(taken.value, int) and taken.value > devices:
        what = f"tensor parallel over {taken.value} devices, on nodes of {devices}"
        yield Found(
            25, taken.line, what, "the plan warns of tensor ranks outside a node; variant tp4-pp8 keeps them inside"
        )


DETECTORS = (_labels, prose_labels, _shared_checkpoints, _devices, _state, _nodes, _polaris)
