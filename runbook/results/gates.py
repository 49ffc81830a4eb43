"""Gates: the checks of a smoke test, of a training and of a resume."""

import json
import math
import statistics
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from runbook.core.checks import Check, judge
from runbook.plan_file.schema import PhasePlan
from runbook.results.history import Event, History, ValidationLoss, events_named, iterations_of
from runbook.results.metrics import find_spikes, recovery, summarize

ENOUGH_AFTER = 10
"""Losses after a spike before its not coming back is called divergence."""
CREDIBLE_FACTOR = 3.0
"""A step this many times faster or slower than its estimate calls the estimate or the machine into question."""
TOLERANCE = 1e-4
"""Two evaluations of the same weights and samples may differ by this share: not every kernel adds in one order."""
GOOD_SHARE = 0.25
POOR_SHARE = 0.05
"""Of the adapters' rate: what a healthy sum of 32 MiB reaches, and what only the wrong network explains."""
REMEDIES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""What to do where a check fails, by its name."""


def _check(name: str, holds: bool, value: str, rule: str, otherwise: str = "fail") -> Check:
    return judge(name, holds, value, rule, REMEDIES[name], otherwise=otherwise)


def smoke_gate(
    metrics: History,
    validation: Sequence[ValidationLoss],
    events: Sequence[Event],
    spec: PhasePlan,
    *,
    seconds_band: tuple[float, float] | None,
    network_bytes_per_second: float | None,
) -> list[Check]:
    """What the short run must prove before the long one may start.

    `events` are those of this phase only; `seconds_band` is None where the plan had no measurement to go by.
    `network_bytes_per_second` is what the adapters of a node carry; 0: the site does not say; None: one node uses none.
    """
    checks = [
        _all_iterations(metrics, spec.duration.iterations),
        _first_loss(metrics, spec.model.vocabulary),
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
        finite = all(math.isfinite(one.loss) for one in validation)
        value = f"{len(validation)} evaluations, last loss {validation[-1].loss:.4g}"
        checks.append(_check("evaluation", finite, value, "every evaluation has a finite loss"))
    return checks


def credible_step_seconds(estimate: float | None) -> tuple[float, float] | None:
    """Shortest and longest step that agrees with the plan's estimate; None where the plan has none.

    >>> credible_step_seconds(1.5), credible_step_seconds(None)
    ((0.5, 4.5), None)
    """
    return (estimate / CREDIBLE_FACTOR, estimate * CREDIBLE_FACTOR) if estimate else None


def learning_check(metrics: History, *, smallest_fall: float = 0.30) -> list[Check]:
    """The loss ends at least `smallest_fall` below where it began (means of the first and last 2 % of the losses)."""
    rule = f"the last loss is at least {smallest_fall:.0%} below the first"
    if len(metrics.losses) < 2:
        return [_check("model learned", False, f"{len(metrics.losses)} losses recorded", rule)]
    if zero := [iteration for iteration, loss in metrics.losses if loss == 0]:
        return [
            _check(
                "loss above 0",
                False,
                f"{len(zero)} of {len(metrics.losses)} losses are exactly 0, from iteration {zero[0]} on",
                "no text is foreseen with certainty: the samples repeat, or no token counts",
            )
        ]
    first, last = _means_of_ends(metrics, 50)
    fall = 1 - last / first
    spikes = find_spikes(metrics.losses, metrics.grad_norms)
    lost = next((spike.since for spike in spikes if recovery(spike, metrics.losses) is None), None)
    after = 0 if lost is None else sum(iteration > lost for iteration, _ in metrics.losses)
    return [
        _check(
            "model learned",
            fall >= smallest_fall,
            f"{first:.4g} -> {last:.4g} nat, {fall:.1%} lower",
            rule,
        ),
        _check(
            "loss does not diverge",
            lost is None,
            f"{len(spikes)} spikes"
            + ("" if lost is None else f", not recovered from iteration {lost} on"),
            f"a spike comes back to where the loss was; with fewer than {ENOUGH_AFTER} losses after it: a warning",
            otherwise="fail" if after >= ENOUGH_AFTER else "warn",
        ),
    ]


def _means_of_ends(metrics: History, parts: int) -> tuple[float, float]:
    """Mean of the first and of the last of so many parts of the losses."""
    losses = [loss for _, loss in metrics.losses]
    count = max(1, len(losses) // parts)
    return statistics.fmean(losses[:count]), statistics.fmean(losses[-count:])


def steps_check(metrics: History, iterations: int) -> Check:
    """Whether the metrics hold every step from the first to their last; to `iterations` where they hold none."""
    missing = metrics.absent_up_to(metrics.steps[-1].iteration if metrics.steps else iterations)
    value = f"missing: steps {_ranges(missing)}" if missing else f"{len(metrics.steps)} steps"
    rule = "each iteration from 1 to the last was done and has its line in metrics.jsonl"
    return _check("no step is missing", not missing, value, rule)


def resume_check(
    metrics: History, events: Sequence[Event], *, tolerance: float = 0.15
) -> list[Check]:
    """Segments join without a repeated step, and the loss goes on where it was; empty where nothing was resumed.

    `tolerance` is the largest jump of the loss over a seam, as a share: steps before and after it are other samples,
    so a seam may step as much as two neighbours do.
    """
    if not metrics.restarts:
        return []
    jumps = [_jump(metrics, first) for first in metrics.restarts]
    loads = iterations_of(events, "resumed")
    return [
        _done_twice(metrics, events),
        _check(
            "resumed from a checkpoint of this run",
            bool(loads) and set(loads) <= set(iterations_of(events, "saved")),
            f"resumed from {_list(loads)}",
            "every checkpoint loaded is one that this run saved",
            otherwise="fail" if loads else "unknown",
        ),
        _check(
            "loss goes on over the seam",
            all(jump is None or jump <= tolerance for jump in jumps),
            ", ".join("no loss beside it" if jump is None else f"{jump:.1%}" for jump in jumps),
            f"the loss of the first resumed step is within {tolerance:.0%} of the median of the five before it",
        ),
    ]


def _done_twice(metrics: History, events: Sequence[Event]) -> Check:
    """A stop that saved loses no step; a killed segment goes back to its last checkpoint, which is no fault."""
    stopped = set()
    segment = 0
    again = metrics.repeated
    for event in events:
        if event.name == "started" and event.segment is not None:
            segment = event.segment
        elif event.name == "stopped":
            stopped.add(segment)
    return _check(
        "no step was done twice",
        not again,
        f"{len(again)} repeated"
        + (f", first {min(step.iteration for step in again)}" if again else ""),
        "after a stop that saved, training goes on at the next iteration; after a kill it goes back to a checkpoint",
        otherwise="fail" if any(step.segment in stopped for step in again) else "warn",
    )


def _jump(metrics: History, first: int) -> float | None:
    before = [loss for iteration, loss in metrics.losses if first - 5 <= iteration < first]
    after = [loss for iteration, loss in metrics.losses if iteration == first]
    middle = statistics.median(before) if before and after else 0
    return abs(after[0] - middle) / abs(middle) if middle else None


def _all_iterations(metrics: History, wanted: int) -> Check:
    done = metrics.steps[-1].iteration if metrics.steps else 0
    missing = metrics.absent_up_to(done)
    value = f"{done} of {wanted}" + (f", missing: {_ranges(missing)}" if missing else "")
    whole = done == wanted and not missing
    return _check(
        "all iterations done", whole, value, "the job reaches the last iteration of the plan"
    )


def _first_loss(metrics: History, vocabulary: int) -> Check:
    expected = math.log(vocabulary)
    rule = f"within 0.3 of ln({vocabulary}) = {expected:.4g}: an untrained model guesses every token alike"
    if not metrics.losses:
        return _check("first loss", False, "no loss was recorded", rule)
    iteration, loss = metrics.losses[0]
    if iteration == metrics.steps[0].iteration:
        where = ""
    else:
        where = f" (at iteration {iteration}: earlier ones have none)"
    value = f"{loss:.4g}{where}, off by {loss - expected:+.3f}"
    return _check("first loss", abs(loss - expected) <= 0.3, value, rule)


def _falling(metrics: History) -> Check:
    rule = "the last quarter of the losses is lower on average than the first quarter"
    if len(metrics.losses) < 4:
        return _check(
            "loss falls",
            False,
            f"{len(metrics.losses)} losses: too few to say",
            rule,
            otherwise="unknown",
        )
    first, last = _means_of_ends(metrics, 4)
    return _check("loss falls", last < first, f"{first:.4g} -> {last:.4g}", rule)


def _finite_gradients(metrics: History) -> Check:
    norms = {step.iteration: step.grad_norm for step in metrics.steps if not step.skipped}
    finite = {n: norm for n, norm in norms.items() if norm is not None and math.isfinite(norm)}
    bad = [iteration for iteration in norms if finite.get(iteration, 0.0) <= 0]
    if finite:
        value = f"{min(finite.values()):.3g} to {max(finite.values()):.3g}"
    else:
        value = "none recorded"
    value += f"; not finite or zero at iteration {_list(bad[:5])}" if bad else ""
    return _check(
        "gradient norms", bool(norms) and not bad, value, "finite and above zero at every step"
    )


def _nothing_skipped(metrics: History) -> Check:
    skipped = sum(step.skipped for step in metrics.steps)
    nan = sum(step.nan for step in metrics.steps)
    fp16 = any(step.loss_scale > 1 for step in metrics.steps)
    rule = "no step is skipped and none has a NaN loss"
    return _check(
        "skipped and NaN steps",
        not skipped and not nan,
        f"{skipped} skipped, {nan} NaN",
        rule
        + ("; under fp16 the first steps may be skipped until the loss scale fits" if fp16 else ""),
        otherwise="warn" if fp16 and not nan else "fail",
    )


def _all_ranks(metrics: History, events: Sequence[Event], world: int) -> Check:
    seen = {step.world_size for step in metrics.steps}
    seen |= {
        event.world_size
        for event in events_named(events, "started")
        if event.world_size is not None
    }
    rule = f"every start and every step has the plan's {world} processes"
    return _check("all ranks seen", seen == {world}, f"world size {_list(sorted(seen))}", rule)


def _throughput(metrics: History, spec: PhasePlan, band: tuple[float, float] | None) -> Check:
    found = summarize(metrics, sequence_length=spec.model.sequence_length)
    seconds = found.seconds_per_iteration
    if seconds is None:
        return _check(
            "step time", False, "no step was timed", "every step is timed", otherwise="warn"
        )
    value = f"{seconds:.3g} s an iteration, {found.tokens_per_second or 0:,.0f} tokens/s"
    if band is None:
        rule = "the plan has no band for this machine: nothing was measured yet"
        return _check("step time", False, value, rule, otherwise="unknown")
    rule = f"the plan believes in {band[0]:.3g} to {band[1]:.3g} s; on a busy machine, more is a question, no failure"
    return _check("step time", band[0] <= seconds <= band[1], value, rule, otherwise="warn")


def _saved(metrics: History, events: Sequence[Event]) -> Check:
    saves = iterations_of(events, "saved")
    last = metrics.steps[-1].iteration if metrics.steps else 0
    rule = f"a whole checkpoint of the last iteration ({last}) exists"
    return _check("checkpoint saved", last in saves and last > 0, f"saved at {_list(saves)}", rule)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, those in a row as one.

    >>> _ranges([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9 to 10'
    """
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])
    ]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _reloaded(events: Sequence[Event]) -> Check:
    """Whether the saved checkpoint was loaded and gave the model that was saved."""
    name = "checkpoint reloaded"
    reloads = events_named(events, "reloaded")
    loads = iterations_of(events, "resumed")
    if not reloads:
        rule = "the checkpoint is loaded again at the end, or by a restart"
        if not loads:
            return _check(name, False, "it was never loaded", rule)
        saved_here = set(loads) <= set(iterations_of(events, "saved"))
        return _check(name, saved_here, f"a restart went on from iteration {_list(loads)}", rule)
    rule = "the last checkpoint, loaded over weights that one more step had changed, gives the loss it was saved with"
    last = reloads[-1]
    if last.iteration != last.saved_iteration:
        value = f"iteration {last.iteration} was loaded, {last.saved_iteration} was saved last"
        return _check(name, False, value, rule)
    before = last.loss_before or math.nan
    after = last.loss_after or math.nan
    value = (
        f"loss {before:.4g} saved, {last.loss_between:.4g} after one more step, {after:.4g} loaded"
    )
    value += f", off by {after - before:+.2g}"
    return _check(name, abs(after - before) <= TOLERANCE * abs(before), value, rule)


