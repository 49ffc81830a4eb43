"""Handles values left open by the source, or found to be inconsistent.

Each of these values becomes a question in the run file, with a placeholder value, instead of an
error.
"""

from collections.abc import Callable, Mapping, Sequence

from runbook.core.checks import Check
from runbook.params.schema.entries import Model
from runbook.plan_file.diagnostics import Code
from runbook.plan_file.rules.codes import RuleCode
from runbook.planning.rule_codes import PlanCode
from runbook.tools.adopt.adoption import leave_offload
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage

Models = Mapping[str, Model]
Answer = Callable[[Findings, Models], bool]
"""Function called to change a value so that a check passes. It returns False if it cannot."""
_MOST_NODES = 1024


def leave_open(checks: Sequence[Check], findings: Findings, models: Models) -> bool:
    """Fix as many failed checks as possible by changing values. Return whether a value changed."""
    changes = []
    for check in checks:
        for change in _answers(check):
            changes.append(change(findings, models))

    return any(changes)


def _answers(check: Check) -> list[Answer]:
    """Return the functions used to make a check pass."""
    by_code = _BY_CODE.get(check.code) if check.code else None
    if by_code:
        return [by_code]
    if check.keys[-1:] == ("jobs.training.nodes",) and "training.recompute" in check.keys:
        # The layout does not fit into device memory
        return [_nodes_for_memory]

    return [answer for keys, answer in _BY_KEYS if check.keys == keys]


def _smoke_sequence(findings: Findings, models: Models) -> bool:
    """Set the sequence length in the smoke test to the number of positions in its model."""
    smoke = models[str(findings.value("training.smoke.model", "")) or _SMOKE_MODEL]
    positions = smoke.positions or smoke.sequence_length
    key = "training.smoke.sequence_length"
    if findings.number(key) == positions:
        return False
    findings.take(key, positions, 0, "the number of positions of the smoke test's model")
    return True


_SMOKE_MODEL = "375m"
"""The default model for a smoke test (training.smoke.model)."""


def _nodes_of_layout(findings: Findings, _: Models) -> bool:
    """Choose the fewest nodes that the layout fills."""
    group = findings.model_parallel * max(1, findings.number("parallel.context", 1))
    devices = findings.devices_per_node
    nodes = findings.number("jobs.training.nodes", 1)
    fitting = next(
        (count for count in range(nodes, group + nodes + 1) if count * devices % group == 0), 0
    )
    if not fitting or fitting == nodes:
        return False
    carried = findings.carried.get("jobs.training.nodes")
    line = carried.line if carried else 0
    source = f"{nodes} x {devices} devices are too few for tensor x pipeline x context = {group}"
    findings.take("jobs.training.nodes", fitting, line, source)
    findings.ask("jobs.training.nodes", f"how many nodes: {source}")
    return True


