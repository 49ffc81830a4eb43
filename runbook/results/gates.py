"""Gates: checks on a smoke test, a training run and a resume."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from runbook.core.checks import Check, counted, judge
from runbook.plan_file.schema import PhasePlan
from runbook.plan_file.text_enum import StrEnum
from runbook.results.history import Event, History, ValidationLoss, events_named, iterations_of
from runbook.results.messages import ResultMessage
from runbook.results.metrics import find_spikes, recovery, summarize


class Gate(StrEnum):
    """Names for the checks on a training run, as shown in tables."""

    MODEL_LEARNED = "model learned"
    LOSS_ABOVE_ZERO = "loss above 0"
    NO_DIVERGENCE = "loss does not diverge"
    NO_STEP_MISSING = "no step is missing"
    RESUMED_FROM_OWN = "resumed from a checkpoint of this run"
    LOSS_OVER_SEAM = "loss continues across the seam"
    NO_STEP_TWICE = "no step was done twice"
    ALL_ITERATIONS = "all iterations done"
    FIRST_LOSS = "first loss"
    LOSS_FALLS = "loss falls"
    GRADIENT_NORMS = "gradient norms"
    SKIPPED_STEPS = "skipped and NaN steps"
    ALL_RANKS = "all ranks seen"
    STEP_TIME = "step time"
    CHECKPOINT_SAVED = "checkpoint saved"
    CHECKPOINT_RELOADED = "checkpoint reloaded"
    NETWORK_BANDWIDTH = "network bandwidth"


STEPS_BEFORE_SEAM = 40
"""Number of steps before a resume used to compute the usual change in the loss."""
ENOUGH_AFTER = 10
"""A spike counts as divergence if the loss has not recovered after this many further losses."""
CREDIBLE_FACTOR = 3.0
"""If a step time and its estimate differ by more than this factor, one of them must be wrong."""
TOLERANCE = 1e-4
"""Relative difference allowed between two evaluations with the same weights and samples, since some
kernels do not add in a fixed order.
"""
GOOD_SHARE = 0.25
POOR_SHARE = 0.05
"""Two shares of the adapter bandwidth: one that a healthy 32 MiB all-reduce reaches, and one so low
that only use of the wrong network explains it.
"""
REMEDIES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""The remedy for each failed check, by check name."""


def _check(
    name: str,
    holds: bool,
    value: str,
    rule: str,
    otherwise: str = "fail",
) -> Check:
    return judge(
        name,
        holds,
        value,
        rule,
        REMEDIES[name],
        otherwise=otherwise,
    )


def smoke_gate(
    metrics: History,
    validation: Sequence[ValidationLoss],
    events: Sequence[Event],
    spec: PhasePlan,
    *,
    seconds_band: tuple[float, float] | None,
    network_bytes_per_second: float | None,
) -> list[Check]:
    """Return the checks that the smoke test must pass before the full training may start.

    `events` must contain only events of this phase. `seconds_band` is None if the plan has no
    measurement. `network_bytes_per_second` is the adapter bandwidth per node: 0 if the site does
    not state it, None if there is only one node.
    """
    checks = [
        _all_iterations(metrics, spec.duration.iterations),
        _first_loss(metrics, spec.model.shape.vocabulary),
        _falling(metrics),
        _finite_gradients(metrics),
        _nothing_skipped(metrics),
        _all_ranks(metrics, events, spec.parallel.world_size),
        _throughput(metrics, spec, seconds_band),
        _saved(metrics, events),
        _reloaded(events),
        _network(events, promised=network_bytes_per_second),
    ]
    if validation:
        checks.append(_finite_evaluations(validation))
    return checks


def _finite_evaluations(validation: Sequence[ValidationLoss]) -> Check:
    are_finite = all(math.isfinite(evaluation.loss) for evaluation in validation)
    value = f"{counted(len(validation), 'evaluation')}, last loss {validation[-1].loss:.4g}"
    return _check("evaluation", are_finite, value, "every evaluation has a finite loss")


def credible_step_seconds(estimate: float | None) -> tuple[float, float] | None:
    """Return the shortest and longest plausible step time, given the planned step time.

    Return None if the plan has no step time.

    >>> credible_step_seconds(1.5), credible_step_seconds(None)
    ((0.5, 4.5), None)
    """
    if not estimate:
        return None
    return (estimate / CREDIBLE_FACTOR, estimate * CREDIBLE_FACTOR)


