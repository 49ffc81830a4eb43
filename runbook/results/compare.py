"""Comparison of two or more runs: parameters, results, environment, and checks for regressions."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from runbook.core.checks import Check, judge
from runbook.core.errors import RecordError
from runbook.core.table import Row, Table
from runbook.core.units import show_change
from runbook.params.yaml12 import dotted
from runbook.planning.plan import parse_plan
from runbook.results.history import History, read_events, read_metrics, read_scores, read_validation
from runbook.results.metrics import Summary, summarize
from runbook.results.wall_time import WallTime, account_wall_time

LOSSES = 5
"""Losses whose median is compared: a single one is another batch's luck."""
METRICS = {
    "step time (s/iteration)": "seconds_per_iteration",
    "throughput (tokens/s)": "tokens_per_second",
    "throughput (tokens/s/device)": "tokens_per_second_per_device",
    "speed (TFLOP/s/device)": "tflops_per_device",
    "waiting for data (share)": "data_wait_share",
    "first loss (nat/token)": "first_loss",
    "last loss (nat/token)": "last_loss",
    "validation loss (nat/token)": "validation_loss",
    "largest gradient norm": "largest_grad_norm",
    "skipped steps": "skipped",
    "iterations": "iterations",
    "devices": "world_size",
    "memory (B)": "memory_bytes",
}


@dataclass(frozen=True)
class RunFacts:
    """One phase of one run, as its files tell it."""

    name: str
    parameters: Mapping[str, Any]
    """Dotted keys of run.yaml."""
    environment: Mapping[str, str]
    summary: Summary
    history: History
    account: WallTime | None
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of 06-evaluation, after the training."""


@dataclass(frozen=True)
class Tolerance:
    """How much worse a run may be than the one before it, as shares."""

    tokens_per_second: float = 0.05
    last_loss: float = 0.01
    memory: float = 0.10


@dataclass(frozen=True)
class Comparison:
    """The answer: tables to show and checks to act on."""

    parameters: Table
    metrics: Table
    environment: Table
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse than the tolerance allows."""
        return all(check.verdict != "fail" for check in self.checks)


def read_run(folder: Path, phase: str = "04-training") -> RunFacts:
    """Everything a comparison needs of a run's folder; `RecordError` where the phase was not run."""
    smoke = folder / "smoke" if phase.startswith("03") else folder
    path = folder / "plan.json"
    if not path.exists():
        raise RecordError(f"{path} does not exist: is {folder} the folder of a run?")
    plan = parse_plan(path.read_text(encoding="utf-8"), path)
    if phase not in plan.phases:
        raise RecordError(f"{path} has no phase {phase}: run `runbook run` on it first.")
    spec = plan.phases[phase]
    history = read_metrics(smoke / "metrics.jsonl")
    validation = read_validation(smoke / "validation.jsonl")
    record = folder / "records" / f"{phase}.json"
    try:
        twin = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    except ValueError as error:
        raise RecordError(f"{record} is not JSON: {error}") from error
    if not isinstance(twin, dict):
        raise RecordError(f"{record} holds no JSON object.")
    about = {"site": plan.site, "device": spec.device, "engine": spec.engine}
    versions = about | twin.get("versions", {}) | {"commit": twin.get("commit") or "not known"}
    asked = folder / "run.yaml"
    return RunFacts(
        name=folder.name,
        parameters=dotted((yaml.safe_load(asked.read_text()) or {}) if asked.exists() else {}),
        environment={str(key): str(value) for key, value in versions.items()},
        summary=summarize(
            history, sequence_length=spec.model.sequence_length, validation=validation
        ),
        history=history,
        account=account_wall_time(history, validation, read_events(folder / "events.jsonl", phase)),
        scores={
            f"{row['what']}: {row['measure']}": row["after"]
            for row in read_scores(folder)
            if smoke == folder
        },
    )


