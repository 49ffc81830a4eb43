"""Joins the suspects found by the rules with similar public stories, typical cases and clues."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from runbook.tools.speed.clues import CluesOfText
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.similar_stories import SimilarStories
from runbook.tools.speed.suspects import Suspect

_WEIGHT_OF_STORIES = 0.6
"""Weight for the share in similar stories and cases. The rest is the weight for the rules.

With 0.4 or 1.0, two or more answers in a hundred more are wrong, by cross-validation over the
stories.
"""
_LEAST_SHARE = 0.01
"""Share of a cause that only clues point to."""
TWINS = ("network", "communication")
"""Causes that share a place in an answer."""
_LINKED_STORIES = 2
"""Number of similar stories to link to."""
_NAMED_CLUES = 2
"""Number of clues to name."""
REMEDIES = {
    "DataParallel": "start one process per device: torchrun and DistributedDataParallel",
    "FLOPs convention": (
        "divide by the dense 16-bit peak of this device, and count operations as the reference does"
    ),
    "adapters": "expect to save memory, not time: use the memory for a larger micro-batch",
    "communication": (
        "exchange less, or less often: larger batches per device, less sharding; "
        "nvidia-smi topo -m shows the links"
    ),
    "compilation": (
        "keep shapes fixed or mark them dynamic, and compile once; "
        "TORCH_LOGS=recompiles lists the causes"
    ),
    "data wait": (
        "use more loader workers, faster storage, or data prepared in advance; time a "
        "run on random samples"
    ),
    "debug option": (
        "switch off detect_anomaly, CUDA_LAUNCH_BLOCKING, profilers, checks and other debug options"
    ),
    "evaluation": "evaluate less often, or on fewer batches; check which steps are slow",
    "flash attention": (
        "check which attention kernel runs; install flash-attn, or use SDPA without a dense mask"
    ),
    "garbage collection": "call gc.disable(), and collect on all ranks in the same step",
    "generation": (
        "time generation or environment alone; use more in parallel, a faster engine "
        "or shorter samples"
    ),
    "gradient accumulation": (
        "a step has several micro-batches: use fewer, or compare tokens/s per device"
    ),
    "growing steps": (
        "find what grows with each step, and release it: graph, tensors kept with it, "
        "lists, models, memory"
    ),
    "host": (
        "give each rank enough cores (OMP_NUM_THREADS), log and synchronize less, and "
        "profile the host code"
    ),
    "kernels": (
        "find the slow operation in a profile, and use a fused or library kernel "
        "(cuDNN, compiled extensions)"
    ),
    "layout": "split no more than memory requires",
    "memory": (
        "need less memory (smaller batch or resolution), and avoid swap, shared memory "
        "and other programs"
    ),
    "micro-batch": "use a larger batch per device, if it fits",
    "network": (
        "use the fast network between nodes (NCCL_DEBUG=INFO shows which), and measure "
        "an all-reduce"
    ),
    "no device": "install the build for this device, and move model and data to it; see nvidia-smi",
    "offload": "keep the states on the devices if they fit: no offload, or more devices",
    "padding": "pad to the longest of a batch, group by length, limit the length, or pack",
    "pipeline bubble": "use more micro-batches per step, and interleaved chunks",
    "precision": (
        "train in 16 bits on devices with tensor cores, or allow TF32; older devices gain nothing"
    ),
    "recompute": "keep activations, or recompute selectively",
    "saves": "save less often, or in the background; check which steps are slow",
    "slow steps": "look for what these steps had in common: a slow rank, other users, a cold cache",
    "software version": (
        "try another release of framework, CUDA, cuDNN, driver or project, built for this device"
    ),
    "stragglers": (
        "time each device alone: clocks, temperatures, power limits; give all ranks equal work"
    ),
    "timing": (
        "synchronize the device before reading a clock, and check what the printed time includes"
    ),
    "token dispatch": (
        "use fused experts (grouped matrix products) within a node, and time the dispatch"
    ),
    "unequal work": (
        "compare samples/s or tokens/s per device, with equal batches, resolution, "
        "steps, model and devices"
    ),
    "warm-up": "leave the first steps out of the average",
}
"""Remedies for causes to which no words in the text point. They include all that stories accepted."""


def with_stories(
    suspects: Sequence[Suspect],
    similar: SimilarStories,
    clues: CluesOfText,
) -> list[Suspect]:
    """Return the suspects from the rules, similar stories and clues, likeliest first.

    If nothing is similar, the suspects are unchanged.
    """
    shares = similar.shares()
    if not shares:
        return list(suspects)
    by_cause = {suspect.part.name: suspect for suspect in suspects}
    for cause in (*shares, *clues.names):
        by_cause.setdefault(cause, Suspect(_suspected(cause), has_sign=True, share=0.0))
    joined = [
        Suspect(
            _with_evidence(suspect, similar, clues),
            has_sign=suspect.has_sign or cause in shares or cause in clues.names,
            share=_joint_share(suspect, shares.get(cause, 0.0)) * clues.factor(cause),
        )
        for cause, suspect in by_cause.items()
    ]
    return _without_twins(sorted(joined, key=lambda suspect: -suspect.share))


def _without_twins(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return the suspects, with one place for network and communication.

    Both mean that ranks wait for each other's data. The likelier one gets both remedies. In
    cross-validation, the place was of as much use to another cause.
    """
    twins = [suspect for suspect in suspects if suspect.part.name in TWINS]
    if len(twins) < len(TWINS) or twins[0].part.same_effect or twins[1].part.same_effect:
        return list(suspects)
    likelier, other = twins
    remedy = f"{likelier.part.remedy}; {other.part.remedy}"
    merged = likelier._replace(part=replace(likelier.part, remedy=remedy))
    kept = (suspect for suspect in suspects if suspect is not other)
    return [merged if suspect is likelier else suspect for suspect in kept]