LEARNING_TOKENS = 100_000
"""After this many tokens, a training run must have learned something.

In a shorter training run, the loss only has to fall.
"""
LEARNED_FALL = 0.30
"""How far the loss must fall at least, as a share of the first loss.

With the GPT-2 vocabulary, the loss falls by this share if a model has learned only token
frequencies.
"""
SMALL_VOCABULARY = 8_192
"""With a vocabulary smaller than this, token frequencies alone explain less of the loss.

On the shipped corpus, token frequencies explain 16 % of the loss with 2,048 tokens in the
vocabulary.
"""
LEARNED_FALL_OF_SMALL_VOCABULARY = 0.15


def smallest_fall_of(tokens: int, vocabulary: int) -> float:
    """Return how far the loss must fall in a training run, as a share of the first loss.

    >>> smallest_fall_of(50_000, 50_257), smallest_fall_of(200_000, 50_257), smallest_fall_of(200_000, 2_048)
    (0.0, 0.3, 0.15)
    """
    if tokens < LEARNING_TOKENS:
        return 0.0
    if vocabulary < SMALL_VOCABULARY:
        return LEARNED_FALL_OF_SMALL_VOCABULARY
    return LEARNED_FALL


def learning_check(metrics: History, *, smallest_fall: float = LEARNED_FALL) -> list[Check]:
    """Check that the loss falls by at least `smallest_fall` and does not diverge.

    The fall is measured from the mean over the first 2 % of losses to the mean over the last 2 %.
    """
    name = Gate.MODEL_LEARNED
    rule = f"the last loss is at least {smallest_fall:.0%} below the first"
    losses = metrics.losses
    if len(losses) < 2:
        return [_check(name, False, f"{len(losses)} losses recorded", rule)]
    zero_iterations = [iteration for iteration, loss in losses if loss == 0]
    if zero_iterations:
        return [_zero_losses(zero_iterations, len(losses))]
    first, last = _means_of_ends(metrics, 50)
    fall = 1 - last / first
    value = f"{first:.4g} -> {last:.4g} nat, {fall:.1%} lower"
    return [_check(name, fall >= smallest_fall, value, rule), _divergence(metrics)]


def _zero_losses(zero_iterations: Sequence[int], num_losses: int) -> Check:
    value = (
        f"{len(zero_iterations)} of {num_losses} losses are exactly 0, "
        f"from iteration {zero_iterations[0]} on"
    )
    rule = "a loss of exactly 0 means that the samples repeat, or that no token counts"
    return _check(Gate.LOSS_ABOVE_ZERO, False, value, rule)


def _divergence(metrics: History) -> Check:
    """Check that the loss recovers from every spike."""
    spikes = find_spikes(metrics.losses, metrics.grad_norms, metrics.alarm_settings)
    lasting = []
    for spike in spikes:
        if recovery(spike, metrics.losses) is None:
            lasting.append(spike.since)

    value = ResultMessage.SPIKES.fill(count=len(spikes))
    losses_after = 0
    if lasting:
        value += ResultMessage.NOT_RECOVERED.fill(lasting=lasting[0])
        losses_after = sum(iteration > lasting[0] for iteration, _ in metrics.losses)

    rule = (
        f"a spike returns to the earlier loss; with fewer than {ENOUGH_AFTER} losses after it, "
        "this is a warning"
    )
    otherwise = "fail" if losses_after >= ENOUGH_AFTER else "warn"
    return _check(
        Gate.NO_DIVERGENCE,
        not lasting,
        value,
        rule,
        otherwise=otherwise,
    )