def compare(runs: Sequence[RunFacts], tolerance: Tolerance | None = None) -> Comparison:
    """The first run is what the others are held against; checks are made for each of the others."""
    if len(runs) < 2:
        raise RecordError(f"A comparison needs at least two runs; {len(runs)} given.")
    checks = tuple(
        check for other in runs[1:] for check in _checks(runs[0], other, tolerance or Tolerance())
    )
    return Comparison(
        _differences("Parameters that differ", runs, [run.parameters for run in runs], "run.yaml"),
        _metrics(runs),
        _differences(
            "Environment that differs", runs, [run.environment for run in runs], "records/*.json"
        ),
        checks,
    )


def _metrics(runs: Sequence[RunFacts]) -> Table:
    measured = {
        what: [getattr(run.summary, attribute) for run in runs]
        for what, attribute in METRICS.items()
    }
    measured["goodput (share of wall time)"] = [
        run.account.goodput if run.account else None for run in runs
    ]
    for what in dict.fromkeys(name for run in runs for name in run.scores):
        measured[what] = [run.scores.get(what) for run in runs]
    rows = []
    for what, values in measured.items():
        ratio = values[-1] / values[0] if values[0] and values[-1] is not None else None
        by_run = {run.name: value for run, value in zip(runs, values, strict=True)}
        rows.append({"what": what, **by_run, "last / first": ratio})
    return Table(
        rows, "Results side by side", source="metrics.jsonl, validation.jsonl, events.jsonl"
    )


def _differences(title: str, runs: Sequence[RunFacts], sides: Sequence[Row], source: str) -> Table:
    keys = sorted({key for side in sides for key in side})
    rows = [
        {"key": key, **{run.name: side.get(key) for run, side in zip(runs, sides, strict=True)}}
        for key in keys
        if len({json.dumps(side.get(key), default=str) for side in sides}) > 1
    ]
    return Table(rows, title, () if rows else ("they do not differ",), source=source)


def _checks(base: RunFacts, other: RunFacts, allowed: Tolerance) -> list[Check]:
    old = base.summary
    new = other.summary
    slower = f"not more than {allowed.tokens_per_second:.0%} lower than in {base.name}"
    larger = f"not more than {allowed.memory:.0%} higher than in {base.name}"
    skipped = f"{new.skipped}, {old.skipped} in {base.name}"
    checks = [
        _check(
            "throughput (tokens/s)",
            old.tokens_per_second,
            new.tokens_per_second,
            slower,
            allowed.tokens_per_second,
            -1,
        ),
        _loss_check(base, other, allowed.last_loss),
        _check("memory (B)", old.memory_bytes, new.memory_bytes, larger, allowed.memory),
        judge("skipped steps", new.skipped <= old.skipped, skipped, "not more than before", ""),
    ]
    return [replace(check, name=f"{other.name}: {check.name}") for check in checks]


def _loss_check(base: RunFacts, other: RunFacts, allowed: float) -> Check:
    """Where one run is longer, its last loss says nothing about the other's: both are read where both have been."""
    tokens = min(base.summary.consumed_tokens, other.summary.consumed_tokens)
    before = loss_at(base.history, tokens)
    now = loss_at(other.history, tokens)
    name = "loss at equal tokens (nat/token)"
    rule = f"not more than {allowed:.0%} higher than in {base.name}; median of {LOSSES} up to {tokens:,} tokens"
    if before is None:
        return Check(name, "unknown", f"{base.name} has no loss", rule)
    if now is None:
        return Check(name, "fail", f"no loss that is a number, {before:.4g} before", rule)
    return _check(name, before, now, rule, allowed)


def loss_at(history: History, tokens: int) -> float | None:
    """Median of the last losses up to a number of tokens; None where there is none, or the last ones are no numbers."""
    steps = [step for step in history.steps if step.consumed_tokens <= tokens][-LOSSES:]
    losses = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    return statistics.median(losses) if losses else None


def _check(
    name: str, before: float | None, now: float | None, rule: str, allowed: float, sign: int = 1
) -> Check:
    """Whether a number has not changed for the worse by more than a share; `sign` is -1 where more is better."""
    if not before or now is None:
        return Check(name, "unknown", "not known for both", rule)
    change = now / before - 1
    value = f"{now:.4g}, {before:.4g} before ({show_change(now / before)})"
    return judge(name, sign * change <= allowed, value, rule, "")
