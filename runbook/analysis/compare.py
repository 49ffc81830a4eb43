"""Two or more runs side by side: what was asked differently, what came out, and whether it got worse."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runbook.analysis.history import History, read_events, read_metrics, read_validation
from runbook.analysis.metrics import Goodput, Summary, goodput, summarize
from runbook.analysis.table import Table
from runbook.errors import RecordError
from runbook.plan.checks import Check

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
    time: Goodput


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
    checks: tuple[Check, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether nothing got worse than the tolerance allows."""
        return all(check.verdict != "fail" for check in self.checks)


def read_run(folder: Path, phase: str = "04-training") -> RunFacts:
    """Everything a comparison needs of a run's folder; `RecordError` where the phase was not run."""
    smoke = folder / "smoke" if phase.startswith("03") else folder
    plan = _json(folder / "plan.json")
    try:
        length = int(plan["phases"][phase]["model"]["sequence_length"])
    except (KeyError, TypeError):
        raise RecordError(f"{folder}/plan.json has no phase {phase}: run `runbook run` on it first.") from None
    history = read_metrics(smoke / "metrics.jsonl")
    validation = read_validation(smoke / "validation.jsonl")
    record = folder / "records" / f"{phase}.json"
    twin = _json(record) if record.exists() else {}
    about = {key: plan[key] for key in ("site",) if plan.get(key)} | _about(plan["phases"][phase])
    versions = about | twin.get("versions", {}) | {"commit": twin.get("commit") or "not known"}
    asked = folder / "run.yaml"
    return RunFacts(
        name=folder.name,
        parameters=_leaves(yaml.safe_load(asked.read_text()) if asked.exists() else {}),
        environment={str(key): str(value) for key, value in versions.items()},
        summary=summarize(history, sequence_length=length, validation=validation),
        history=history,
        time=goodput(history, validation, read_events(folder / "events.jsonl", phase)),
    )


def _about(spec: Mapping[str, Any]) -> dict[str, str]:
    """What a phase ran on, as plan.json has it."""
    return {key: str(spec[key]) for key in ("device", "engine") if key in spec}


def compare(runs: Sequence[RunFacts], tolerance: Tolerance | None = None) -> Comparison:
    """The first run is what the others are held against; checks are made for each of the others."""
    if len(runs) < 2:
        raise RecordError(f"A comparison needs at least two runs; {len(runs)} given.")
    allowed = tolerance or Tolerance()
    checks = tuple(check for other in runs[1:] for check in _checks(runs[0], other, allowed))
    return Comparison(
        _differences("Parameters that differ", runs, [run.parameters for run in runs], "run.yaml"),
        _metrics(runs),
        _differences("Environment that differs", runs, [run.environment for run in runs], "records/*.json"),
        checks,
    )


def _metrics(runs: Sequence[RunFacts]) -> Table:
    rows = []
    for what, attribute in METRICS.items():
        values = [getattr(run.summary, attribute) for run in runs]
        row: dict[str, Any] = {"what": what}
        row |= {run.name: value for run, value in zip(runs, values, strict=True)}
        row["last / first"] = values[-1] / values[0] if values[0] and values[-1] is not None else None
        rows.append(row)
    shares: dict[str, Any] = {"what": "goodput (share of wall time)"}
    shares |= {run.name: run.time.share for run in runs}
    first, last = runs[0].time.share, runs[-1].time.share
    rows.append({**shares, "last / first": last / first if first and last is not None else None})
    return Table("Results side by side", tuple(rows), "metrics.jsonl, validation.jsonl, events.jsonl")


def _differences(title: str, runs: Sequence[RunFacts], sides: Sequence[Mapping[str, Any]], source: str) -> Table:
    keys = sorted({key for side in sides for key in side})
    rows = [
        {"key": key, **{run.name: side.get(key) for run, side in zip(runs, sides, strict=True)}}
        for key in keys
        if len({json.dumps(side.get(key), default=str) for side in sides}) > 1
    ]
    return Table(title, tuple(rows), source, () if rows else ("they do not differ",))


def _checks(base: RunFacts, other: RunFacts, allowed: Tolerance) -> list[Check]:
    return [
        _check(
            base, other, "tokens_per_second", "throughput (tokens/s)", allowed.tokens_per_second, higher_is_better=True
        ),
        _loss_check(base, other, allowed.last_loss),
        _check(base, other, "memory_bytes", "memory (B)", allowed.memory),
        Check(
            f"{other.name}: skipped steps",
            "fail" if other.summary.skipped > base.summary.skipped else "pass",
            f"{other.summary.skipped}, {base.summary.skipped} in {base.name}",
            "not more than before",
        ),
    ]


def _loss_check(base: RunFacts, other: RunFacts, allowed: float) -> Check:
    """Where one run is longer, its last loss says nothing about the other's: both are read where both have been."""
    tokens = min(base.summary.consumed_tokens, other.summary.consumed_tokens)
    before, now = loss_at(base.history, tokens), loss_at(other.history, tokens)
    name = f"{other.name}: loss at equal tokens (nat/token)"
    rule = f"not more than {allowed:.0%} higher than in {base.name}; median of {LOSSES} up to {tokens:,} tokens"
    if before is None:
        return Check(name, "unknown", f"{base.name} has no loss", rule)
    if now is None:
        return Check(name, "fail", f"no loss that is a number, {before:.6g} before", rule)
    change = now / before - 1
    return Check(name, "fail" if change > allowed else "pass", f"{now:.6g}, {before:.6g} before ({change:+.1%})", rule)


def loss_at(history: History, tokens: int) -> float | None:
    """Median of the last losses up to a number of tokens; None where there is none, or the last ones are no numbers."""
    steps = [step for step in history.steps if step.consumed_tokens <= tokens][-LOSSES:]
    losses = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    return statistics.median(losses) if losses else None


def _check(
    base: RunFacts, other: RunFacts, attribute: str, what: str, allowed: float, *, higher_is_better: bool = False
) -> Check:
    before, now = getattr(base.summary, attribute), getattr(other.summary, attribute)
    rule = f"not more than {allowed:.0%} {'lower' if higher_is_better else 'higher'} than in {base.name}"
    if not before or now is None:
        return Check(f"{other.name}: {what}", "unknown", "not known for both", rule)
    change = now / before - 1
    worse = -change if higher_is_better else change
    verdict = "fail" if worse > allowed else "pass"
    return Check(f"{other.name}: {what}", verdict, f"{now:.6g}, {before:.6g} before ({change:+.1%})", rule)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist: is {path.parent} the folder of a run?") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds no JSON object.")
    return content


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys.

    >>> _leaves({"a": {"b": 1, "c": 2}, "d": 3})
    {'a.b': 1, 'a.c': 2, 'd': 3}
    """
    if not isinstance(tree, dict):
        return {prefix: tree} if prefix else {}
    return {
        key: leaf for name, value in tree.items() for key, leaf in _leaves(value, f"{prefix}.{name}".strip(".")).items()
    }
