"""What the trainer proved at the end of a smoke test, judged: the checkpoint loads again, the network is fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runbook.analysis.history import events_named
from runbook.plan.checks import Check

TOLERANCE = 1e-4
"""Two evaluations of the same weights and samples may differ by this share: not every kernel adds in one order."""
GOOD_SHARE, POOR_SHARE = 0.25, 0.05
"""Of the adapters' rate: what a healthy sum of 32 MiB reaches, and what only the wrong network explains."""


def reloaded(events: Sequence[Mapping[str, Any]], *, required: bool) -> Check:
    """Whether the saved checkpoint was loaded and gave the model that was saved."""
    name = "checkpoint reloaded"
    rule = "the last checkpoint, loaded over weights that one more step had changed, gives the loss it was saved with"
    found = events_named(events, "reloaded")
    if not found:
        return _by_resuming(events, name, required=required)
    one = found[-1]
    before, between, after = (float(one[key]) for key in ("loss_before", "loss_between", "loss_after"))
    value = f"loss {before:.5f} saved, {between:.5f} after one more step, {after:.5f} loaded"
    if one.get("iteration") != one.get("saved_iteration"):
        value = f"iteration {one.get('iteration')} was loaded, {one.get('saved_iteration')} was saved last"
        return Check(name, "fail", value, rule)
    same = abs(after - before) <= TOLERANCE * abs(before)
    return Check(name, "pass" if same else "fail", value, rule)


def _by_resuming(events: Sequence[Mapping[str, Any]], name: str, *, required: bool) -> Check:
    rule = "the checkpoint is loaded again at the end, or by a restart"
    loads = [int(event["iteration"]) for event in events_named(events, "resumed") if "iteration" in event]
    saves = {int(event["iteration"]) for event in events_named(events, "saved") if "iteration" in event}
    strange = [load for load in loads if load not in saves]
    if loads:
        shown = ", ".join(str(load) for load in loads)
        return Check(name, "fail" if strange else "pass", f"a restart went on from iteration {shown}", rule)
    return Check(name, "fail" if required else "unknown", "it was never loaded", rule)


def network(events: Sequence[Mapping[str, Any]], *, promised: float) -> Check:
    """Bus bandwidth against the adapters of a node; `promised` in B/s, 0: the site does not say."""
    name = "network bandwidth"
    found = events_named(events, "network")
    if not found:
        return Check(name, "unknown", "not measured", "a sum over all ranks is timed at the end of the test")
    ranks, speed = int(found[-1]["ranks"]), float(found[-1]["bytes_per_second"])
    if ranks == 1:
        return Check(name, "pass", "one rank: no network is used", "a sum over all ranks is timed")
    value = f"{speed / 1e9:.3g} GB/s over {ranks} ranks (bus bandwidth of a sum of 32 MiB)"
    if not promised:
        return Check(name, "unknown", value, "hardware.network of the site says what a node's adapters carry; it is 0")
    share = speed / promised
    rule = (
        f"at least {GOOD_SHARE:.0%} of the adapters' {promised / 1e9:g} GB/s a node; below {POOR_SHARE:.0%} the job is "
        "on another network"
    )
    verdict = "pass" if share >= GOOD_SHARE else "warn" if share >= POOR_SHARE else "fail"
    return Check(name, verdict, f"{value}, {share:.0%}", rule)
