"""Summarizes a log for a terminal: format, range, alarms and failures."""

import statistics
from collections import Counter
from collections.abc import Iterator

from runbook.log_readers.record import ParsedLog
from runbook.results.failures.finder import LOST_PEERS, Failure
from runbook.results.failures.first_ended import LookNext
from runbook.results.failures.first_error import FirstError
from runbook.results.failures.rule import Level
from runbook.results.metrics import find_alarms
from runbook.tools.logs.messages import SummaryMessage


def summary(log: ParsedLog) -> str:
    """Describe a log in a few lines.

    The lines state format, range, losses, step time, alarms, notes and failures.
    """
    segments = f"{log.segments} segment{'s' * (log.segments != 1)}"
    lines = [
        SummaryMessage.RECORDS.fill(
            format=log.format,
            num_records=len(log.records),
            segments=segments,
            unread_lines=log.unread_lines,
        )
    ]
    if log.records:
        lines += _record_lines(log)
    if log.validation:
        count = len(log.validation)
        last = log.validation[-1]
        lines.append(f"  {count} evaluations, last {last.loss:.4g} ({log.source(last)})")

    if log.facts:
        facts = []
        for name, fact in vars(log.facts).items():
            if fact is not None:
                facts.append(f"{name} {fact}")

        lines.append("  " + SummaryMessage.MLPERF.fill(facts=", ".join(facts)))

    for alarm in find_alarms(log.records, log.evaluations_in_order):
        line = SummaryMessage.ALARM.fill(
            kind=alarm.kind, iteration=alarm.since, evidence=alarm.evidence
        )
        lines.append(f"  {line}")
    lines += [f"  note: {note}" for note in log.notes]
    for failure in log.failures:
        lines += failure_lines(failure, is_cause=failure == log.cause)
    if log.cause is not None and log.cause.name in LOST_PEERS:
        lines.append(f"  {_advice_on_other_ranks(log.look_next)}")
    if log.first_error is not None:
        lines += first_error_lines(log.first_error)
    lines += [f"  {_headline(effect, 'EFFECT')}" for effect in log.effects]
    return "\n".join(lines)


def _record_lines(log: ParsedLog) -> Iterator[str]:
    """Yield the lines about iterations in a log that has at least one."""
    yield f"  iterations {log.records[0].iteration} to {log.records[-1].iteration}"
    with_loss = [record for record in log.records if record.loss is not None]
    if with_loss:
        first = with_loss[0]
        last = with_loss[-1]
        first_loss = f"{first.loss:.4g} ({log.source(first)})"
        last_loss = f"{last.loss:.4g} ({log.source(last)})"
        yield f"  loss {first_loss} to {last_loss}"

    yield from _speed_lines(log)
    states: Counter[str] = Counter()
    for record in log.records:
        states.update(record.states)
    for state, count in states.most_common():
        yield "  " + SummaryMessage.STATE.fill(count=count, state=state)


def _speed_lines(log: ParsedLog) -> Iterator[str]:
    """Yield the lines about step time and TFLOP/s, if the log has these values."""
    step_seconds = []
    tflops = []
    convention: str | None = ""
    for record in log.records:
        # If all steps in a record were skipped, its step time is not meaningful.
        if record.seconds and "all_skipped" not in record.states:
            step_seconds.append(record.seconds)
        if record.tflops is not None:
            tflops.append(record.tflops)
            convention = record.tflops_convention

    if step_seconds:
        median = statistics.median(step_seconds)
        yield f"  step time {median:.4g} s (median of {len(step_seconds)}, including warm-up)"

    if tflops:
        median = statistics.median(tflops)
        yield f"  {median:.4g} TFLOP/s/device (median; convention {convention})"


_LABELS = {
    Level.CAUSE: "FAILURE",
    Level.SYMPTOM: "SYMPTOM",
    Level.CONSEQUENCE: "CONSEQUENCE",
}


def failure_lines(failure: Failure, *, is_cause: bool) -> Iterator[str]:
    """Yield readable lines about a failure: the kind, the log line that shows it, and the remedy."""
    label = "CAUSE" if is_cause else _LABELS[failure.level]
    if failure.overcome:
        label = "OVERCOME"
    yield f"  {_headline(failure, label)}"
    if is_cause or not failure.overcome:
        yield f"    {failure.remedy}"
    if is_cause:
        yield "    " + SummaryMessage.DECISION.fill(advice=failure.decision.advice)
    if failure.also:
        yield f"    Or {failure.also}: {failure.check}"


def _advice_on_other_ranks(look_next: LookNext | None) -> str:
    """Return a sentence that says whose output to read next."""
    if look_next is None:
        return SummaryMessage.LOOK_ANYWHERE.fill()
    rank = "" if look_next.rank is None else f"rank {look_next.rank}"
    who = " on ".join(filter(None, (rank, look_next.host)))
    return SummaryMessage.LOOK_NEXT.fill(who=who, line=look_next.line, evidence=look_next.evidence)


def _headline(failure: Failure, label: str) -> str:
    """Return the first line about a failure: the kind, how often it occurs, and where."""
    return SummaryMessage.FAILURE.fill(
        label=label,
        name=failure.name,
        count=failure.count,
        line=failure.line,
        place=_place(failure),
        evidence=failure.evidence,
    )


def _place(where: Failure | FirstError) -> str:
    """Return the rank and host of a failure as text, if the log line names them."""
    rank = "" if where.rank is None else f", rank {where.rank}"
    host = f" on {where.host}" if where.host else ""
    return f"{rank}{host}"


def first_error_lines(error: FirstError) -> Iterator[str]:
    """Yield the first error that no rule recognizes, and the lines after it."""
    line = SummaryMessage.FIRST_ERROR.fill(
        line=error.line, place=_place(error), evidence=error.evidence
    )
    yield f"  {line}"
    yield f"    {SummaryMessage.NO_REMEDY.fill()}"
    if error.followed_by:
        effects = ", ".join(error.followed_by)
        yield "    " + SummaryMessage.MAY_FOLLOW.fill(effects=effects)