def _means_of_ends(metrics: History, parts: int) -> tuple[float, float]:
    """Divide the losses into equal parts, and return the means over the first and the last part."""
    losses = [loss for _, loss in metrics.losses]
    count = max(1, len(losses) // parts)
    return statistics.fmean(losses[:count]), statistics.fmean(losses[-count:])


def steps_check(metrics: History, iterations: int) -> Check:
    """Check that the metrics contain every step up to the last step.

    If the metrics contain no step, all steps up to `iterations` are expected.
    """
    if metrics.steps:
        last_iteration = metrics.steps[-1].iteration
    else:
        last_iteration = iterations

    missing = metrics.absent_up_to(last_iteration)
    if missing:
        value = ResultMessage.STEPS_MISSING.fill(missing=_ranges(missing))
    else:
        value = f"{len(metrics.steps)} steps"

    rule = "each iteration from 1 to the last was run and has a line in metrics.jsonl"
    return _check(Gate.NO_STEP_MISSING, not missing, value, rule)


def resume_check(
    metrics: History, events: Sequence[Event], *, tolerance: float = 0.15
) -> list[Check]:
    """Check that training was resumed without repeated steps or a jump in the loss.

    Return no check if nothing was resumed. `tolerance` is the largest relative change in the loss
    allowed across a seam, where one segment ends and the next starts. Steps before and after a seam
    use different samples, so the loss may also change by as much as between earlier steps.
    """
    if not metrics.restarts:
        return []
    return [
        _done_twice(metrics, events),
        _resumed_from_own_checkpoint(events),
        _loss_over_seams(metrics, tolerance),
    ]


def _resumed_from_own_checkpoint(events: Sequence[Event]) -> Check:
    resumed = events_named(events, "resumed")
    loads = iterations_of(events, "resumed")
    # A copy in node memory names the training run it belongs to, and is not loaded in any other
    # run.
    near = iterations_of([event for event in resumed if event.is_near], "resumed")
    saves = {*iterations_of(events, "saved"), *near}
    where = f", {_list(near)} from node memory" if near else ""
    return _check(
        Gate.RESUMED_FROM_OWN,
        bool(loads) and set(loads) <= saves,
        f"resumed from {_list(loads)}{where}",
        "every checkpoint that was loaded was saved by this run",
        otherwise="fail" if loads else "unknown",
    )


def _loss_over_seams(metrics: History, tolerance: float) -> Check:
    jumps = [_jump(metrics, first) for first in metrics.restarts]
    texts = ["no loss to compare with" if jump is None else f"{jump:.1%}" for jump in jumps]
    rule = (
        f"the loss of the first resumed step is within {tolerance:.0%} of the median of the five "
        f"losses before it, or differs from it by no more than any of the {STEPS_BEFORE_SEAM} steps "
        "before did from its own five"
    )
    is_small = True
    for jump, first in zip(jumps, metrics.restarts, strict=True):
        # If the loss usually jumps between steps, it may also jump at a seam.
        if jump is not None and jump > max(tolerance, _usual_jump(metrics, first)):
            is_small = False

    return _check(Gate.LOSS_OVER_SEAM, is_small, ", ".join(texts), rule)


def _done_twice(metrics: History, events: Sequence[Event]) -> Check:
    """Check that no step was repeated if the stop before it saved a checkpoint.

    After a kill, training returns to the last checkpoint, which is not a fault.
    """
    stopped_segments = set()
    segment = 0
    for event in events:
        if event.name == "started" and event.segment is not None:
            segment = event.segment
        elif event.name == "stopped":
            stopped_segments.add(segment)

    repeated = metrics.repeated
    value = ResultMessage.STEPS_REPEATED.fill(count=len(repeated))
    if repeated:
        value += ResultMessage.FIRST_REPEATED.fill(
            repeated=min(step.iteration for step in repeated)
        )
    rule = (
        "after a stop that saved, training continues at the next iteration; after a kill it goes "
        "back to a checkpoint"
    )
    is_fault = any(step.segment in stopped_segments for step in repeated)
    otherwise = "fail" if is_fault else "warn"
    return _check(
        Gate.NO_STEP_TWICE,
        not repeated,
        value,
        rule,
        otherwise=otherwise,
    )


def _usual_jump(metrics: History, first: int) -> float:
    """Return the largest change in the loss (see `_jump`) in the steps before a seam.

    With batches of only a few sequences, the loss changes by more than any tolerance that suits all
    training runs.
    """
    steps = range(first - STEPS_BEFORE_SEAM, first)
    jumps = [_jump(metrics, step) for step in steps]
    return max((jump for jump in jumps if jump is not None), default=0.0)


def _jump(metrics: History, first: int) -> float | None:
    """Return the change in the loss at the first step of a segment, as a share.

    The change is relative to the median over the five losses before that step. Return None if the
    step has no loss, or if all losses before it are missing.
    """
    before = []
    for iteration, loss in metrics.losses:
        if first - 5 <= iteration < first:
            before.append(loss)

    after = [loss for iteration, loss in metrics.losses if iteration == first]
    if not before or not after:
        return None
    usual = statistics.median(before)
    if not usual:
        return None
    return abs(after[0] - usual) / abs(usual)


def _all_iterations(metrics: History, planned: int) -> Check:
    done = metrics.steps[-1].iteration if metrics.steps else 0
    missing = metrics.absent_up_to(done)
    value = ResultMessage.ITERATIONS_DONE.fill(done=done, planned=planned)
    if missing:
        value += f", missing: {_ranges(missing)}"
    is_complete = done == planned and not missing
    rule = "the job reaches the last iteration of the plan"
    return _check(Gate.ALL_ITERATIONS, is_complete, value, rule)


def _first_loss(metrics: History, vocabulary: int) -> Check:
    expected = math.log(vocabulary)
    rule = (
        f"within 0.3 of ln({vocabulary}) = {expected:.4g}, the loss of an untrained model, where "
        "all tokens are equally likely"
    )
    if not metrics.losses:
        return _check(Gate.FIRST_LOSS, False, "no loss was recorded", rule)
    iteration, loss = metrics.losses[0]
    if iteration == metrics.steps[0].iteration:
        where = ""
    else:
        where = f" (at iteration {iteration}: earlier ones have none)"

    value = ResultMessage.FIRST_LOSS_OFF.fill(loss=loss, where=where, difference=loss - expected)
    return _check(Gate.FIRST_LOSS, abs(loss - expected) <= 0.3, value, rule)


def _falling(metrics: History) -> Check:
    name = Gate.LOSS_FALLS
    rule = "the last quarter of the losses is lower on average than the first quarter"
    if len(metrics.losses) < 4:
        value = f"{len(metrics.losses)} losses: too few to tell"
        return _check(
            name,
            False,
            value,
            rule,
            otherwise="unknown",
        )

    first, last = _means_of_ends(metrics, 4)
    return _check(name, last < first, f"{first:.4g} -> {last:.4g}", rule)


def _finite_gradients(metrics: History) -> Check:
    norms = {}
    for step in metrics.steps:
        if not step.skipped:
            norms[step.iteration] = step.grad_norm

    finite_norms = []
    for norm in norms.values():
        if norm is not None and math.isfinite(norm):
            finite_norms.append(norm)

    bad_iterations = []
    for iteration, norm in norms.items():
        if not _is_positive(norm):
            bad_iterations.append(iteration)

    value = "none recorded"
    if finite_norms:
        value = f"{min(finite_norms):.3g} to {max(finite_norms):.3g}"
    if bad_iterations:
        value += ResultMessage.BAD_GRADIENT_NORMS.fill(bad_iterations=_list(bad_iterations[:5]))
    are_good = bool(norms) and not bad_iterations
    return _check(Gate.GRADIENT_NORMS, are_good, value, "finite and above zero at every step")


def _is_positive(norm: float | None) -> bool:
    return norm is not None and math.isfinite(norm) and norm > 0


def _nothing_skipped(metrics: History) -> Check:
    skipped = sum(step.skipped for step in metrics.steps)
    nan = sum(step.nan for step in metrics.steps)
    is_fp16 = any(step.loss_scale > 1 for step in metrics.steps)
    rule = "no step is skipped or has a NaN loss"
    if is_fp16:
        rule += "; with fp16, the first steps may be skipped until the loss scale is low enough"
    otherwise = "warn" if is_fp16 and not nan else "fail"
    value = ResultMessage.SKIPPED_AND_NAN_STEPS.fill(skipped=skipped, nan=nan)
    return _check(
        Gate.SKIPPED_STEPS,
        not skipped and not nan,
        value,
        rule,
        otherwise=otherwise,
    )


def _all_ranks(metrics: History, events: Sequence[Event], world_size: int) -> Check:
    world_sizes = {step.world_size for step in metrics.steps}
    for event in events_named(events, "started"):
        if event.world_size is not None:
            world_sizes.add(event.world_size)

    rule = f"every start and every step has the plan's {world_size} processes"
    value = ResultMessage.WORLD_SIZES.fill(world_sizes=_list(sorted(world_sizes)))
    return _check(Gate.ALL_RANKS, world_sizes == {world_size}, value, rule)


def _throughput(metrics: History, spec: PhasePlan, band: tuple[float, float] | None) -> Check:
    name = Gate.STEP_TIME
    summary = summarize(metrics, sequence_length=spec.model.shape.sequence_length)
    seconds = summary.seconds_per_iteration
    if seconds is None:
        rule = "every step is timed"
        return _check(
            name,
            False,
            "no step was timed",
            rule,
            otherwise="warn",
        )

    value = f"{seconds:.3g} s per iteration, {summary.tokens_per_second or 0:,.0f} tokens/s"
    if band is None:
        rule = "the plan has no band for this machine, because nothing has been measured yet"
        return _check(
            name,
            False,
            value,
            rule,
            otherwise="unknown",
        )

    shortest, longest = band
    rule = (
        f"the plan expects {shortest:.3g} to {longest:.3g} s; on a busy machine, a longer time is "
        "a warning, not a failure"
    )
    return _check(
        name,
        shortest <= seconds <= longest,
        value,
        rule,
        otherwise="warn",
    )


def _saved(metrics: History, events: Sequence[Event]) -> Check:
    saves = iterations_of(events, "saved")
    last = metrics.steps[-1].iteration if metrics.steps else 0
    rule = f"a whole checkpoint of the last iteration ({last}) exists"
    return _check(
        Gate.CHECKPOINT_SAVED,
        last in saves and last > 0,
        ResultMessage.SAVED_AT.fill(iterations=_list(saves)),
        rule,
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text, with consecutive numbers combined.

    >>> _ranges([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9 to 10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])

    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(texts)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _reloaded(events: Sequence[Event]) -> Check:
    """Check that the saved checkpoint was loaded and that the saved model was restored."""
    name = Gate.CHECKPOINT_RELOADED
    reloads = events_named(events, "reloaded")
    if not reloads:
        return _reloaded_by_restart(name, events)
    rule = (
        "the last checkpoint, loaded after one more step had changed the weights, yields the loss "
        "that it was saved with"
    )
    last = reloads[-1]
    if last.iteration != last.saved_iteration:
        value = f"iteration {last.iteration} was loaded, {last.saved_iteration} was saved last"
        return _check(name, False, value, rule)

    before = last.loss_before or math.nan
    after = last.loss_after or math.nan
    value = (
        f"loss {before:.4g} saved, {last.loss_between:.4g} after one more step, "
        f"{after:.4g} loaded, off by {after - before:+.2g}"
    )
    return _check(name, abs(after - before) <= TOLERANCE * abs(before), value, rule)


def _reloaded_by_restart(name: str, events: Sequence[Event]) -> Check:
    """If no checkpoint was reloaded at the end, check the checkpoints that restarts loaded."""
    rule = "the checkpoint is loaded again at the end, or by a restart"
    loads = iterations_of(events, "resumed")
    if not loads:
        return _check(name, False, ResultMessage.NEVER_LOADED.fill(), rule)
    are_own = set(loads) <= set(iterations_of(events, "saved"))
    return _check(name, are_own, f"a restart continued from iteration {_list(loads)}", rule)


def _network(events: Sequence[Event], *, promised: float | None) -> Check:
    """Compare the measured bus bandwidth with the adapter bandwidth per node.

    `promised` is the adapter bandwidth in B/s: 0 if the site does not state it, None if there is
    only one node.
    """
    name = Gate.NETWORK_BANDWIDTH
    measurements = events_named(events, "network")
    if not measurements:
        rule = "an all-reduce over all ranks is timed at the end of the test"
        return _check(
            name,
            False,
            "not measured",
            rule,
            otherwise="unknown",
        )

    ranks = measurements[-1].ranks
    bytes_per_second = measurements[-1].bytes_per_second
    if ranks == 1:
        return _check(
            name, True, "one rank: no network is needed", "an all-reduce over all ranks is timed"
        )
    gigabytes = f"{bytes_per_second / 1e9:.3g} GB/s"
    value = f"{gigabytes} over {ranks} ranks (bus bandwidth of an all-reduce of 32 MiB)"
    if promised is None:
        return _check(name, True, value, "one node: no network between nodes is needed")
    if not promised:
        rule = "hardware.network of the site must state the bandwidth of a node's adapters; it is 0"
        return _check(
            name,
            False,
            value,
            rule,
            otherwise="unknown",
        )

    share = bytes_per_second / promised
    rule = (
        f"at least {GOOD_SHARE:.0%} of the adapters' {promised / 1e9:g} GB/s a node; below "
        f"{POOR_SHARE:.0%} the job is probably using the wrong network"
    )
    otherwise = "warn" if share >= POOR_SHARE else "fail"
    return _check(
        name,
        share >= GOOD_SHARE,
        f"{value}, {share:.0%}",
        rule,
        otherwise=otherwise,
    )
