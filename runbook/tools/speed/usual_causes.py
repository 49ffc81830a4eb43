"""How often each cause explains slow training runs of one kind, whatever the text says.

The shares come from public threads where the asker or a maintainer accepted a cause. The shares are
the prior that `suspects` multiplies by factors for the words in a text.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from runbook.planning.cost.accelerators import find_accelerator
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.phrases import is_stated

_NODES = (
    r"\bmulti(?:ple)?[- ]?(?:nodes?|machines?|hosts?|servers?)\b"
    r"|\b(?:more|several|many|different)[- ]?(?:nodes?|machines?|hosts?|servers?)\b"
    r"|\bn?nodes[ =:]+(?:[2-9]|\d{2,})\b"
    r"|\b(?:[2-9]|\d{2,}|two|three|four|eight) ?(?:\w+ )?(?:nodes|machines|hosts|servers)\b"
    r"|\b(?:across|between) (?:\w+ )?(?:nodes|machines|hosts)\b"
)
_DEVICES = (
    r"\b(?:multi(?:ple)?|more|several|many|all|both)[- ]?(?:the )?(?:gpus?|cards?|devices)\b"
    r"|(?<![\w.:：-])(?:[2-9]|\d{2,3}|two|four|eight)(?:\b|(?=x)) ?(?:x |[x×*])? ?"
    r"(?:\w+ )?(?:gpus?|cards?|[abhv]\d{2,3}s?)\b(?! ?[:：])"
    r"|\b(?:ddp|fsdp|horovod|torchrun|nccl|zero[- ]?(?:stage[- ]?)?[123]|stage[- ]?3)\b|\bn_?gpus?\b|\bnproc\w*[ =]+[2-9]"
    r"|\bdistributed(?:data)?[ -]?(?:parallel\w*|training)\b"
)
_LANGUAGE_MODEL = (
    r"\b(?:llms?|llama\S*|gpt\S*|bert\S*|roberta|t5|qwen\S*|mi[sx]tral\S*|falcon\S*|gemma\S*|megatron\S*"
    r"|q?lora|tokens?|language model\w*)\b"
)
"""Words for language models, whose samples are small and are prepared before training."""
_NEVER_SEEN = 0.2
"""Number of threads assumed for a cause if no thread with this setting accepted it."""
LOG_SHARE_OF_OTHERS = math.log(0.05)
"""Natural logarithm of the share of threads assumed for a cause that is not in the table.

