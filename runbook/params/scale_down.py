"""A run file scaled down to another, smaller site: what is reduced or left out there, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runbook.params.layers import GIVEN, SCALED_DOWN, Layer, LayerStack, Origin
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site

CORPUS = "corpus"
"""The dataset that is available everywhere, for runs whose own is not available here."""

ELSEWHERE = (
    "partition",
    "account",
    "qos",
    "reservation",
    "memory",
    "cpus_per_task",
    "tasks_per_node",
)
"""The keys of a phase that are meant for the other site's scheduler."""


def scale_down(
    stack: LayerStack,
    site: Site,
    model: Model,
    smoke_model: Model,
    texts: Sequence[Dataset],
) -> Layer:
    """Return the layer that adapts another site's run file to `site`.

    Return an empty one if the run file's own site is used. Only values from files are changed. A
    value given by hand is kept, and the plan's rules check it.
    """
    layer = Layer(SCALED_DOWN)
    chain = stack.chains["site"]
    home = next(origin.value for origin in reversed(chain) if origin.layer not in GIVEN)
    if not site.rehearses or chain[-1].layer not in GIVEN or home == site.site:
        return layer
    changes = _Changes(stack, site, layer)
    _jobs(changes)
    _training(changes)
    longest = model.positions or model.sequence_length
    if changes.now("training.sequence_length") > longest:
        changes.put("training.sequence_length", 0, f"the model has {longest} positions")
    full = ("parallel.tensor", "parallel.pipeline", "training.micro_batch", "training.global_batch")
    _cut(changes, model, "jobs.training", full)
    smoke = tuple(f"training.smoke.{key.rpartition('.')[2]}" for key in full)
    _cut(changes, smoke_model, "jobs.smoke", smoke)
    if changes.now("parallel.tensor") == 1:
        changes.put("parallel.sequence", False, "one tensor rank has the whole sequence")
    elif (
        changes.now("training.framework") == "runbook"
        and changes.now("training.engine") == "deepspeed"
    ):
        changes.put("parallel.sequence", False, "our own trainer cuts no sequence under DeepSpeed")

    _data(changes, texts)
    return layer


@dataclass
class _Changes:
    stack: LayerStack
    site: Site
    layer: Layer

    def now(self, key: str) -> Any:
        """Return the value so far."""
        if key in self.layer.leaves:
            return self.layer.leaves[key].value
        return self.stack.value(key)

    def own(self, key: str) -> Any:
        """Return this site's own value, or else the default."""
        return next(
            origin.value
            for origin in reversed(self.stack.chains[key])
            if origin.layer in ("site", "built-in")
        )

    def put(
        self,
        key: str,
        value: Any,
        why: str,
    ) -> None:
        """Change a value that a file gave. One given by hand stays."""
        was = self.stack.value(key)
        if was == value or self.stack.chains[key][-1].layer in GIVEN:
            return
        self.layer.leaves[key] = Origin(
            SCALED_DOWN, f"{was} does not fit site {self.site.site}: {why}", value
        )


def _jobs(changes: _Changes) -> None:
    hardware = changes.site.hardware
    for section in JOB_SECTIONS.values():
        key = f"jobs.{section}"
        if hardware.nodes:
            changes.put(
                f"{key}.nodes",
                min(changes.now(f"{key}.nodes"), hardware.nodes),
                "it has no more nodes",
            )

        devices = min(changes.now(f"{key}.devices_per_node"), hardware.devices_per_node)
        changes.put(f"{key}.devices_per_node", devices, "a node has no more devices")
        for name in ELSEWHERE:
            changes.put(
                f"{key}.{name}",
                changes.own(f"{key}.{name}"),
                "it belongs to the other site's queue",
            )

        if changes.site.scheduler == "local":
            changes.put(f"{key}.array", 0, "it has no queue")

    if changes.site.scheduler == "local":
        changes.put("jobs.data.nodes", 1, "it has no queue")
    for name in ("account", "stage", "image", "environment_copy", "switch", "launcher"):
        changes.put(f"jobs.{name}", changes.own(f"jobs.{name}"), "it belongs to the other site")


def _training(changes: _Changes) -> None:
    framework = changes.now("training.framework")
    if framework != "runbook" and framework not in changes.site.frameworks:
        changes.put("training.framework", "runbook", f"it has no {framework}; our own trainer runs")
    if changes.site.hardware.device == "cpu" and changes.now("training.precision") == "fp16":
        changes.put("training.precision", "bf16", "torch has no fp16 training on a CPU")
    if changes.now("training.framework") == "runbook":
        changes.put("parallel.context", 1, "our own trainer has no context parallelism")
        changes.put(
            "parallel.zero_stage",
            min(1, changes.now("parallel.zero_stage")),
            "our own trainer shares stage 1",
        )
        changes.put("training.offload", False, "our own trainer keeps its states where it computes")


def _cut(
    changes: _Changes,
    model: Model,
    job: str,
    keys: tuple[str, ...],
) -> None:
    tensor, pipeline, micro, batch = keys
    devices = changes.now(f"{job}.devices_per_node") or changes.site.hardware.devices_per_node
    world = changes.now(f"{job}.nodes") * devices
    why = f"the model goes over {world} devices"
    changes.put(
        tensor,
        math.gcd(changes.now(tensor), world, model.heads, model.ffn_hidden or 4 * model.hidden),
        why,
    )
    ranks_per_tensor_group = world // math.gcd(changes.now(tensor), world)
    changes.put(
        pipeline, math.gcd(changes.now(pipeline), ranks_per_tensor_group, model.layers), why
    )
    chunks = changes.now(pipeline) * changes.now("parallel.virtual_pipeline")
    if changes.now(pipeline) == 1 or model.layers % chunks:
        changes.put("parallel.virtual_pipeline", 1, "its layers are not cut that often")
    step = changes.now(micro) * max(1, ranks_per_tensor_group // changes.now(pipeline))
    planned_batch = changes.now(batch)
    if planned_batch:
        changes.put(batch, max(step, round(planned_batch / step) * step), f"it divides by {step}")


def _data(changes: _Changes, texts: Sequence[Dataset]) -> None:
    if all(text.kind in ("corpus", "mock", "local") for text in texts):
        return
    changes.put("data.blend", "", "some of its texts are not here")
    changes.put("data.dataset", CORPUS, "the text is not here; the shipped corpus is")
    if changes.now("data.dataset") == CORPUS:
        changes.put("data.folder", "", "the text is not here")
        changes.put("data.bucket", "", "nothing is copied")
        changes.put("data.text_key", "text", "the shipped corpus is read")
        changes.put("data.source_key", "auto", "the shipped corpus is read")
        for name in ("keep_sources", "drop_sources"):
            changes.put(f"data.{name}", "", "the sources are those of the other text")
        changes.put("data.fix_text", "none", "the shipped corpus has nothing to repair")
        changes.put("data.held_out", 0, "the corpus has too few files; data.split cuts each")
        changes.put(
            "data.split", "949,50,1", "the corpus is small, and needs text to validate with"
        )
