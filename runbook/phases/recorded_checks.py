"""Shows and records checks in a phase, and stops the phase if one failed."""

from collections.abc import Sequence

from runbook.core.errors import RecordError
from runbook.display import CheckTable, show_checks
from runbook.phases.messages import PhaseMessage
from runbook.planning import Check
from runbook.records.session import Session


def record_checks(session: Session, checks: Sequence[Check]) -> CheckTable:
    """Show checks, add them to the record, and return them as a table. Stop if one failed."""
    for check in checks:
        session.check(check)
    show_checks(checks)
    failures = []
    for check in checks:
        if check.verdict == "fail":
            failures.append(describe_failure(check))

    if failures:
        raise RecordError(
            PhaseMessage.CHECKS_FAILED,
            number_of_failures=len(failures),
            number_of_checks=len(checks),
            failures="; ".join(failures),
        )

    return CheckTable(checks)


def describe_failure(check: Check) -> str:
    """Return a failed check with its rule and remedy.

    `runbook run` prints only this text, not the checks table above it.

    >>> describe_failure(Check("disk", "fail", "1 GiB free", "2 GiB are needed", "Delete files."))
    'disk: 1 GiB free (rule: 2 GiB are needed; what to do: Delete files)'
    """
    remedy = ""
    if check.remedy:
        remedy = f"; what to do: {check.remedy.removesuffix('.')}"
    return f"{check.name}: {check.value} (rule: {check.rule}{remedy})"