def _global_batch(findings: Findings, _: Models) -> bool:
    """Choose the nearest global batch that can be divided over the devices."""
    if findings.number("training.rampup_start"):
        return False
    group = findings.model_parallel * max(1, findings.number("parallel.context", 1))
    world = findings.number("jobs.training.nodes", 1) * findings.devices_per_node
    micro_batch = findings.number("training.micro_batch", 1)
    sequences = micro_batch * max(1, world // group)
    batch = findings.number("training.global_batch", sequences)
    nearest = max(1, round(batch / sequences)) * sequences
    if nearest == batch:
        return False
    carried = findings.carried.get("training.global_batch")
    line = carried.line if carried else 0
    source = (
        f"{batch} is not divisible by {micro_batch} micro x {sequences // micro_batch} replicas"
    )
    findings.take("training.global_batch", nearest, line, source)
    findings.ask("training.global_batch", f"the global batch, or the nodes: {source}")
    return True


def _stages(findings: Findings, models: Models) -> bool:
    """Choose the most stages, up to the number in the source, that divide the layers."""
    model = models.get(str(findings.value("model")))
    layers = findings.number("training.shape.layers") or (model.layers if model else 0)
    if "parallel.virtual_pipeline" in findings.carried:
        source = "layers are not divisible by pipeline x virtual pipeline: no chunks"
        findings.ask("parallel.virtual_pipeline", f"chunks of a stage: {source}")
        findings.drop("parallel.virtual_pipeline")
        return True

    carried = findings.carried.get("parallel.pipeline")
    if not layers or carried is None or layers % carried.value == 0:
        return False
    if (layers + 2) % carried.value == 0 and "parallel.first_stage_layers" not in findings.carried:
        ends = (layers + 2) // carried.value - 1
        source = f"{layers} layers, embedding and output layer over {carried.value} stages"
        findings.take("parallel.first_stage_layers", ends, carried.line, source)
        findings.take("parallel.last_stage_layers", ends, carried.line, source)
        return True

    stages = max(count for count in range(1, carried.value + 1) if layers % count == 0)
    source = f"{layers} layers are not divisible by {carried.value} stages"
    findings.take("parallel.pipeline", stages, carried.line, source)
    findings.ask("parallel.pipeline", f"the stages, or the layers: {source}")
    if stages == 1:
        findings.drop("parallel.virtual_pipeline")
    return True


def _length(findings: Findings, _: Models) -> bool:
    """Make a placeholder length long enough for the warm-up."""
    carried = findings.carried.get("training.iterations")
    if carried is None:
        return False
    _count_whole_warmup(carried.value, findings)
    warmup = findings.number("training.warmup_iterations")
    if carried.line:
        return _long_decay(warmup, findings)
    samples = max(
        findings.number("training.warmup_samples"),
        findings.number("training.decay_samples"),
    )
    warmup = max(warmup, samples // max(1, findings.number("training.global_batch", 1)))
    longest = max(10 * warmup, findings.number("training.decay_iterations"), carried.value)
    if longest == carried.value:
        return False
    findings.take(
        "training.iterations", longest, 0, "placeholder: ten times the warm-up, or the decay"
    )
    findings.ask("training.iterations", AdoptMessage.NO_LENGTH.fill())
    return True


def _count_whole_warmup(iterations: int, findings: Findings) -> None:
    """Give the warm-up in steps if it lasts for the whole training run.

    As a fraction of the decay, it would grow with the decay.
    """
    carried = findings.carried.get("training.warmup_fraction")
    if carried is None or carried.value < 1:
        return
    findings.drop("training.warmup_fraction")
    source = f"{carried.source} {carried.value:g}: the whole training run"
    findings.take("training.warmup_iterations", iterations, carried.line, source)


def _long_decay(warmup: int, findings: Findings) -> bool:
    """Let the decay start after a warm-up that is longer than the training."""
    if not warmup or findings.number("training.decay_iterations") > warmup:
        return False
    source = f"training ends within its {warmup} warm-up steps"
    findings.take("training.decay_iterations", warmup + 1, 0, source)
    return True


def _recomputed_groups(findings: Findings, _: Models) -> bool:
    """Recompute each layer separately if the stages cannot be divided into groups of layers."""
    carried = findings.carried.get("training.recompute_num_layers")
    if carried is None or carried.value == 1:
        return False
    source = f"groups of {carried.value} layers do not divide the layers of every stage"
    findings.take("training.recompute_num_layers", 1, carried.line, source)
    return True


def _offload(findings: Findings, _: Models) -> bool:
    """Drop offloading if the program does not support it or has nothing to offload."""
    if "training.offload" not in findings.carried:
        return False
    leave_offload(findings)
    return True


def _nodes_for_memory(findings: Findings, _: Models) -> bool:
    """Shard the optimizer states over more nodes, if the source does not set their number."""
    carried = findings.carried.get("jobs.training.nodes")
    if carried is None or (carried.line and "jobs.training.nodes" not in findings.questions):
        return False
    if not findings.number("parallel.zero_stage", 1) or carried.value >= _MOST_NODES:
        return False
    nodes = 2 * carried.value
    source = (
        "with more nodes, each has a smaller part of the optimizer's states; the source does not "
        "set the number of nodes"
    )
    findings.take("jobs.training.nodes", nodes, 0, source)
    findings.ask(
        "jobs.training.nodes", f"number of nodes: on {carried.value}, the states do not fit"
    )
    return True


def _tokenizer(findings: Findings, _: Models) -> bool:
    """Ask for the tokenizer if the model has a smaller vocabulary than GPT-2."""
    if findings.value("data.tokenizer", "gpt2") != "gpt2":
        return False
    findings.ask_for_tokenizer("", 0, "the model's vocabulary")
    return True


_BY_CODE: Mapping[Code, Answer] = {
    RuleCode.POSITIONS: _smoke_sequence,
    RuleCode.LAYERS_BY_PIPELINE: _stages,
    RuleCode.RECOMPUTED_GROUPS: _recomputed_groups,
    PlanCode.WORLD_SIZE: _nodes_of_layout,
    PlanCode.BATCH_DIVIDES: _global_batch,
    PlanCode.WARMUP_WITHIN_DECAY: _length,
    PlanCode.WARMUP_WITHIN_RUN: _length,
    PlanCode.DECAY_WITHIN_RUN: _length,
}
_BY_KEYS: Sequence[tuple[tuple[str, ...], Answer]] = (
    (("data.tokenizer", "model"), _tokenizer),
    (("training.offload", "parallel.zero_stage", "training.framework"), _offload),
)
"""Functions used to fix checks that have no code, by check key."""
