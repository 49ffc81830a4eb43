"""Causes that a text or a log names itself.

They can be suspected without a model, but no model predicts their time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from runbook.tools.speed.facts import SOCKETS, Facts, sparse_peak
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.phrases import PLAIN_ATTENTION, first_stated, growing_times

_TIME_INCREASES = (
    r"(?:time|(?:step|iteration) times)(?: (?:per|a|of a) (?:step|iteration))?"
    r"(?: (?:also|\w+ly))? increases?"
    r"|increases? (?:in|of) (?:the )?(?:step |iteration )?time"
)
"""Only a time that increases makes a step slower: throughput is meant to increase."""
_DROPS = r"(?<!time )(?<!times )(?<!loss )(?:drops?|falls?)"
"""Words for time and loss, which are meant to drop."""
_SLOWER = rf"(slow(?:er|down)?|longer|{_DROPS}|{_TIME_INCREASES})"
_MANY_NODES = (
    r"(?:multi[- ]?(?:ple )?(?:node|computer|machine)s?|(?:two|\d+) (?:nodes|machines)|more nodes)"
)
_SLOWER_ON_MANY_NODES = (
    rf"\b{_SLOWER}\b[^.]{{0,80}}\b{_MANY_NODES}|{_MANY_NODES}[^.]{{0,100}}\b{_SLOWER}\b"
)
"""Phrases that compare one node with many. The difference between them is the network."""
_SWITCHED_OFF = (
    r"[\"']?[ \t]*(?:[:=]|\.{2,})?\s*"
    r"(?:(?:\w*[{(][^{}()]{0,200}?|\.)?\bdevice[\"']?\s*[:=]\s*)?"
    r"[\"']?(?:<offloaddeviceenum\.)?(?:none|null|false|no|0)\b"
    r"|\.(?!device)\w"
)
"""Matches text after a DeepSpeed option which shows that nothing is offloaded.

It is a value, or the section's `device`; the section's other keys (`offload_param.pin_memory`) do
not matter. DeepSpeed prints its complete configuration, where options that nobody set are None.
"""


_COLLECTIVES = (
    r"\b(?:collectives?|communication|nccl\w*|all[- ]?reduces?|all[- ]?gathers?"
    r"|reduce[- ]?scatters?)\b"
)
"""Names of what ranks send each other."""
_GROWING = "growing steps"
_SAVING = r"(?:save|saves|saved|saving|checkpoints?)"
_WAITS = r"(?:takes?|took|blocks?|stalls?|pauses?)"


@dataclass(frozen=True)
class _Sign:
    """Words that name a cause."""

    cause: str
    pattern: str
    """Pattern for a text in lower case.

    A denial must be directly before the pattern's group, or before the whole match if it has no
    group.
    """
    most: float
    """Largest share of a step that the cause may take, if no model predicts it."""
    remedy: str


_SIGNS = (
    _Sign("network", SOCKETS, 0.5, "InfiniBand or RoCE; see NCCL_DEBUG=INFO"),
    _Sign(
        "network",
        _SLOWER_ON_MANY_NODES,
        0.5,
        "measure an all-reduce between the nodes, and see NCCL_DEBUG=INFO for the network it takes",
    ),
    _Sign(
        "communication",
        r"nccl_p2p_disable=1|(?:exposed|non-overlapped|not overlapped)[^.]{0,40}comm"
        r"|(?:all-gathers?|reduce-scatters?|all-reduces?)[^.]{0,40}(exposed|not hidden)"
        rf"|\bwait\w*[^.]{{0,20}} (?:on|for) (?:the )?{_COLLECTIVES}"
        rf"|{_COLLECTIVES}[^.]{{0,60}}\b(?:(?:do|does) not|hardly|barely|only half[^.]{{0,20}}) overlap"
        rf"|{_COLLECTIVES}[^.]{{0,40}}\b(?:takes?|is|are|costs?|accounts? for|dominates?)\b[^.]{{0,20}}"
        r"(?:\b\d{2} ?%|\bmost\b|\bhalf\b|bottleneck|of the (?:step|time))",
        0.4,
        "let messages run beside the work, and devices of a node reach each other",
    ),
    _Sign(
        "data wait",
        r"num_workers(?: is| was| at)?[=: ]+0\b"
        r"|fetch\w* (?:a|one|each|the) (?:next )?batch (?:takes?|needs?)"
        r"|wait\w*[^.]{0,20} (?:on|for) (?:the )?data\b(?![ -]?cent)|starv\w+ for data"
        r"|data[- ]?load\w*[^.]{0,60}(bottleneck|slow|inefficien|limit)"
        r"|(?:bottleneck|slow|inefficient)[^.]{0,30} data[- ]?load",
        0.5,
        "tokenize once before training, use more workers, put the tokens on a faster disk",
    ),
    _Sign(
        "offload",
        rf"offload_(?:optimizer|param)\w*\b(?!{_SWITCHED_OFF})"
        rf"|\b(?:cpu|nvme|zero)[ -]offload(?:ing)?\b(?!{_SWITCHED_OFF})"
        r"|\b(?:optimizer|parameters|params|states|weights|activations)\b[^.\n]{0,30}[ ]"
        r"(offload(?:ed|ing)?\b)(?! off\b)"
        r"|\boffload(?:s|ed|ing)? (?:\w+ ){0,3}(?:to|on) (?:the )?(?:cpu|host|nvme|ram)\b"
        r"|zero[- ]?(?:3 )?infinity|cpu[_ -]?offload\w*[=: ]+true",
        0.8,
        "keep states on the devices: more devices, or ZeRO over more of them",
    ),
    _Sign(
        "communication",
        r"(?:\b(?:no|without|lacks?|missing) )(?:nvlink|nvswitch)\b"
        r"|\bpcie (?:instead of|rather than) nvlink|\bpcie (?:cards?|only|gpus)\b"
        r"|\b(?:links?|connected|connection)\b[^.]{0,30}\bpcie\b|\b(?:over|via|through) pcie\b",
        0.5,
        "keep tensor parallelism within pairs with NVLink, or use pipeline and data parallelism",
    ),
    _Sign(
        "kernels",
        r"cuda_launch_blocking\b(?![\"']?[=:\s]+[\"']?(?:0|false|no|off)\b)",
        0.5,
        "unset CUDA_LAUNCH_BLOCKING: it makes the host wait for every kernel",
    ),
    _Sign("flash attention", PLAIN_ATTENTION, 0.4, "fused attention"),
    _Sign(
        "saves",
        rf"every \d+ (?:steps|iterations)[^.]{{0,60}}\b{_WAITS}\b[^.]{{0,60}}\b{_SAVING}\b"
        rf"|\b{_SAVING}\b[^.]{{0,60}}\b{_WAITS}\b[^.]{{0,20}}\d+(?:\.\d+)? ?"
        r"(?:s|secs?|seconds|min|minutes)\b",
        0.3,
        "save less often, or in the background",
    ),
    _Sign(
        "kernels",
        r"compile[=: ]+false|\bno compile\b|without (?:torch\.)?compil",
        0.4,
        "compile the model, or use fused kernels",
    ),
    _Sign(
        _GROWING,
        r"slower and slower|longer and longer"
        r"|(?:step|iteration) times? (?:\w+ly )?(?:keeps? )?(?:grow|creep|climb)\w*"
        r"|gradually[^.]{0,30}(slow)"
        r"|slows? down (?:gradually|over time|during training)",
        0.3,
        "look for what fills up: memory, the page cache, a log, a loader that reads further each time",
    ),
    _Sign(
        "stragglers",
        r"stragglers?|throttl\w+|one (?:node|gpu|rank)[^.]{0,20} (slow)"
        r"|\b(?:gpus?|cards?|devices?|nodes?)\b[^.]{0,20}\bare (?:of )?different (?:models?|types?|kinds?)",
        0.3,
        "look at clocks and errors of the slowest device",
    ),
)


class _StatedCause(NamedTuple):
    """A fact's value that makes steps slower on any device."""

    fact: str
    value: str
    cause: str
    evidence: str
    remedy: str


