"""What a script leaves open: the defaults of its own program, and values that follow from the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.adopt.findings import Findings
from runbook.params.catalogue import Model, Site

MEGATRON: dict[str, Any] = {
    "training.schedule": "linear",
    "training.min_learning_rate": 0.0,
    "training.adam_beta2": 0.999,
    "training.weight_decay": 0.01,
    "training.clip_gradient": 1.0,
    "training.dropout": 0.1,
    "training.init_std": 0.02,
    "training.log_interval": 100,
    "training.eval_interval": 1000,
    "training.eval_iterations": 100,
    "training.save_interval": 0,
    "training.seed": 1234,
    "data.split": "969,30,1",
}
"""What Megatron's own parser takes where an option is missing (both pinned versions), where that is not ours."""
WHY = "the program's own default; the script does not say"


def fill(findings: Findings, framework: str, site: Site, models: Mapping[str, Model], *, from_options: bool) -> None:
    """Give every value that the run needs; what was found in the script stays."""
    if from_options and framework != "nemo":
        for key, value in MEGATRON.items():
            findings.take(key, value, 0, WHY, over=False)
        _precision(findings)
        if framework == "megatron-lm":
            findings.take("parallel.zero_stage", 0, 0, "no --use-distributed-optimizer", over=False)
    if "data.dataset" not in findings.taken:
        findings.leave(0, "the text", "the script names none: the small shipped corpus is taken; set data.dataset")
    _length(findings)
    _nodes(findings, site, models)
    _batch(findings, site)
    if findings.value("parallel.sequence") and findings.number("parallel.tensor", 1) == 1:
        line = findings.taken["parallel.sequence"].line
        findings.does(line, "sequence parallelism with one tensor rank", "the program switches it off; so do we")
        findings.take("parallel.sequence", False, line, "one tensor rank")
    if findings.value("training.offload") is False:
        findings.drop("training.offload")


def _precision(findings: Findings) -> None:
    findings.take("training.precision", "fp32", 0, "neither --fp16 nor --bf16", over=False)
    if findings.value("training.precision") == "fp16" and "training.initial_loss_scale" not in findings.taken:
        findings.take("training.initial_loss_scale", 65536.0, 0, "the program's own 2^32 skips the first 16 steps")


def _length(findings: Findings) -> None:
    """Of the lengths exactly one: the document's own, tokens before samples before iterations."""
    given = [key for key in ("tokens", "samples", "iterations") if findings.value(f"training.{key}")]
    for key in given[1:]:
        one = findings.taken[f"training.{key}"]
        kept = f"training.{given[0]}"
        findings.leave(one.line, f"{one.source} {one.value:,}", f"a second length; {kept} says how long")
        findings.drop(one.key)
    if not given:
        findings.take("training.iterations", 1000, 0, "the script does not say how long")
    for name in ("warmup", "decay"):
        units = [f"training.{name}_{unit}" for unit in ("tokens", "samples", "iterations", "fraction")]
        there = [key for key in units if key in findings.taken]
        zero = [key for key in there if not findings.value(key)]
        findings.drop(*zero, *[key for key in there if key not in zero][1:])


def _nodes(findings: Findings, site: Site, models: Mapping[str, Model]) -> None:
    """Nodes that the layout fills, where the script leaves them to sbatch or qsub."""
    devices = findings.number("jobs.training.devices_per_node") or site.hardware.devices_per_node
    group = findings.number("parallel.tensor", 1) * findings.number("parallel.pipeline", 1)
    group *= max(1, findings.number("parallel.context", 1))
    if "jobs.training.nodes" not in findings.taken:
        nodes = next(count for count in range(1, group + 1) if count * devices % group == 0)
        why = f"not in the script: the fewest nodes of {devices} devices that {group} divides"
        findings.take("jobs.training.nodes", nodes, 0, why)
    if findings.value("parallel.context") == 0:  # Ulysses over all devices
        nodes = findings.number("jobs.training.nodes", 1)
        findings.take("parallel.context", nodes * devices, findings.taken["parallel.context"].line, "SP_TYPE=ds")


def _batch(findings: Findings, site: Site) -> None:
    """The global batch where only the micro-batch, or GAS, is given: micro x copies x GAS."""
    steps = findings.number("gas", 1)
    gas = findings.taken.get("gas")
    findings.drop("gas")
    if "training.global_batch" in findings.taken and not (gas and findings.taken["training.global_batch"].line == 0):
        return
    devices = findings.number("jobs.training.devices_per_node") or site.hardware.devices_per_node
    world = findings.number("jobs.training.nodes", 1) * devices
    group = findings.number("parallel.tensor", 1) * findings.number("parallel.pipeline", 1)
    group *= findings.number("parallel.context", 1)
    micro = findings.number("training.micro_batch", 1)
    batch = micro * max(1, world // group) * steps
    source = f"{micro} micro x {max(1, world // group)} copies x {steps} steps"
    findings.take("training.global_batch", batch, gas.line if gas else 0, source)
