"""Compares two or more runs: parameters, results and environment, with checks for regressions."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from runbook.core import quantities
from runbook.core.checks import Check, counted, judge
from runbook.core.errors import RecordError
from runbook.core.table import Row, Table
from runbook.core.units import show_change, show_quantity
from runbook.params.yaml12 import dotted
from runbook.plan_file.phase_names import FULL
from runbook.planning.make_plan import Plan, parse_plan
from runbook.results.history import History, read_events, read_metrics, read_scores, read_validation
from runbook.results.messages import ResultMessage
from runbook.results.metrics import Summary, summarize
from runbook.results.wall_time import WallTime, account_wall_time

LOSSES = 5
"""The median over this many losses is compared, since a single loss depends too much on the batch.
"""
METRICS = {
    quantities.STEP_TIME: "seconds_per_iteration",
    quantities.THROUGHPUT: "tokens_per_second",
    "throughput (tokens/s/device)": "tokens_per_second_per_device",
    quantities.SPEED: "tflops_per_device",
    "waiting for data (share)": "data_wait_share",
    quantities.FIRST_LOSS: "first_loss",
    "last loss (nat/token)": "last_loss",
    "validation loss (nat/token)": "validation_loss",
    "largest gradient norm": "largest_grad_norm",
    "skipped steps": "skipped",
    "iterations": "iterations",
    "devices": "world_size",
    quantities.MEMORY: "memory_bytes",
}


@dataclass(frozen=True)
class RunFacts:
    """Facts about a phase, read from files in the run folder."""

    name: str
    parameters: Mapping[str, Any]
    """Dotted keys of run.yaml."""
    environment: Mapping[str, str]
    summary: Summary
    history: History
    account: WallTime | None
    planned_iterations: int
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores that 06-evaluation measured for the trained weights."""
    scored_iterations: frozenset[int] = frozenset()
    """Iterations of the weights that were scored, as far as they were recorded."""


@dataclass(frozen=True)
class Tolerance:
    """How much worse than the first run another run may be, as relative differences."""

    tokens_per_second: float = 0.05
    last_loss: float = 0.01
    memory: float = 0.10


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: tables to show, and checks."""

    parameters: Table
    metrics: Table
    environment: Table
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Return whether every result is within the tolerance."""
        return all(check.verdict != "fail" for check in self.checks)


def read_run(folder: Path, phase: str = FULL) -> RunFacts:
    """Return everything a comparison needs from a run folder.

    Raise `RecordError` if the phase was not executed.
    """
    is_smoke = phase.startswith("03")
    # Only the training phase has scores, because its weights are evaluated.
    scores = [] if is_smoke else read_scores(folder)
    metrics_folder = folder / "smoke" if is_smoke else folder
    plan = _read_plan(folder, phase)
    spec = plan.phases[phase]
    history = read_metrics(metrics_folder / "metrics.jsonl", spec.log.alarms)
    validation = read_validation(metrics_folder / "validation.jsonl")
    events = read_events(folder / "events.jsonl", phase)
    record = folder / "records" / f"{phase}.json"
    environment = {"site": plan.site, "device": spec.device, "engine": str(spec.engine)}
    environment |= _recorded_environment(record)
    return RunFacts(
        name=folder.name,
        parameters=_read_parameters(folder / "run.yaml"),
        environment=environment,
        summary=summarize(
            history, sequence_length=spec.model.shape.sequence_length, validation=validation
        ),
        history=history,
        account=account_wall_time(history, validation, events),
        planned_iterations=spec.duration.iterations,
        scores={f"{row['what']}: {row['measure']}": row["after"] for row in scores},
        scored_iterations=frozenset(row["iteration"] for row in scores if row["iteration"]),
    )


def _read_plan(folder: Path, phase: str) -> Plan:
    path = folder / "plan.json"
    if not path.exists():
        raise RecordError(ResultMessage.NOT_A_RUN_FOLDER, path=path, folder=folder)
    plan = parse_plan(path.read_text(encoding="utf-8"), path)
    if phase not in plan.phases:
        raise RecordError(ResultMessage.RUN_WITHOUT_PHASE, path=path, phase=phase)
    return plan


