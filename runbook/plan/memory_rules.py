"""Whether what a training needs fits into the memory there is: a device's, and the node's."""

from __future__ import annotations

from runbook.params.schema import Recompute
from runbook.plan.checks import Check
from runbook.plan.choices import Choice
from runbook.plan.machine import Machine
from runbook.plan.memory import StageMemory, node_bytes
from runbook.units import show_bytes


def memory_limit(choice: Choice, machine: Machine | None) -> int:
    """Bytes there are: of a device, or of a node where there is no accelerator; 0: not known."""
    if not choice.on_cpu:
        return choice.site.hardware.device_memory
    return (machine.memory_bytes if machine else 0) or choice.site.hardware.node_memory


def check_memory(choice: Choice, stages: list[StageMemory], machine: Machine | None) -> Check:
    """Fails where not even the least fits; warns where only an attention that keeps no scores fits."""
    limit = memory_limit(choice, machine)
    fullest = max(stages, key=lambda stage: stage.most)
    if choice.on_cpu:
        least, most = node_bytes(stages, choice.devices_per_node)
        who, what = f"{choice.devices_per_node} processes", "the node's memory"
    else:
        least, most = max(stage.least for stage in stages), fullest.most
        who, what = f"stage {fullest.stage}, the fullest,", f"one {choice.site.hardware.device}"
    name, rule = f"{choice.phase}: memory", f"states, activations and logits fit into {what}"
    value = f"{who} need {show_bytes(least)}"
    if most > least:
        value += f" ({show_bytes(most)} where attention scores are kept)"
    value += f"; states alone {show_bytes(fullest.states)} a rank"
    if not limit:
        return Check(name, "unknown", f"{value}; how much there is, is not known", rule)
    value += f"; there are {show_bytes(limit)}"
    if least > limit:
        return Check(name, "fail", value, rule, _remedy(choice))
    if most > limit:
        return Check(name, "warn", value, rule, "Make sure that flash attention is used, or set training.recompute.")
    return Check(name, "pass", value, rule)


def check_host_memory(choice: Choice, stages: list[StageMemory]) -> list[Check]:
    """Whether a node's main memory holds the optimizer's states that are offloaded to it; nothing where none are."""
    if not choice.training.offload or choice.smoke:
        return []
    name, rule = "offload", "the node's main memory holds what its devices offload"
    if not choice.deepspeed or choice.zero_stage == 0:
        how = f"training.framework={choice.training.framework}, parallel.zero_stage={choice.zero_stage}"
        remedy = "Set parallel.zero_stage to 1 or more with DeepSpeed, or training.offload to false."
        return [Check(name, "fail", how, "DeepSpeed offloads the optimizer's states that ZeRO 1 to 3 share", remedy)]
    need, limit = choice.devices_per_node * max(stage.host for stage in stages), choice.site.hardware.node_memory
    value = f"{choice.devices_per_node} devices offload {show_bytes(need)}; the host's step is not in the planned time"
    if not limit:
        return [Check(name, "unknown", f"{value}; how much memory a node has is not known", rule)]
    value += f"; a node has {show_bytes(limit)}"
    if need <= limit:
        return [Check(name, "warn", value, rule, "Take the step time from the smoke test.")]
    return [Check(name, "fail", value, rule, f"More nodes in {choice.keys.job}.nodes, which share the states.")]


def _remedy(choice: Choice) -> str:
    keys = choice.keys
    ways = [f"a larger {keys.tensor} or {keys.pipeline}"]
    if choice.micro_batch > 1:
        ways.append(f"{keys.micro_batch} 1")
    if choice.training.recompute is not Recompute.FULL:
        ways.append("training.recompute full")
    if choice.zero_stage == 0:
        ways.append("parallel.zero_stage 1")
    elif choice.deepspeed and choice.pipeline == 1 and choice.zero_stage < 3:
        ways.append(f"parallel.zero_stage {choice.zero_stage + 1}")
    if choice.deepspeed and not choice.own_trainer and choice.zero_stage and not choice.training.offload:
        ways.append("training.offload true")
    return f"What makes it smaller: {', '.join(ways)}, or more nodes in {keys.job}.nodes for the shared states."
