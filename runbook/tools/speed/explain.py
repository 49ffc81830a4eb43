"""Explains a slow training run: divides the gap between expected and reached step time.

All times are for a step with as many operations as in the run, to make figures for another batch
size or model comparable.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.core.table import UNKNOWN, Table
from runbook.core.units import four_digits
from runbook.log_readers.record import ParsedLog
from runbook.params.schema.entries import Model
from runbook.plan_file.schema import ModelShape
from runbook.planning.cost.iteration import StepSetup, iteration
from runbook.tools.speed.changes import modelled_parts
from runbook.tools.speed.checks import checks_of
from runbook.tools.speed.described_training import (
    DescribedTraining,
    described_training,
    operations,
    stated_seconds,
)
from runbook.tools.speed.facts import NEEDED, Facts
from runbook.tools.speed.measured import measured_parts
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import NEGLIGIBLE_SECONDS, GapPart, fill
from runbook.tools.speed.published_rows import billions_in
from runbook.tools.speed.ruled_out import causes_ruled_out
from runbook.tools.speed.signs import distinct_lines, signs, stated_causes
from runbook.tools.speed.similar_stories import SimilarStories, StoryIndex
from runbook.tools.speed.story_suspects import with_stories
from runbook.tools.speed.suspects import LISTED_CAUSES, ranked_suspects
from runbook.tools.speed.topics import asks_about_speed, complains

_OTHER_FLOPS = 0.07
"""If two figures for the same speed differ by more than this, they are assumed to count different
operations.
"""
_CONTRADICTION = 0.35
"""If two figures for a speed differ by more than this, they contradict each other.