_STATED_CAUSES = (
    _StatedCause(
        "recompute",
        "full",
        "recompute",
        "activations are recomputed: work that no figure counts",
        "keep activations, or recompute selectively",
    ),
    _StatedCause(
        "precision",
        "fp32",
        "precision",
        "it computes in 32 bits",
        "train in bf16",
    ),
    _StatedCause(
        "micro_batch",
        "1",
        "micro-batch",
        "micro-batch 1: small matrices, and the host launches as many kernels",
        "a larger micro-batch, if it fits",
    ),
)
"""Causes that facts state, the usual largest first."""


def stated_causes(facts: Facts) -> Iterator[GapPart]:
    """Yield the causes that facts state, without a price, for a training that no model covers."""
    for stated in _STATED_CAUSES:
        if facts.get(stated.fact) == stated.value:
            evidence = f"{stated.evidence} (no price)"
            yield GapPart(stated.cause, 0.0, evidence, stated.remedy, is_printed=True)


def signs(text: str, reached: float) -> Iterator[GapPart]:
    """Yield each cause that a text names, with the largest share of a step that it may take."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    named = set[str]()
    for sign in _SIGNS:
        match = first_stated(sign.pattern, plain)
        if match is None or sign.cause in named:
            continue
        named.add(sign.cause)
        quoted = " ".join(match[0].split())[:60]
        yield GapPart(
            sign.cause,
            sign.most * reached,
            f'it says "{quoted}" (no price: {sign.most:.0%} of a step at most)',
            sign.remedy,
            is_printed=True,
        )

    peak = sparse_peak(text)
    if peak:
        yield GapPart(
            "FLOPs convention",
            0.5 * reached,
            f"{peak:g} TFLOP/s is the peak with sparsity, which no training uses",
            f"compare with {peak / 2:g} TFLOP/s",
            is_printed=True,
        )

    times = growing_times(plain)
    if times and _GROWING not in named:
        quoted = " ".join(times.split())[:60]
        yield GapPart(
            _GROWING,
            0.3 * reached,
            f'it says "{quoted}" (no price: 30% of a step at most)',
            "look for what fills up: memory, the page cache, a log; clocks that fall",
            is_printed=True,
        )
