"""Causes that a slow training run's set-up makes likely, although no word of its text names them.

A suspect has no estimated time and comes last. It is listed only if the text says that the training
is slow, and if fewer causes were found than an answer lists.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from runbook.planning.cost.accelerators import find_accelerator
from runbook.tools.speed.facts import Facts
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.phrases import is_stated
from runbook.tools.speed.sign_rows import OLD_DEVICES
from runbook.tools.speed.signs import distinct_lines
from runbook.tools.speed.topics import TopicOfComplaint, complains, topics_of_complaints

LISTED_CAUSES = 3
"""Number of causes that an answer lists first."""
_SEVERAL_NODES = (
    r"\bmulti(?:ple)?[- ]?(?:nodes?|machines?|hosts?|servers?)\b|\bn?nodes[ =:]+(?:[2-9]|\d{2,})\b"
    r"|\b(?:[2-9]|\d{2,}|two|three|four|several|many) (?:\w+ )?(?:nodes|machines|hosts|servers)\b"
    r"|\b(?:across|between) (?:\w+ )?(?:nodes|machines|hosts)\b"
)
_WITHOUT_FAST_LINKS = r"\b(?:t4|l4|l40s?|a10g?|a16|a30|a40|a[456]000|rtx|quadro|titan|[1-5]0[6-9]0(?: ?ti)?|p100|pcie)\b"
"""Devices that are usually connected by PCIe alone."""
_SEVERAL_DEVICES = (
    r"\b(?:[2-9]|\d{2,}|two|four|eight|multi(?:ple)?)(?: ?[x×*]| ?-)? ?(?:nvidia |tesla |geforce )?"
    r"(?:gpus?|cards?|t4|[al]\d{1,4}[gs]?|[1-5]0[6-9]0|rtx|quadro|titan|p100)"
    r"|\bnproc[_-]per[_-]node[= ]+(?:[2-9]|\d{2,})|\b(?:ddp|fsdp|zero)\b"
)
_EXPERTS = (
    r"\b(?:d?moe|mixture[- ]of[- ]experts|mixtral|num_experts|expert[- ]parallel\w*"
    r"|deepseek[- ]?v[23]|\d+b-a\d+b)\b"
)
_LOAD = r"(?<!flops )(?<!flop )(?<!memory )(?<!swap )(?<!disk )\b(?:utili[sz]ation|utils?|usage|load)\b(?! ?\(?mfu)"
_UNSTEADY = r"(?:idle|low|spik\w+|oscillat\w+|fluctuat\w+|unstable|drops?|up and down)"
_IDLE_DEVICE = (
    rf"{_LOAD}[^.;]{{0,60}}\b(?:{_UNSTEADY}\b|[1-6]?\d ?%)"
    rf"|\b(?:gpus?|cards?|devices?)\b[^.;]{{0,30}}\b(?:idle|at (?:only |about )?[1-6]?\d ?%)"
    r"|\bgpus?\b[^.;]{0,40}\b[1-6]?\d ?% (?:usage|utili[sz]ation|load)"
    rf"|\b{_UNSTEADY} (?:gpus?|cards?|devices?|gpu utili[sz]ation)\b"
)
"""Words about a device that waits. An MFU of one half is not a sign of waiting."""
_LOW_LOAD = (
    rf"{_LOAD}[^.;]{{0,40}}\b(?:is|was|are|very|so|too|quite|really) (?:very |so |too |quite )?low\b"
    r"|\bgpu (?:utili[sz]ation|usage|util)\b[^.;]{0,30}\b(?:low\b|[1-4]?\d(?:-\d+)? ?%)"
)
"""Words about a device whose load stays low, as with small matrices."""
_NO_GAIN = (
    r"\b(?:no|not|n't|without) (?:any )?(?:\w+ )?(?:faster|speed\w*|accelerat\w+|gain|scal\w+|improv\w+)"
    r"|\bsame (?:speed|time)\b|\b(?:slower|longer) (?:with|on) (?:more|two|\d+|multiple) (?:gpus|devices)\b"
)
"""Words about more devices that do not help."""
_ANOTHER_DEVICE = (
    r"\b(?:gb\d00|[abhv]\d{2,3}s?|rtx \d{4}|[2-5]0[6-9]0(?: ?ti)?|t4|l4|l40s?|mi\d{3}x?)\b"
    r"[^.;]{0,60}\b(?:slow\w*|not (?:any )?faster|no faster|same speed)\b[^.;]{0,20}"
    r"\b(?:gb\d00|[abhv]\d{2,3}s?|rtx \d{4}|[1-5]0[6-9]0(?: ?ti)?|t4|l4|l40s?|p100|mi\d{3}x?)\b"
)
"""Words of a comparison between two kinds of devices."""
_SHARDED = r"\b(?:fsdp|full_shard|zero[- ]?(?:stage[- ]?)?3|stage3)\b"


@dataclass(frozen=True)
class _Suspect:
    """A cause, and the words of a set-up that make it likely."""

    cause: str
    patterns: tuple[str, ...]
    """Patterns for text in lower case, all of which must match."""
    evidence: str
    remedy: str


_SUSPECTS = (
    _Suspect(
        "software version",
        (_ANOTHER_DEVICE,),
        "a newer device is no faster",
        "see whether PyTorch, CUDA and the driver were built for this device",
    ),
    _Suspect(
        "stragglers",
        (_ANOTHER_DEVICE, r"\b(?:gpus|cards|devices|node)\b|\b\d+ ?x? ?[abhv]\d{2,3}"),
        "a newer device is no faster, and there are several",
        "time each device alone: one that is faulty slows all others",
    ),
    _Suspect(
        "network",
        (_SEVERAL_NODES,),
        "it runs on several nodes",
        "measure an all-reduce between the nodes, and see NCCL_DEBUG=INFO for the network it takes",
    ),
    _Suspect(
        "data wait",
        (_IDLE_DEVICE,),
        "devices are idle or their load goes up and down",
        "time a run on random tokens, without the loader; as many workers as cores per rank",
    ),
    _Suspect(
        "token dispatch",
        (_EXPERTS,),
        "a mixture of experts",
        "time the dispatch in a profile; fused experts (grouped matrix products)",
    ),
    _Suspect(
        "communication",
        (_WITHOUT_FAST_LINKS, _SEVERAL_DEVICES),
        "several devices without NVLink",
        "see nvidia-smi topo -m for the links between devices; send less, or less often",
    ),
    _Suspect(
        "communication",
        (_SHARDED,),
        "each layer's weights are gathered before it runs",
        "shard within a node only, or keep weights whole (ZeRO 1)",
    ),
    _Suspect(
        "unequal work",
        (_NO_GAIN, r"\b(?:gpus|devices|multi[- ]?gpus?)\b", r"\bbatch"),
        "the batch may be per device: with more devices, a step has more samples",
        "compare samples/s or tokens/s of all devices, not the time of a step",
    ),
    _Suspect(
        "micro-batch",
        (_LOW_LOAD,),
        "the load of the devices is low",
        "a larger micro-batch, if it fits",
    ),
    _Suspect(
        "host",
        (_IDLE_DEVICE,),
        "devices are idle or their load goes up and down",
        "look at the cores of each rank (cpus-per-task, OMP_NUM_THREADS) and at a profile of the host",
    ),
    _Suspect(
        "precision",
        (OLD_DEVICES,),
        "devices without tensor cores",
        "compare with the 32-bit peak of this device",
    ),
)
"""Suspects, starting with the one that threads most often accept in such a set-up."""


def suspects(text: str, facts: Facts, named: Collection[str]) -> Iterator[GapPart]:
    """Yield causes that the set-up makes likely, until there are enough with those `named`.

    Causes whose words are in the same sentence as a complaint come first, then those that the
    set-up makes likely, then those whose words are in a sentence next to a complaint.
    """
    plain = distinct_lines(text.lower())
    if not complains(plain):
        return
    causes = set(named)
    for part in _candidates(plain, facts):
        if len(causes) >= LISTED_CAUSES:
            return
        if part.name not in causes:
            causes.add(part.name)
            yield part


def _candidates(plain: str, facts: Facts) -> Iterator[GapPart]:
    """Yield every suspect of a text, the likeliest first. A cause may occur twice."""
    topics = topics_of_complaints(plain)
    yield from [_part_of_topic(topic) for topic in topics if topic.distance == 0]
    for suspect in _SUSPECTS:
        if _fits(suspect, plain, facts):
            yield GapPart(
                suspect.cause,
                0.0,
                f"suspected: {suspect.evidence}",
                suspect.remedy,
                is_suspected=True,
            )
    yield from [_part_of_topic(topic) for topic in topics if topic.distance > 0]


def _part_of_topic(topic: TopicOfComplaint) -> GapPart:
    """Return a suspect whose words are next to a complaint."""
    quoted = " ".join(topic.words.split())[:60]
    evidence = f'suspected: it says "{quoted}" where it calls the training slow'
    return GapPart(topic.cause, 0.0, evidence, topic.remedy, is_suspected=True)


def _fits(suspect: _Suspect, plain: str, facts: Facts) -> bool:
    """Return whether a text or its facts describe the set-up of a suspect."""
    if suspect.cause == "network" and spans_nodes(facts):
        return True
    return all(is_stated(pattern, plain) for pattern in suspect.patterns)


def spans_nodes(facts: Facts) -> bool:
    """Return whether the known devices do not fit into one node."""
    device = find_accelerator(facts.get("accelerator", ""))
    if device is None:
        return False
    return float(facts.get("n_accel") or 1) > device.devices_per_node