def _network(events: Sequence[Event], *, promised: float | None) -> Check:
    """Bus bandwidth against the adapters of a node; `promised` in B/s, 0: the site does not say, None: one node."""
    name = "network bandwidth"
    measurements = events_named(events, "network")
    if not measurements:
        rule = "a sum over all ranks is timed at the end of the test"
        return _check(name, False, "not measured", rule, otherwise="unknown")
    ranks = measurements[-1].ranks
    speed = measurements[-1].bytes_per_second
    if ranks == 1:
        return _check(name, True, "one rank: no network is used", "a sum over all ranks is timed")
    value = f"{speed / 1e9:.3g} GB/s over {ranks} ranks (bus bandwidth of a sum of 32 MiB)"
    if promised is None:
        return _check(name, True, value, "one node: no network between nodes is used")
    if not promised:
        rule = "hardware.network of the site says what a node's adapters carry; it is 0"
        return _check(name, False, value, rule, otherwise="unknown")
    share = speed / promised
    rule = (
        f"at least {GOOD_SHARE:.0%} of the adapters' {promised / 1e9:g} GB/s a node; below {POOR_SHARE:.0%} the job is "
        "on another network"
    )
    otherwise = "warn" if share >= POOR_SHARE else "fail"
    return _check(name, share >= GOOD_SHARE, f"{value}, {share:.0%}", rule, otherwise=otherwise)
