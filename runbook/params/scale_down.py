"""Scales a run file down to a smaller site, with the reason for each change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runbook.params.layers import GIVEN, SCALED_DOWN, Layer, LayerStack, Origin
from runbook.params.messages import ParamsMessage, ScaleDownReason
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import JOB_SECTIONS
from runbook.params.schema.site import Site
from runbook.plan_file.diagnostics import Statement

CORPUS = "corpus"
"""The dataset that is available everywhere.

Used to replace a dataset that is not available here.
"""

ELSEWHERE = (
    "partition",
    "account",
    "qos",
    "reservation",
    "memory",
    "cpus_per_task",
    "tasks_per_node",
)
"""Keys for a phase that only apply to the scheduler on the other site."""


def scale_down(
    stack: LayerStack,
    site: Site,
    model: Model,
    smoke_model: Model,
    texts: Sequence[Dataset],
) -> Layer:
    """Return a layer that adapts a run file written for a different site to `site`.

    The layer is empty if the run file already uses this site. Only values from files are changed.
    Values that the user gives are kept, and checked by the plan rules.
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
        changes.put(
            "training.sequence_length", 0, ScaleDownReason.MODEL_POSITIONS.of(positions=longest)
        )
    full = ("parallel.tensor", "parallel.pipeline", "training.micro_batch", "training.global_batch")
    _cut(changes, model, "jobs.training", full)
    smoke = tuple(f"training.smoke.{key.rpartition('.')[2]}" for key in full)
    _cut(changes, smoke_model, "jobs.smoke", smoke)
    if changes.now("parallel.tensor") == 1:
        changes.put("parallel.sequence", False, ScaleDownReason.ONE_TENSOR_RANK.of())
    elif (
        changes.now("training.framework") == "runbook"
        and changes.now("training.engine") == "deepspeed"
    ):
        changes.put("parallel.sequence", False, ScaleDownReason.NO_SEQUENCE_UNDER_DEEPSPEED.of())

    _data(changes, texts)
    return layer


@dataclass
class _Changes:
    stack: LayerStack
    site: Site
    layer: Layer

    def now(self, key: str) -> Any:
        """Return the current value."""
        if key in self.layer.leaves:
            return self.layer.leaves[key].value
        return self.stack.value(key)

    def own(self, key: str) -> Any:
        """Return the value set by this site, or the default if the site does not set it."""
        return next(
            origin.value
            for origin in reversed(self.stack.chains[key])
            if origin.layer in ("site", "built-in")
        )

    def put(
        self,
        key: str,
        value: Any,
        reason: Statement,
    ) -> None:
        """Change a value set in a file. A value given by the user is not changed."""
        was = self.stack.value(key)
        if was == value or self.stack.chains[key][-1].layer in GIVEN:
            return
        where = ParamsMessage.SCALED_DOWN.fill(value=was, site=self.site.site, reason=reason)
        self.layer.leaves[key] = Origin(SCALED_DOWN, where, value)


def _jobs(changes: _Changes) -> None:
    hardware = changes.site.hardware
    for section in JOB_SECTIONS.values():
        key = f"jobs.{section}"
        if hardware.nodes:
            changes.put(
                f"{key}.nodes",
                min(changes.now(f"{key}.nodes"), hardware.nodes),
                ScaleDownReason.NO_MORE_NODES.of(),
            )

        devices = min(changes.now(f"{key}.devices_per_node"), hardware.devices_per_node)
        changes.put(f"{key}.devices_per_node", devices, ScaleDownReason.NO_MORE_DEVICES.of())
        for name in ELSEWHERE:
            changes.put(
                f"{key}.{name}",
                changes.own(f"{key}.{name}"),
                ScaleDownReason.BELONGS_TO_THE_QUEUE.of(),
            )

        if changes.site.scheduler == "local":
            changes.put(f"{key}.array", 0, ScaleDownReason.NO_QUEUE.of())

    if changes.site.scheduler == "local":
        changes.put("jobs.data.nodes", 1, ScaleDownReason.NO_QUEUE.of())
    for name in ("account", "stage", "image", "environment_copy", "switch", "launcher"):
        changes.put(
            f"jobs.{name}", changes.own(f"jobs.{name}"), ScaleDownReason.BELONGS_TO_THE_SITE.of()
        )


