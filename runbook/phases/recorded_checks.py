"""Shows and records a phase's checks, and stops the phase if one failed."""

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
            failures.append(f"{check.name}: {check.value} (rule: {check.rule})")

    if failures:
        raise RecordError(
            PhaseMessage.CHECKS_FAILED,
            number_of_failures=len(failures),
            number_of_checks=len(checks),
            failures="; ".join(failures),
        )

    return CheckTable(checks)