Saves, evaluations, debug options and others were each accepted in 4 or 5 of 99 threads, which
always mentioned them.
"""


class TrainingKind(StrEnum):
    """Kinds of training runs, which differ in the usual causes."""

    NODES = "several nodes"
    DEVICES = "several devices"
    TEXT = "a language model"
    ANY = "any training"


@dataclass(frozen=True)
class UsualCause:
    """A cause, and how many threads accepted it although their words did not name it."""

    cause: str
    remedy: str
    nodes: float
    devices: float
    text: float
    """Threads about a language model on one device, or on an unknown number of devices.
    """
    others: float

    def threads(self, setting: TrainingKind) -> float:
        """Return how many threads for a setting accepted the cause."""
        by_setting = {
            TrainingKind.NODES: self.nodes,
            TrainingKind.DEVICES: self.devices,
            TrainingKind.TEXT: self.text,
            TrainingKind.ANY: self.others,
        }
        return by_setting[setting]


USUAL_CAUSES = (
    UsualCause(
        "network",
        "measure an all-reduce between the nodes, and check with NCCL_DEBUG=INFO which network it "
        "uses",
        nodes=8,
        devices=0.5,
        text=0,
        others=0,
    ),
    UsualCause(
        "communication",
        "check in a profile which collectives ranks wait for; nvidia-smi topo -m shows the links",
        nodes=2,
        devices=7,
        text=0,
        others=0.5,
    ),
    UsualCause(
        "unequal work",
        "compare tokens/s per device: the other run may have different batches, lengths or devices",
        nodes=0.5,
        devices=8,
        text=3,
        others=4,
    ),
    UsualCause(
        "data wait",
        "time a run on random tokens, without the loader; use one worker for each core",
        nodes=0.5,
        devices=3,
        text=1,
        others=12,
    ),
    UsualCause(
        "DataParallel",
        "start one process per device: torchrun and DistributedDataParallel",
        nodes=0,
        devices=3,
        text=0,
        others=0,
    ),
    UsualCause(
        "micro-batch",
        "use a larger micro-batch, if it fits",
        nodes=0,
        devices=2,
        text=2,
        others=2,
    ),
    UsualCause(
        "gradient accumulation",
        "a step has several micro-batches: compare tokens/s per device",
        nodes=0,
        devices=2,
        text=0.5,
        others=0,
    ),
    UsualCause(
        "stragglers",
        "look at clocks, temperatures and errors of each device",
        nodes=0.5,
        devices=2,
        text=0,
        others=0,
    ),
    UsualCause(
        "host",
        "check how many cores each rank gets (cpus-per-task, OMP_NUM_THREADS), and profile "
        "the host code",
        nodes=0,
        devices=1,
        text=0,
        others=3,
    ),
    UsualCause(
        "no device",
        "check nvidia-smi, and torch.cuda.is_available() on each rank",
        nodes=0,
        devices=0,
        text=1,
        others=5,
    ),
    UsualCause(
        "software version",
        "time the same step with another version of PyTorch, CUDA and the driver",
        nodes=0,
        devices=0,
        text=1,
        others=3,
    ),
    UsualCause(
        "evaluation",
        "evaluate less often, or on fewer batches; check which steps are slow",
        nodes=0,
        devices=0.5,
        text=0,
        others=2,
    ),
    UsualCause(
        "recompute",
        "keep activations, or recompute selectively",
        nodes=0,
        devices=0,
        text=2,
        others=0,
    ),
    UsualCause(
        "precision",
        "use 16-bit products, which are fast on tensor cores; check in a profile what they reach",
        nodes=0,
        devices=0.5,
        text=2,
        others=0,
    ),
    UsualCause(
        "flash attention",
        "check in a profile which attention kernel runs",
        nodes=0,
        devices=1,
        text=2,
        others=0,
    ),
)
"""Causes that askers do not name, with the threads that accepted them: 92 of 160 public threads.

The threads are from before 2026-11-28. A thread with two accepted causes counts half for each.
Threads that name the cause, as most do for saves and offloads, are not counted.
"""


def setting_of(text: str, facts: Facts) -> TrainingKind:
    """Return the kind of training run that a lower-case text or its facts describe.

    >>> setting_of("slow on two nodes", {}), setting_of("slow on 8 gpus", {}), setting_of("slow", {})
    (<TrainingKind.NODES: 'several nodes'>, <TrainingKind.DEVICES: 'several devices'>, <TrainingKind.ANY: 'any training'>)
    """
    if spans_nodes(facts) or is_stated(_NODES, text):
        return TrainingKind.NODES
    if is_stated(_DEVICES, text):
        return TrainingKind.DEVICES
    return TrainingKind.TEXT if is_stated(_LANGUAGE_MODEL, text) else TrainingKind.ANY


def spans_nodes(facts: Facts) -> bool:
    """Return whether the training needs more than one node; False if the device is not known."""
    device = find_accelerator(facts.get("accelerator", ""))
    if device is None:
        return False
    return float(facts.get("n_accel") or 1) > device.devices_per_node


def log_shares(setting: TrainingKind) -> dict[str, float]:
    """Return, for each usual cause, the natural log of its share among threads for a setting."""
    counts = {usual.cause: usual.threads(setting) or _NEVER_SEEN for usual in USUAL_CAUSES}
    total = sum(counts.values())
    return {cause: math.log(count / total) for cause, count in counts.items()}