def _recorded_environment(path: Path) -> dict[str, str]:
    """Return the versions and the commit recorded when a notebook was executed.

    If there is no record, return only a commit marked as unknown.
    """
    record = {}
    if path.exists():
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecordError(ResultMessage.RECORD_NOT_JSON, path=path, error=error) from error

    if not isinstance(record, dict):
        raise RecordError(ResultMessage.RECORD_NOT_AN_OBJECT, path=path)
    environment = record.get("versions", {}) | {"commit": record.get("commit") or "not known"}
    return {str(key): str(value) for key, value in environment.items()}


def _read_parameters(path: Path) -> Mapping[str, object]:
    """Return the values in a run.yaml by dotted key. The result is empty if there is no file."""
    if not path.exists():
        return {}
    return dotted(yaml.safe_load(path.read_text()) or {})


def compare_runs(runs: Sequence[RunFacts], tolerance: Tolerance | None = None) -> Comparison:
    """Compare each further run with the first, and return the tables and checks."""
    if len(runs) < 2:
        raise RecordError(ResultMessage.TOO_FEW_RUNS, number_of_runs=len(runs))
    base = runs[0]
    checks = [_finished_check(run) for run in runs if not is_finished(run)]
    for run in runs:
        last = run.summary.last_iteration
        if run.scored_iterations - {last}:
            checks.append(_scores_check(run))

    for run in runs[1:]:
        checks.extend(_checks(base, run, tolerance or Tolerance()))
    parameters = [run.parameters for run in runs]
    environments = [run.environment for run in runs]
    return Comparison(
        parameters=_differences("Parameters that differ", runs, parameters, "run.yaml"),
        metrics=_metrics(runs),
        environment=_differences("Environment that differs", runs, environments, "records/*.json"),
        checks=tuple(checks),
    )


def is_finished(run: RunFacts) -> bool:
    """Return whether a run has reached its planned last iteration."""
    return run.summary.last_iteration >= run.planned_iterations


def _finished_check(run: RunFacts) -> Check:
    """Check that a run is finished; its results otherwise change, which is a warning."""
    return judge(
        f"{run.name}: finished",
        is_finished(run),
        f"{run.summary.last_iteration:,} of {counted(run.planned_iterations, 'iteration')}",
        "the training is finished, so its results are final",
        otherwise="warn",
    )


def _scores_check(run: RunFacts) -> Check:
    """Warn that the scores belong to weights other than the last."""
    scored = ", ".join(map(str, sorted(run.scored_iterations)))
    return Check(
        f"{run.name}: scores",
        "warn",
        f"weights of iteration {scored}; the training is at {run.summary.last_iteration:,}",
        "the scores belong to the last weights; 06-evaluation measures them",
    )


def _metrics(runs: Sequence[RunFacts]) -> Table:
    """Return a table with a row for each result and a column for each run."""
    rows = []
    for name, attribute in METRICS.items():
        values = [getattr(run.summary, attribute) for run in runs]
        rows.append(_metric_row(name, runs, values))

    goodputs = [run.account.goodput if run.account else None for run in runs]
    rows.append(_metric_row("goodput (share of wall time)", runs, goodputs))
    for name in _score_names(runs):
        rows.append(_metric_row(name, runs, [run.scores.get(name) for run in runs]))
    source = "metrics.jsonl, validation.jsonl, events.jsonl"
    return Table(rows, "Results side by side", source=source)


def _metric_row(name: str, runs: Sequence[RunFacts], values: Sequence[float | None]) -> Row:
    first = values[0]
    last = values[-1]
    by_run = {run.name: value for run, value in zip(runs, values, strict=True)}
    ratio = last / first if first and last is not None else None
    return {"what": name, **by_run, quantities.LAST_TO_FIRST: ratio}


