"""Verdicts on a training phase: the smoke gate, whether the model learned, whether a resume left a seam."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runbook.analysis import smoke_proofs
from runbook.analysis.history import Evaluation, History, events_named
from runbook.analysis.metrics import summarize
from runbook.plan.checks import Check

ENOUGH_AFTER = 10
"""Losses after a spike before its not coming back is called divergence."""
REMEDIES = {
    "all iterations done": "Read the job's err file; `runbook run` resumes it where it stopped.",
    "first loss": "Compare vocabulary and init_std with the plan: too high is a wrong initialisation or ids beyond the "
    "vocabulary, too low is a checkpoint loaded by mistake.",
    "loss falls": "Look at the learning rate of each step and at a decoded sample of the data.",
    "gradient norms": "Try bf16 or fp32, or a lower learning rate; zero norms mean that nothing is learned at all.",
    "skipped and NaN steps": "Use bf16, or a lower initial loss scale; under bf16 no step may be skipped.",
    "all ranks seen": "Compare the launcher's process count with tensor x pipeline x data of the plan.",
    "step time": "Compare with the plan's basis: is the machine busy, is the number format native to it, are all "
    "devices used?",
    "checkpoint saved": "Look for a full disk or a missing permission in the job's err file.",
    "checkpoint reloaded": "Run 03-smoke-test again; if it stays so, the checkpoints of this set-up cannot be trusted: "
    "compare versions of torch and the engine, and the file system.",
    "network bandwidth": "Look at the job's err file for the network that NCCL or RCCL chose (NCCL_DEBUG=INFO), and at "
    "the adapters' variables in the site file.",
    "resumed from a checkpoint of this run": "Look at the plan's checkpoint folder: it may be another run's.",
    "evaluation": "Look at the held-out data: is it tokenized with the same vocabulary?",
    "model learned": "Train longer, or look at learning rate and data; a flat loss near the start learns nothing.",
    "loss does not diverge": "Resume from a checkpoint before it with a lower learning rate or other data.",
    "no step is missing": "Two runs wrote into one metrics.jsonl, or it was edited: run the phase again with --redo.",
    "no step was done twice": "The stop did not save: look for its save in events.jsonl and the job's err file.",
    "loss goes on over the seam": "The optimizer or the data order was not restored: compare consumed_samples of the "
    "steps before and after.",
}


def _with_remedies(checks: Sequence[Check]) -> list[Check]:
    return [
        check if check.verdict == "pass" else replace(check, remedy=REMEDIES.get(check.name, "")) for check in checks
    ]


def smoke_gate(
    metrics: History,
    validation: Sequence[Evaluation],
    events: Sequence[Mapping[str, Any]],
    spec: Mapping[str, Any],
    *,
    seconds_band: tuple[float, float] | None = None,
    require_reload: bool = False,
    network_bytes_per_second: float = 0.0,
) -> list[Check]:
    """What the short run must prove before the long one may start.

    Args:
        metrics: The smoke run's history.
        validation: Its evaluations.
        events: Its events, of this phase only.
        spec: What the trainer was given (a phase of plan.json).
        seconds_band: Shortest and longest iteration the plan believes in; None: the plan had no measurement to go by.
        require_reload: Fail where no checkpoint was loaded again; else that is unknown.
        network_bytes_per_second: What the adapters of a node carry; 0: the site does not say.
    """
    checks = [
        _all_iterations(metrics, spec),
        _first_loss(metrics, int(spec["model"]["padded_vocabulary"])),
        _falling(metrics),
        _finite_gradients(metrics),
        _nothing_skipped(metrics),
        _all_ranks(metrics, events, int(spec["parallel"]["world_size"])),
        _throughput(metrics, spec, seconds_band),
        _saved(metrics, events),
        smoke_proofs.reloaded(events, required=require_reload),
        smoke_proofs.network(events, promised=network_bytes_per_second),
    ]
    if validation:
        checks.append(_validation(validation))
    return _with_remedies(checks)


def learning_check(metrics: History, *, smallest_fall: float = 0.30) -> list[Check]:
    """The loss ends at least `smallest_fall` below where it began (means of the first and last 2 % of the losses)."""
    losses = [loss for _, loss in metrics.losses]
    rule = f"the last loss is at least {smallest_fall:.0%} below the first"
    if len(losses) < 2:
        return [Check("model learned", "fail", f"{len(losses)} losses recorded", rule)]
    count = max(1, len(losses) // 50)
    first, last = statistics.fmean(losses[:count]), statistics.fmean(losses[-count:])
    fall = 1 - last / first
    verdict = "pass" if fall >= smallest_fall else "fail"
    spikes = summarize(metrics, sequence_length=1).spikes
    lost = [spike for spike in spikes if spike.recovered_at is None]
    after = sum(iteration > lost[0].iteration for iteration, _ in metrics.losses) if lost else 0
    return _with_remedies(
        [
            Check("model learned", verdict, f"{first:.3f} -> {last:.3f} nat, {fall:.1%} lower", rule),
            Check(
                "loss does not diverge",
                "pass" if not lost else "fail" if after >= ENOUGH_AFTER else "warn",
                f"{len(spikes)} spikes" + (f", not recovered from iteration {lost[0].iteration} on" if lost else ""),
                f"a spike comes back to where the loss was; with fewer than {ENOUGH_AFTER} losses after it: a warning",
            ),
        ]
    )


def resume_check(metrics: History, events: Sequence[Mapping[str, Any]], *, tolerance: float = 0.15) -> list[Check]:
    """Segments join without gap or repeated step, and the loss goes on where it was; empty where nothing was resumed.

    `tolerance` is the largest jump of the loss over a seam, as a share: steps before and after it are other samples,
    so a seam may step as much as two neighbours do.
    """
    if not metrics.restarts:
        return []
    missing = metrics.missing_iterations
    jumps = [_jump(metrics, first) for first in metrics.restarts]
    checks = [
        Check(
            "no step is missing",
            "fail" if missing else "pass",
            f"{len(missing)} missing" + (f", first {missing[0]}" if missing else ""),
            "each iteration between the first and the last was done",
        ),
        _done_twice(metrics, events),
        _resumed_from_saved(events),
        Check(
            "loss goes on over the seam",
            "pass" if all(jump is None or jump <= tolerance for jump in jumps) else "fail",
            ", ".join("no loss beside it" if jump is None else f"{jump:.1%}" for jump in jumps),
            f"the loss of the first resumed step is within {tolerance:.0%} of the median of the five before it",
        ),
    ]
    return _with_remedies(checks)


def _done_twice(metrics: History, events: Sequence[Mapping[str, Any]]) -> Check:
    """A stop that saved loses no step; a killed segment goes back to its last checkpoint, which is no fault."""
    stopped = _stopped_segments(events)
    wrong = [step.iteration for step in metrics.repeated if step.segment in stopped]
    count = len(metrics.repeated)
    return Check(
        "no step was done twice",
        "fail" if wrong else "warn" if count else "pass",
        f"{count} repeated" + (f", first {min(step.iteration for step in metrics.repeated)}" if count else ""),
        "after a stop that saved, training goes on at the next iteration; after a kill it goes back to a checkpoint",
    )


def _stopped_segments(events: Sequence[Mapping[str, Any]]) -> set[int]:
    """The segments that ended by saving and stopping: each begins with `started`.

    >>> started = [{"event": "started", "segment": segment} for segment in (0, 1)]
    >>> _stopped_segments([*started, {"event": "stopped"}])
    {1}
    """
    found, now = set(), 0
    for event in events:
        if event["event"] == "started":
            now = int(event.get("segment", now))
        elif event["event"] == "stopped":
            found.add(now)
    return found


def _resumed_from_saved(events: Sequence[Mapping[str, Any]]) -> Check:
    saves = {int(event["iteration"]) for event in events_named(events, "saved") if "iteration" in event}
    loads = [int(event["iteration"]) for event in events_named(events, "resumed") if "iteration" in event]
    strange = [load for load in loads if load not in saves]
    return Check(
        "resumed from a checkpoint of this run",
        "fail" if strange else "pass" if loads else "unknown",
        f"resumed from {_list(loads)}",
        "every checkpoint loaded is one that this run saved",
    )


def _jump(metrics: History, first: int) -> float | None:
    before = [loss for iteration, loss in metrics.losses if first - 5 <= iteration < first]
    after = [loss for iteration, loss in metrics.losses if iteration == first]
    if not before or not after:
        return None
    middle = statistics.median(before)
    return abs(after[0] - middle) / abs(middle) if middle else None


def _all_iterations(metrics: History, spec: Mapping[str, Any]) -> Check:
    wanted = int(spec["duration"]["iterations"])
    done = metrics.steps[-1].iteration if metrics.steps else 0
    missing = len(metrics.missing_iterations)
    return Check(
        "all iterations done",
        "pass" if done == wanted and not missing else "fail",
        f"{done} of {wanted}" + (f", {missing} missing between" if missing else ""),
        "the job reaches the last iteration of the plan",
    )


def _first_loss(metrics: History, padded_vocabulary: int) -> Check:
    expected = math.log(padded_vocabulary)
    rule = f"within 0.3 of ln({padded_vocabulary}) = {expected:.3f}: an untrained model guesses every token alike"
    if not metrics.losses:
        return Check("first loss", "fail", "no loss was recorded", rule)
    iteration, loss = metrics.losses[0]
    where = "" if iteration == metrics.steps[0].iteration else f" (at iteration {iteration}: earlier ones have none)"
    verdict = "pass" if abs(loss - expected) <= 0.3 else "fail"
    return Check("first loss", verdict, f"{loss:.3f}{where}, off by {loss - expected:+.3f}", rule)


def _falling(metrics: History) -> Check:
    losses = [loss for _, loss in metrics.losses]
    rule = "the last quarter of the losses is lower on average than the first quarter"
    if len(losses) < 4:
        return Check("loss falls", "unknown", f"{len(losses)} losses: too few to say", rule)
    count = len(losses) // 4
    first, last = statistics.fmean(losses[:count]), statistics.fmean(losses[-count:])
    return Check("loss falls", "pass" if last < first else "fail", f"{first:.3f} -> {last:.3f}", rule)


def _finite_gradients(metrics: History) -> Check:
    norms = [step.grad_norm for step in metrics.steps if not step.skipped]
    bad = [step.iteration for step in metrics.steps if not step.skipped and not _finite_positive(step.grad_norm)]
    shown = [norm for norm in norms if norm is not None and math.isfinite(norm)]
    value = f"{min(shown):.3g} to {max(shown):.3g}" if shown else "none recorded"
    return Check(
        "gradient norms",
        "fail" if bad or not norms else "pass",
        value + (f"; not finite or zero at iteration {_list(bad[:5])}" if bad else ""),
        "finite and above zero at every step",
    )


def _finite_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _nothing_skipped(metrics: History) -> Check:
    skipped, nan = sum(step.skipped for step in metrics.steps), sum(step.nan for step in metrics.steps)
    fp16 = any(step.loss_scale > 1 for step in metrics.steps)
    verdict = "pass" if not skipped and not nan else "warn" if fp16 and not nan else "fail"
    rule = "no step is skipped and none has a NaN loss"
    return Check(
        "skipped and NaN steps",
        verdict,
        f"{skipped} skipped, {nan} NaN",
        rule + ("; under fp16 the first steps may be skipped until the loss scale fits" if fp16 else ""),
    )


def _all_ranks(metrics: History, events: Sequence[Mapping[str, Any]], world: int) -> Check:
    seen = {step.world_size for step in metrics.steps}
    seen |= {int(event["world_size"]) for event in events_named(events, "started") if "world_size" in event}
    return Check(
        "all ranks seen",
        "pass" if seen == {world} else "fail",
        f"world size {_list(sorted(seen))}",
        f"every start and every step has the plan's {world} processes",
    )


def _throughput(metrics: History, spec: Mapping[str, Any], band: tuple[float, float] | None) -> Check:
    found = summarize(metrics, sequence_length=int(spec["model"]["sequence_length"]))
    if found.seconds_per_iteration is None:
        return Check("step time", "fail", "no step was timed", "every step is timed")
    value = f"{found.seconds_per_iteration:.3g} s an iteration, {found.tokens_per_second or 0:,.0f} tokens/s"
    if band is None:
        return Check("step time", "unknown", value, "the plan has no band for this machine: nothing was measured yet")
    inside = band[0] <= found.seconds_per_iteration <= band[1]
    verdict = "pass" if inside else "warn" if found.seconds_per_iteration < band[0] else "fail"
    return Check("step time", verdict, value, f"the plan believes in {band[0]:.3g} to {band[1]:.3g} s")


def _saved(metrics: History, events: Sequence[Mapping[str, Any]]) -> Check:
    saves = [int(event["iteration"]) for event in events_named(events, "saved") if "iteration" in event]
    last = metrics.steps[-1].iteration if metrics.steps else 0
    return Check(
        "checkpoint saved",
        "pass" if last and last in saves else "fail",
        f"saved at {_list(saves)}",
        f"a whole checkpoint of the last iteration ({last}) exists",
    )


def _validation(validation: Sequence[Evaluation]) -> Check:
    bad = [one.iteration for one in validation if not math.isfinite(one.loss)]
    return Check(
        "evaluation",
        "fail" if bad else "pass",
        f"{len(validation)} evaluations, last loss {validation[-1].loss:.3f}",
        "every evaluation has a finite loss",
    )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers) if numbers else "none"
