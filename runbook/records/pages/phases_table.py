"""Makes the rows in the phases table on the front page.

Each value in a row is shown in a column in `templates/front_page.html.j2` and
`templates/mail.html.j2`.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from runbook.core.checks import Check
from runbook.records.messages import RecordMessage
from runbook.records.pages.notebook_page import took_text
from runbook.records.pages.page_parts import links_for, result_rows
from runbook.records.run_state import KEY_NUMBERS, OUTDATED, PhaseState, evidence_links

LINK_WORDS = {"html": "report", "ipynb": "notebook", "json": "JSON"}

SHOWN_RESULTS = 6
"""Maximum number of results per phase in the table. The report on the phase has all its results."""


def phase_row(run_folder: Path, phase: PhaseState) -> SimpleNamespace:
    """Return what the table columns and the text about a failure show for a phase."""
    record = phase.record
    reports = [(LINK_WORDS[name.rpartition(".")[2]], name) for name in phase.files]
    reason = phase.problem or (record.reason if record else "")
    if phase.state == OUTDATED:
        reason = RecordMessage.OUTDATED.fill(phase=phase.phase)
    results = [row for row in (result_rows(record) if record else []) if row.is_number]
    # Results that the list of runs also shows come first.
    results.sort(key=lambda row: row.key not in KEY_NUMBERS)
    return SimpleNamespace(
        phase=phase.phase,
        state=phase.state,
        verdict=record.verdict if record else "",
        reason="" if phase.state == "running" else reason,
        helped=links_for(reason, "../"),
        took=took_text(record) if record else "",
        checks=_checks_text(record.checks) if record else "",
        results=results[:SHOWN_RESULTS],
        links=[*reports, *evidence_links(run_folder, phase.phase)],
        earlier=phase.earlier,
    )


def _checks_text(checks: Sequence[Check]) -> str:
    num_passed = sum(check.verdict == "pass" for check in checks)
    return f"{num_passed} of {len(checks)} passed" if checks else ""