def _training(changes: _Changes) -> None:
    framework = changes.now("training.framework")
    if framework != "runbook" and framework not in changes.site.frameworks:
        changes.put(
            "training.framework",
            "runbook",
            ScaleDownReason.NO_SUCH_FRAMEWORK.of(framework=framework),
        )
    if changes.site.hardware.device == "cpu" and changes.now("training.precision") == "fp16":
        changes.put("training.precision", "bf16", ScaleDownReason.NO_FP16_ON_A_CPU.of())
    if changes.now("training.framework") == "runbook":
        changes.put("parallel.context", 1, ScaleDownReason.NO_CONTEXT_PARALLELISM.of())
        changes.put(
            "parallel.zero_stage",
            min(1, changes.now("parallel.zero_stage")),
            ScaleDownReason.SHARES_STAGE_1.of(),
        )
        changes.put("training.offload", False, ScaleDownReason.NO_OFFLOAD.of())


def _cut(
    changes: _Changes,
    model: Model,
    job: str,
    keys: tuple[str, ...],
) -> None:
    tensor, pipeline, micro, batch = keys
    devices = changes.now(f"{job}.devices_per_node") or changes.site.hardware.devices_per_node
    world = changes.now(f"{job}.nodes") * devices
    reason = ScaleDownReason.MODEL_OVER_DEVICES.of(devices=world)
    changes.put(
        tensor,
        math.gcd(changes.now(tensor), world, model.heads, model.ffn_hidden or 4 * model.hidden),
        reason,
    )
    ranks_per_tensor_group = world // math.gcd(changes.now(tensor), world)
    changes.put(
        pipeline, math.gcd(changes.now(pipeline), ranks_per_tensor_group, model.layers), reason
    )
    chunks = changes.now(pipeline) * changes.now("parallel.virtual_pipeline")
    if changes.now(pipeline) == 1 or model.layers % chunks:
        changes.put("parallel.virtual_pipeline", 1, ScaleDownReason.FEWER_CHUNKS.of())
    step = changes.now(micro) * max(1, ranks_per_tensor_group // changes.now(pipeline))
    planned_batch = changes.now(batch)
    if planned_batch:
        changes.put(
            batch,
            max(step, round(planned_batch / step) * step),
            ScaleDownReason.DIVIDES_BY.of(step=step),
        )


def _data(changes: _Changes, texts: Sequence[Dataset]) -> None:
    if all(text.kind in ("corpus", "mock", "local") for text in texts):
        return
    changes.put("data.blend", "", ScaleDownReason.SOME_TEXTS_MISSING.of())
    changes.put("data.dataset", CORPUS, ScaleDownReason.CORPUS_IS_HERE.of())
    if changes.now("data.dataset") == CORPUS:
        changes.put("data.folder", "", ScaleDownReason.TEXT_MISSING.of())
        changes.put("data.bucket", "", ScaleDownReason.NOTHING_COPIED.of())
        changes.put("data.text_key", "text", ScaleDownReason.CORPUS_IS_READ.of())
        changes.put("data.source_key", "auto", ScaleDownReason.CORPUS_IS_READ.of())
        for name in ("keep_sources", "drop_sources"):
            changes.put(f"data.{name}", "", ScaleDownReason.SOURCES_OF_THE_OTHER_TEXT.of())
        changes.put("data.fix_text", "none", ScaleDownReason.CORPUS_IS_CLEAN.of())
        changes.put("data.held_out", 0, ScaleDownReason.CORPUS_HAS_FEW_FILES.of())
        changes.put("data.split", "949,50,1", ScaleDownReason.CORPUS_NEEDS_VALIDATION.of())
