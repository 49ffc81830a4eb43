"""Makes the rows for the front-page section that compares planned and actual values."""

import math
from collections.abc import Sequence

from runbook.core.table import Row
from runbook.core.units import in_words, show_change, unit_of
from runbook.records.pages.page_parts import is_number, show_value
from runbook.records.run_state import RunState


def without_repeated_remarks(rows: Sequence[Row]) -> list[Row]:
    """Drop remarks that repeat an earlier remark for the same phase, and return the rows."""
    earlier_remarks: set[tuple[str, str]] = set()
    shown_rows = []
    for row in rows:
        remark = (str(row["phase"]), str(row["remark"]))
        shown_rows.append({**row, "remark": ""} if remark in earlier_remarks else row)
        earlier_remarks.add(remark)

    return shown_rows


def planned_row(row: Row) -> Row:
    """Return a row with the planned and the actual value. Its bar has width 0 if they agree."""
    quantity = str(row["what"])
    ratio = row.get("ratio") or 0.0
    # The bar has a logarithmic scale from one eighth of the plan to 8 times the plan.
    octaves = max(-3.0, min(3.0, math.log2(ratio))) if ratio > 0 else 0.0
    percent_of_half = 50 * abs(octaves) / 3
    unit = unit_of(quantity)
    return {
        "phase": row["phase"],
        "ratio": ratio,
        "width": round(percent_of_half, 1) if abs(ratio - 1) > 0.005 else 0.0,
        "name": in_words(quantity).partition(" (")[0],
        "times": show_change(ratio),
        "remark": row.get("remark") or "",
        "planned": show_value(quantity, row["planned"], unit),
        "actual": show_value(quantity, row["actual"], unit),
    }


def numbers_in_plan_and_results(run: RunState) -> list[Row]:
    """Return a row for each number that a record has both in its plan and in its results."""
    rows: list[Row] = []
    for phase in run.phases:
        if phase.record is None:
            continue
        for key, actual in phase.record.results.items():
            planned = phase.record.plan.get(key)
            if not is_number(actual) or not is_number(planned) or not planned:
                continue
            row = {
                "phase": phase.phase,
                "what": key,
                "planned": planned,
                "actual": actual,
                "ratio": actual / planned,
            }
            rows.append(row)

    return rows