Whether recomputation is counted changes a figure by up to a third.
"""
_SPARSITY = (1.8, 2.2)
"""Range of ratios that reveal a peak with sparsity, which is twice the dense peak."""
_UNIT_NAMES = {
    "seconds": "the seconds",
    "tokens_per_second": "the tokens/s",
    "tflops": "the TFLOP/s",
    "mfu": "the MFU",
}
_FAR_FROM_PLAN = 2.0
"""If a step takes this many times the planned time, the network between nodes is suspected."""
_SMALL_OF_STEP = 0.1
_SMALL_OF_GAP = 0.25
"""A part below both of these shares (step, gap) does not explain a slow training run.
"""
_BALANCED_AFTER = 400
"""Steps after which the router in a mixture of experts counts as balanced."""


@dataclass(frozen=True)
class Explanation:
    """Expected and reached seconds per step, and the parts that add up to the gap.

    None means that a value is unknown.
    """

    expected: float | None
    reached: float | None
    parts: Sequence[GapPart]
    missing: Sequence[str]
    """Arguments for --set that would supply the missing facts."""
    assumed: Sequence[str]
    source: str
    """Where the expected speed comes from."""
    planned: float | None = None
    """Seconds per step that the step model predicts for this exact setup."""
    step_tflop: float = 0.0
    """Operations per step on one device, in 1e12 (convention: megatron-full)."""

    def as_dict(self) -> dict[str, object]:
        """Return the explanation as plain values. Unknown values are None."""
        values: dict[str, object] = dict(vars(self))
        times = {"expected": self.expected, "planned": self.planned, "reached": self.reached}
        for name, seconds in times.items():
            values[f"{name}_tflops"] = four_digits(self.step_tflop / seconds) if seconds else None
        values["gap"] = None
        if self.reached and self.expected:
            values["gap"] = max(0.0, self.reached - self.expected)
        values["unit"] = "seconds a step"
        values["first_causes"] = _causes(self.parts)[:LISTED_CAUSES]
        values["parts"] = [{**part.as_row(), "stories": list(part.stories)} for part in self.parts]
        return values

    def as_table(self) -> Table:
        """Return a table that splits the gap into its parts.

        Notes in the table name the expected, planned and reached figures, and the assumed and
        missing facts.
        """
        rows = []
        for part in self.parts:
            row = part.as_row() | {"seconds": _cost_text(part)}
            row["--set"] = row.pop("words")
            rows.append(row)
        if not any(part.seconds for part in self.parts):
            rows = [{name: row[name] for name in ("name", "evidence", "remedy")} for row in rows]
        notes = [*checks_of(self.parts, LISTED_CAUSES)]
        if not (rows or (self.expected and self.reached)):
            notes.append(SpeedMessage.NOTHING_FOUND.fill())
        notes += self._notes_of_times()
        notes += [f"assumed: {fact}" for fact in self.assumed if fact != _NOTHING_REACHED]
        if self.missing:
            words = " ".join(f"--set {word}" for word in self.missing)
            notes.append(SpeedMessage.NOT_SAID.fill(words=words))
        return Table(rows, "Why a step takes longer than expected", notes)

    def _notes_of_times(self) -> Iterator[str]:
        """Yield the expected, planned and reached times, and the change that gains most."""
        if not (self.expected or self.reached):
            yield SpeedMessage.NO_TIMES.fill()
            return
        yield SpeedMessage.EXPECTED.fill(source=self.source, seconds=_seconds_text(self.expected))
        yield SpeedMessage.PLANNED.fill(seconds=_seconds_text(self.planned))
        if _NOTHING_REACHED in self.assumed:
            yield SpeedMessage.REACHED_AS_PLANNED.fill()
        else:
            yield SpeedMessage.REACHED.fill(seconds=_seconds_text(self.reached))
        changes = [part.words for part in self.parts if part.words]
        if changes:
            yield SpeedMessage.BEST_CHANGE.fill(change=changes[0])


@dataclass(frozen=True)
class _Description:
    """What a user says about a training run, and the public stories that are similar to it."""

    text: str
    facts: Facts
    similar: SimilarStories


def _causes(parts: Sequence[GapPart]) -> list[str]:
    """Return the distinct causes in these parts, in order, without the unexplained part."""
    causes = dict.fromkeys(part.name for part in parts if part.name != "unexplained")
    return list(causes)


def _cost_text(part: GapPart) -> float | str:
    """Return the seconds that a cause explains, for a table.

    A negligible cost means that none is known.
    """
    if part.seconds <= NEGLIGIBLE_SECONDS:
        return UNKNOWN
    return four_digits(part.seconds)


def _seconds_text(seconds: float | None) -> str:
    """Return a step time formatted for display."""
    if not seconds:
        return SpeedMessage.NOT_KNOWN.fill()
    return SpeedMessage.SECONDS_A_STEP.fill(seconds=seconds)


def _is_plain_log(text: str, log: ParsedLog) -> bool:
    """Return whether a text is only a training log, to which nobody has added a complaint.

    Words such as "took 1452 ms" are in every log, so they say nothing about a cause.
    """
    plain = distinct_lines(text.lower())
    return bool(log.records) and not (complains(plain) or asks_about_speed(plain))


def explain(
    text: str,
    log: ParsedLog,
    facts: Facts,
    models: Mapping[str, Model],
    stories: StoryIndex | None = None,
) -> Explanation:
    """Explain the gap between the expected and the reached step time.

    The expected time comes from the facts. The reached time comes from the log, or else from the
    facts. Without stories, only the rules name suspects.
    """
    similar = SimilarStories()
    if stories and not _is_plain_log(text, log):
        similar = stories.similar(text)
    description = _Description(text, facts, similar)
    steady, measured = measured_parts(text, log, facts)
    missing = _missing_words(facts, models)
    training = described_training(facts, models)
    if isinstance(training, str):
        return _without_model(
            description,
            steady,
            measured,
            missing,
            training,
        )

    setup = training.setup
    assumed = training.assumed
    expected_by_unit = stated_seconds(setup, facts, "expected")
    reached_by_unit = stated_seconds(setup, facts, "reached")
    shared_unit = next((unit for unit in expected_by_unit if unit in reached_by_unit), "")
    planned = iteration(setup).seconds
    step_tflop = operations(setup) / setup.layout.world_size / 1e12
    reached = _logged_seconds(steady, measured)
    reached = (
        reached or reached_by_unit.get(shared_unit) or max(reached_by_unit.values(), default=0)
    )
    if not reached:
        assumed.append(_NOTHING_REACHED)
        reached = planned

    if steady:
        assumed += _printed_convention(log, steady, step_tflop)
    else:
        measured += _convention_part(reached, reached_by_unit)

    assumed += _contradiction(reached_by_unit)
    modelled, best = modelled_parts(setup, facts, training.table_shape)
    expected = min(best, reached)
    source = "the plan with every change below"
    if expected_by_unit:
        first_stated = next(iter(expected_by_unit.values()))
        expected = expected_by_unit.get(shared_unit, first_stated)
        source = "as given"

    modelled, unpriced = _with_signs(text, reached, measured, modelled)
    unpriced += _unpriced_parts(training, facts, log, reached)
    is_far_from_plan = reached > _FAR_FROM_PLAN * planned
    # Without the batch size, a step time cannot be compared with a plan.
    is_comparable = "global_batch" in facts or bool(set(reached_by_unit) - {"seconds"})
    is_suspect = "n_accel" in facts and is_far_from_plan and is_comparable
    if is_suspect and not (measured or unpriced):
        unpriced += _suspected_network(setup, reached)
    parts = fill(reached - expected, measured, modelled, unpriced)
    slowdown = reached / planned if is_comparable and reached_by_unit else math.inf
    parts = _with_suspects(parts, description, reached, slowdown)
    return Explanation(
        expected,
        reached,
        parts,
        missing,
        assumed,
        source,
        planned,
        step_tflop,
    )


def _logged_seconds(steady: float, measured: Sequence[GapPart]) -> float:
    """Return the seconds per step from the log, or 0 if no step is timed.

    If a log has no step times, its timers measure parts of the stated step time.
    """
    if not steady:
        return 0.0
    return steady + sum(part.seconds for part in measured)


def _without_model(
    description: _Description,
    steady: float,
    measured: Sequence[GapPart],
    missing: Sequence[str],
    reason: str,
) -> Explanation:
    """Return what is known, and the `reason`, if the step model does not cover the training run."""
    reached = _logged_seconds(steady, measured)
    facts = description.facts
    stated = float(facts.get("expected.seconds") or 0)
    named = [*signs(description.text, reached)]
    causes = {part.name for part in named}
    named += [part for part in stated_causes(facts) if part.name not in causes]
    parts = fill(reached - (stated or steady), measured, named)
    parts = _with_suspects(parts, description, reached, math.inf)
    return Explanation(
        expected=stated or None,
        reached=reached or None,
        parts=parts,
        missing=missing,
        assumed=[reason],
        source="as given" if stated else SpeedMessage.NOTHING_SAYS.fill(),
    )


def _with_suspects(
    parts: Sequence[GapPart],
    description: _Description,
    reached: float,
    slowdown: float,
) -> list[GapPart]:
    """Return the parts, likeliest first, with suspects added until there are enough causes.

    A symptom is ranked with the suspects. If the text names a cause, only suspects with a sign or a
    similar story are added, and none that the text rules out.
    Parts that are too small to explain a complaint come last.
    """
    symptoms = [part for part in parts if part.same_effect]
    suspects = ranked_suspects(description.text, description.facts, symptoms, slowdown)
    suspects = with_stories(suspects, description.similar)
    plain = distinct_lines(description.text.lower())
    ruled_out = causes_ruled_out(plain) - {part.name for part in parts}
    suspects = [suspect for suspect in suspects if suspect.part.name not in ruled_out]
    small = [part for part in parts if suspects and _is_small(part, parts, reached)]
    ranked = [part for part in parts if part not in (*symptoms, *small)]
    is_named = any(part.is_printed for part in ranked)
    for part, has_sign, _ in suspects:
        causes = _causes(ranked)
        is_wanted = len(causes) < LISTED_CAUSES and (has_sign or not is_named)
        if part.name not in causes and (part.same_effect or is_wanted):
            ranked.append(part)
    known = _causes(ranked)
    return [*ranked, *(part for part in small if part.name not in known)]


def _is_small(part: GapPart, parts: Sequence[GapPart], reached: float) -> bool:
    """Return whether a part with an estimated time is too small to make the training run slow."""
    if part.is_printed or part.name == "unexplained":
        return False
    gap = sum(other.seconds for other in parts)
    return part.seconds < _SMALL_OF_STEP * reached and part.seconds < _SMALL_OF_GAP * gap


def _with_signs(
    text: str,
    reached: float,
    measured: Sequence[GapPart],
    modelled: Sequence[GapPart],
) -> tuple[list[GapPart], list[GapPart]]:
    """Return modelled parts, marked if the text names them, and named causes without a time."""
    named = {part.name: part for part in signs(text, reached)}
    marked = [replace(part, is_printed=part.name in named) for part in modelled]
    priced = {part.name for part in (*measured, *modelled)}
    return marked, [part for name, part in named.items() if name not in priced]


_NOTHING_REACHED = (
    "without --set reached.tflops=..., the plan's expectation for this setup is used instead of a "
    "reached speed"
)


def _missing_words(facts: Facts, models: Mapping[str, Model]) -> list[str]:
    """Return arguments for --set that would supply the missing facts.

    A model name also states its sizes.
    """
    stated = set(facts)
    name = facts.get("model", "")
    if name.lower() in models or billions_in(name):
        stated |= {"layers", "hidden"}
    return [word for word in NEEDED if word.partition("=")[0] not in stated]


def _contradiction(reached_by_unit: Mapping[str, float]) -> list[str]:
    """Return a note if no convention reconciles the step times from two reached figures."""
    if len(reached_by_unit) < 2:
        return []
    slowest = max(reached_by_unit, key=lambda unit: reached_by_unit[unit])
    fastest = min(reached_by_unit, key=lambda unit: reached_by_unit[unit])
    ratio = reached_by_unit[slowest] / reached_by_unit[fastest]
    smallest, largest = _SPARSITY
    if ratio <= 1 + _CONTRADICTION or smallest < ratio < largest:
        return []
    return [
        SpeedMessage.CONTRADICTION.fill(
            slowest=_UNIT_NAMES[slowest],
            slowest_seconds=reached_by_unit[slowest],
            fastest=_UNIT_NAMES[fastest],
            fastest_seconds=reached_by_unit[fastest],
            ratio=ratio,
        )
    ]


def _printed_convention(log: ParsedLog, steady: float, step_tflop: float) -> list[str]:
    """Return a note if the TFLOP/s in a log does not match its step times and our operations."""
    printed = [record.tflops for record in log.records if record.tflops]
    if not printed:
        return []
    printed_tflops = statistics.median(printed)
    if abs(steady * printed_tflops / step_tflop - 1) <= _OTHER_FLOPS:
        return []
    our_tflops = step_tflop / steady
    return [SpeedMessage.PRINTED_CONVENTION.fill(printed=printed_tflops, ours=our_tflops)]


def _convention_part(reached: float, reached_by_unit: Mapping[str, float]) -> list[GapPart]:
    """Return the part of the gap that results from different conventions for two figures."""
    fastest = min(reached_by_unit.values(), default=reached)
    if fastest >= (1 - _OTHER_FLOPS) * reached:
        return []
    ratio = reached / fastest
    sign = (
        f"two figures for the same speed differ by a factor of {ratio:.3g} (2: a peak with "
        "sparsity)"
    )
    remedy = "compare tokens/s per device"
    _, largest = _SPARSITY
    name = "FLOPs convention" if ratio < largest else "contradicting figures"
    return [GapPart(name, reached - fastest, sign, remedy)]


def _suspected_network(setup: StepSetup, reached: float) -> list[GapPart]:
    """Return the network as a suspected cause.

    The network is suspected if the training uses multiple nodes and no other cause is named.
    """
    if setup.layout.world_size <= setup.device.devices_per_node:
        return []
    evidence = "nothing else is named, and the traffic between nodes was not measured"
    remedy = (
        "measure an all-reduce between the nodes, and check with NCCL_DEBUG=INFO which network it "
        "uses"
    )
    return [GapPart("network", 0.5 * reached, evidence, remedy)]


@dataclass(frozen=True)
class _UnpricedCause:
    """A cause whose time no model predicts."""

    holds: bool
    """Whether there is evidence for the cause."""
    name: str
    most: float
    """Largest share of a step that the cause can take."""
    sign: str
    remedy: str


def _unpriced_parts(
    training: DescribedTraining,
    facts: Facts,
    log: ParsedLog,
    reached: float,
) -> list[GapPart]:
    """Return the causes with evidence in the log whose time cannot be predicted.

    Each cause includes the largest share of a step that it can take.
    """
    parts = []
    last_iteration = log.records[-1].iteration if log.records else 0
    for cause in _unpriced_causes(training.setup, training.table_shape, facts, last_iteration):
        if cause.holds:
            evidence = f"{cause.sign} (no estimate; at most {cause.most:.0%} of a step)"
            parts.append(GapPart(cause.name, cause.most * reached, evidence, cause.remedy))

    return parts


def _unpriced_causes(
    setup: StepSetup,
    table_shape: ModelShape | None,
    facts: Facts,
    last_iteration: int,
) -> tuple[_UnpricedCause, ...]:
    """Return every cause whose time cannot be predicted."""
    tensor = setup.layout.tensor
    experts = float(facts.get("experts") or 1)
    expert_ranks = float(facts.get("experts_over") or 1)
    dispatcher = facts.get("dispatcher", "allgather")
    return (
        _UnpricedCause(
            table_shape is not None,
            "another model",
            0.4,
            "a small model's steps are limited by the host: launches, logging",
            "as above",
        ),
        _UnpricedCause(
            tensor > 1 and expert_ranks < experts,
            "layout",
            0.3,
            f"{experts:g} experts over {expert_ranks:g} ranks, split by tensor {tensor}: small "
            "matrices",
            "more --expert-model-parallel-size, less tensor",
        ),
        _UnpricedCause(
            experts > 1 and dispatcher == "allgather",
            "token dispatch",
            0.25,
            "tokens are gathered on all ranks instead of being sent to their experts",
            "--moe-token-dispatcher-type alltoall, --moe-grouped-gemm",
        ),
        _UnpricedCause(
            experts > 1 and last_iteration < _BALANCED_AFTER,
            "warm-up",
            0.15,
            f"after {last_iteration} steps the router is not balanced: some ranks get most tokens",
            "measure later, or from a trained checkpoint",
        ),
    )
