"""Causes that a text or a log names itself: no model is needed to suspect them, and none prices them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runbook.tools.speed.facts import SOCKETS
from runbook.tools.speed.parts import GapPart

_SLOWER = r"(?:slow(?:er|down)?|longer|drops?|falls?|increases?)"
_MANY_NODES = (
    r"(?:multi[- ]?(?:ple )?(?:node|computer|machine)s?|(?:two|\d+) (?:nodes|machines)|more nodes)"
)
_SLOWER_ON_MANY_NODES = (
    rf"\b{_SLOWER}\b[^.]{{0,80}}\b{_MANY_NODES}|{_MANY_NODES}[^.]{{0,100}}\b{_SLOWER}\b"
)
"""One node against many: what differs is the network between them."""


@dataclass(frozen=True)
class _Sign:
    """Words that name a cause."""

    cause: str
    pattern: str
    """Of a text in small letters."""
    most: float
    """Share of a step that the cause may have at most, where nothing prices it."""
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
        r"|(?:all-gathers?|reduce-scatters?|all-reduces?)[^.]{0,40}(?:exposed|not hidden)",
        0.4,
        "let messages run beside the work, and devices of a node reach each other",
    ),
    _Sign(
        "data wait",
        r"num_workers[=: ]+0\b|wait\w*[^.]{0,20} (?:on|for) (?:the )?data|starv\w+ for data"
        r"|data[- ]?load\w*[^.]{0,60}(?:bottleneck|slow|inefficien|limit)"
        r"|(?:bottleneck|slow|inefficient)[^.]{0,30} data[- ]?load",
        0.5,
        "tokenize once before training, use more workers, put the tokens on a faster disk",
    ),
    _Sign(
        "offload",
        r"offload_(?:optimizer|param)\w*|zero[- ]?(?:3 )?infinity|cpu[_ -]?offload\w*[=: ]+true",
        0.8,
        "keep states on the devices: more devices, or ZeRO over more of them",
    ),
    _Sign(
        "kernels",
        r"compile[=: ]+false|\bno compile\b|without (?:torch\.)?compil",
        0.4,
        "compile the model, or use fused kernels",
    ),
    _Sign(
        "growing steps",
        r"slower and slower|gradually[^.]{0,30}slow|slows? down (?:gradually|over time|during training)",
        0.3,
        "look for what fills up: memory, the page cache, a log, a loader that reads further each time",
    ),
    _Sign(
        "stragglers",
        r"stragglers?|throttl\w+|one (?:node|gpu|rank)[^.]{0,20} slow",
        0.3,
        "look at clocks and errors of the slowest device",
    ),
)


def signs(text: str, reached: float) -> Iterator[GapPart]:
    """Yield each cause that a text names, with the largest share of a step that it may have."""
    plain = text.lower()
    named = set[str]()
    for sign in _SIGNS:
        match = re.search(sign.pattern, plain, re.IGNORECASE)
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
