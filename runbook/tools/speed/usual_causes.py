"""Causes that are usual for a kind of training, where the text of a complaint points to too few.

They are listed only where no word of the text names a cause. They come after everything that the
text makes likely, and say that nothing points to them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.phrases import is_stated
from runbook.tools.speed.signs import distinct_lines
from runbook.tools.speed.suspects import LISTED_CAUSES, spans_nodes
from runbook.tools.speed.topics import asks_about_speed, complains

_NODES = (
    r"\b(?:multi(?:ple)?|more|several|many|different)[- ]?(?:nodes?|machines?|hosts?|servers?)\b"
    r"|\bn?nodes[ =:]+(?:[2-9]|\d{2,})\b"
    r"|\b(?:[2-9]|\d{2,}|two|four|eight) ?(?:\w+ )?(?:nodes|machines|hosts|servers)\b"
)
_DEVICES = (
    r"\b(?:multi(?:ple)?|more|several|many|all|both)[- ]?(?:the )?(?:gpus?|cards?|devices)\b"
    r"|(?<![\w.:：-])(?:[2-9]|\d{2,3}|two|four|eight)(?:\b|(?=x)) ?(?:x |[x×*])? ?"
    r"(?:\w+ )?(?:gpus?|cards?|[abhv]\d{2,3}s?)\b(?! ?[:：])"
    r"|\b(?:ddp|fsdp|horovod|torchrun|nccl)\b|\bn_?gpus?\b|\bnproc\w*[ =]+[2-9]"
    r"|\bdistributed(?:data)?[ -]?(?:parallel\w*|training)\b"
)
_ONE_PROCESS_EACH = (
    r"\b(?:ddp|fsdp|horovod|torchrun|deepspeed|megatron\S*|accelerate|mpirun|srun|zero-?[123]"
    r"|distributed\w*|nproc\w*|world[_ ]size)\b"
)
"""Words for programs that start one process per device."""
_COMPARED = (
    r"\b(?:compared (?:to|with)|in contrast to|whereas|reported|paper|readme|table|benchmark"
    r"|than (?:the|with|in|my|our|a|single))\b"
)
"""Words that compare a training run with another one."""
_DEVICE_AT_WORK = (
    r"\b(?:utili[sz]ation|utils?|usage|nvidia-smi|vram|gpu memory|mfu|tflops?|power draw)\b"
)
"""Words about a device that can be seen at work."""


@dataclass(frozen=True)
class _UsualCause:
    """A cause, and the kind of training where it is usual."""

    cause: str
    where: str
    """Pattern for text in lower case. '' stands for every training."""
    unless: str
    """Pattern for text in lower case that makes the cause unlikely. '' stands for none."""
    kind: str
    """The kind of training, for people."""
    remedy: str


_USUAL_CAUSES = (
    _UsualCause(
        "FLOPs convention",
        r"\bmfu\b|\bflops utili[sz]ation",
        "",
        "a low MFU",
        "see which device's peak the program divides by",
    ),
    _UsualCause(
        "network",
        _NODES,
        "",
        "several nodes",
        "measure an all-reduce between the nodes, and see NCCL_DEBUG=INFO for the network it takes",
    ),
    _UsualCause(
        "communication",
        _DEVICES,
        "",
        "several devices",
        "see in a profile which collectives are waited for; nvidia-smi topo -m for the links",
    ),
    _UsualCause(
        "DataParallel",
        _DEVICES,
        _ONE_PROCESS_EACH,
        "several devices, and no word about their processes",
        "start one process per device: torchrun and DistributedDataParallel",
    ),
    _UsualCause(
        "unequal work",
        _COMPARED,
        "",
        "a comparison with another training",
        "compare tokens/s of a device: the other may have other batches, lengths or layers",
    ),
    _UsualCause(
        "data wait",
        "",
        "",
        "any training",
        "time a run on random tokens, without the loader; as many workers as cores per rank",
    ),
    _UsualCause(
        "no device",
        "",
        _DEVICE_AT_WORK,
        "any training of which no device is seen at work",
        "see nvidia-smi, and torch.cuda.is_available() on each rank",
    ),
    _UsualCause(
        "host",
        "",
        "",
        "any training",
        "look at the cores of each rank (cpus-per-task, OMP_NUM_THREADS) and at a profile of the host",
    ),
    _UsualCause(
        "micro-batch",
        "",
        "",
        "any training",
        "a larger micro-batch, if it fits",
    ),
)
"""Usual causes, starting with those of the most special kind of training."""


def usual_causes(text: str, facts: Facts, named: Collection[str]) -> Iterator[GapPart]:
    """Yield usual causes of the training that a text asks about, until there are enough with those `named`.

    >>> [part.name for part in usual_causes("training is slow", {}, ["saves"])]
    ['data wait', 'no device']
    >>> [*usual_causes("training is fast", {}, [])]
    []
    """
    plain = distinct_lines(text.lower())
    if not (complains(plain) or asks_about_speed(plain)):
        return
    causes = set(named)
    for usual in _USUAL_CAUSES:
        if len(causes) >= LISTED_CAUSES:
            return
        if usual.cause not in causes and _fits(usual, plain, facts):
            causes.add(usual.cause)
            evidence = f"suspected: usual for {usual.kind}; nothing in the text points to it"
            yield GapPart(usual.cause, 0.0, evidence, usual.remedy, is_suspected=True)


def _fits(usual: _UsualCause, plain: str, facts: Facts) -> bool:
    """Return whether a text or its facts describe the kind of training where a cause is usual."""
    if usual.unless and is_stated(usual.unless, plain):
        return False
    if usual.cause == "network" and spans_nodes(facts):
        return True
    return not usual.where or is_stated(usual.where, plain)