def _score_names(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names of all scores without duplicates, in the same order as the runs."""
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(run.scores))
    return list(names)


def _differences(
    title: str,
    runs: Sequence[RunFacts],
    sides: Sequence[Row],
    source: str,
) -> Table:
    """Return a table of the keys with different values in different runs."""
    rows = differing_rows([run.name for run in runs], sides)
    notes = () if rows else (ResultMessage.NO_DIFFERENCE.fill(),)
    return Table(rows, title, notes, source=source)


def differing_rows(names: Sequence[str], sides: Sequence[Row]) -> list[Row]:
    """Return a row for each key with different values.

    A row contains the key, and the value from each side under the name of that side.
    """
    keys = set()
    for side in sides:
        for key in side:
            keys.add(key)

    rows: list[Row] = []
    for key in sorted(keys):
        distinct_values = {json.dumps(side.get(key), default=str) for side in sides}
        if len(distinct_values) > 1:
            by_name = {name: side.get(key) for name, side in zip(names, sides, strict=True)}
            rows.append({"key": key, **by_name})

    return rows


def _checks(base: RunFacts, run: RunFacts, allowed: Tolerance) -> list[Check]:
    old = base.summary
    new = run.summary
    slower = ResultMessage.NOT_LOWER.fill(allowed=allowed.tokens_per_second, base=base.name)
    larger = ResultMessage.NOT_HIGHER.fill(allowed=allowed.memory, base=base.name)
    skipped = f"{new.skipped}, {old.skipped} in {base.name}"
    checks = [
        _check(
            quantities.THROUGHPUT,
            old.tokens_per_second,
            new.tokens_per_second,
            slower,
            allowed.tokens_per_second,
            -1,
        ),
        *_text_checks(base, run),
        _loss_check(base, run, allowed.last_loss),
        _check(
            quantities.MEMORY,
            old.memory_bytes,
            new.memory_bytes,
            larger,
            allowed.memory,
        ),
        judge(
            "skipped steps",
            new.skipped <= old.skipped,
            skipped,
            "not more than before",
            "",
        ),
    ]
    return [replace(check, name=f"{run.name}: {check.name}") for check in checks]


TEXT_KEYS = ("data.dataset", "data.folder", "data.blend", "data.tokenizer")
"""Keys that decide which tokens a run trains on and is evaluated on."""


def _text_checks(base: RunFacts, run: RunFacts) -> list[Check]:
    """Warn if the runs train on different text or tokens, so their losses mean different things."""
    changes = []
    for key in TEXT_KEYS:
        base_value = base.parameters.get(key)
        value = run.parameters.get(key)
        if value != base_value:
            changes.append(
                ResultMessage.OTHER_VALUE.fill(
                    key=key, value=value or "-", base=base.name, base_value=base_value or "-"
                )
            )

    if not changes:
        return []
    rule = ResultMessage.SAME_TEXT_RULE.fill(base=base.name)
    return [Check("same text", "warn", "; ".join(changes), rule)]


def _loss_check(base: RunFacts, run: RunFacts, allowed: float) -> Check:
    """Compare the losses after the largest number of tokens both runs reached.

    If one run is longer than the other, the last losses are not comparable.
    """
    tokens = min(base.summary.consumed_tokens, run.summary.consumed_tokens)
    base_loss = loss_at(base.history, tokens)
    run_loss = loss_at(run.history, tokens)
    name = quantities.LOSS_AT_EQUAL_TOKENS
    rule = (
        f"not more than {allowed:.0%} higher than in {base.name}; "
        f"median of {LOSSES} up to {tokens:,} tokens"
    )
    if base_loss is None:
        return Check(name, "unknown", f"{base.name} has no loss", rule)
    if run_loss is None:
        return Check(name, "fail", f"no finite loss, {base_loss:.4g} before", rule)
    return _check(
        name,
        base_loss,
        run_loss,
        rule,
        allowed,
    )


def loss_at(history: History, tokens: int) -> float | None:
    """Return the median over the last losses up to a number of tokens.

    Return None if there is no loss, or if none of the last losses is finite.
    """
    steps = [step for step in history.steps if step.consumed_tokens <= tokens][-LOSSES:]
    losses = []
    for step in steps:
        if step.loss is not None and math.isfinite(step.loss):
            losses.append(step.loss)

    return statistics.median(losses) if losses else None


def _check(
    name: str,
    base_value: float | None,
    run_value: float | None,
    rule: str,
    allowed: float,
    sign: int = 1,
) -> Check:
    """Check that a value is worse than in the first run by at most the share `allowed`.

    `sign` is -1 if larger values are better.
    """
    if not base_value or run_value is None:
        return Check(name, "unknown", "not known for both", rule)
    change = run_value / base_value - 1
    value = ResultMessage.CHANGED_FROM.fill(
        value=show_quantity(name, run_value),
        base=show_quantity(name, base_value),
        change=show_change(run_value / base_value),
    )
    return judge(
        name,
        sign * change <= allowed,
        value,
        rule,
        "",
    )