def _joint_share(suspect: Suspect, share_of_stories: float) -> float:
    """Return the weighted mean of the share from the rules and the share from similar stories."""
    share_of_rules = (1 - _WEIGHT_OF_STORIES) * suspect.share
    return _WEIGHT_OF_STORIES * share_of_stories + share_of_rules + _LEAST_SHARE


def _suspected(cause: str) -> GapPart:
    """Return a part of the gap that is suspected, still without evidence."""
    return GapPart(cause, 0.0, "", REMEDIES.get(cause, ""), is_suspected=True)


def _with_evidence(suspect: Suspect, similar: SimilarStories, clues: CluesOfText) -> GapPart:
    """Return a part whose evidence includes clues, a typical case and similar stories."""
    part = suspect.part
    further = "; ".join(_further_evidence(part.name, similar, clues))
    if not further:
        return part
    addresses = tuple(story.address for story in similar.with_cause(part.name))
    if suspect.has_sign and part.evidence:
        return replace(part, evidence=f"{part.evidence}; {further}", stories=addresses)
    return replace(
        part,
        evidence=f"suspected: {further}",
        remedy=REMEDIES.get(part.name, part.remedy),
        stories=addresses,
    )


def _further_evidence(cause: str, similar: SimilarStories, clues: CluesOfText) -> Iterator[str]:
    """Yield what clues, the most similar typical case and similar stories say for a cause."""
    names = clues.names.get(cause, ())
    if names:
        yield SpeedMessage.CLUES.fill(names=", ".join(names[:_NAMED_CLUES]))
    case = similar.nearest_case(cause)
    if case:
        yield SpeedMessage.TYPICAL_CASE.fill(text=case.text)
    stories = similar.with_cause(cause)
    if stories:
        yield SpeedMessage.SIMILAR_STORIES.fill(
            count=len(stories),
            nearest=len(similar.stories),
            addresses=", ".join(story.address for story in stories[:_LINKED_STORIES]),
        )
