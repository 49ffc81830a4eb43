"""The plan in ten lines: what one decides by, each figure beside its second one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.plan.choices import FULL, SMOKE
from runbook.plan.data_text import decimal_bytes
from runbook.plan.table import UNKNOWN, Table
from runbook.units import show_bytes, show_count, show_duration


def summary_table(plan: Mapping[str, Any]) -> Table:
    """Size, fit, time, money, disk and what was warned of."""
    spec, memory, time = plan["phases"][FULL], plan["memory"][FULL], plan["time"][FULL]
    label = plan["labels"][-1]
    found = [
        ("model", f"{label['parameters']:,} parameters", f'called "{label["label"]}"'),
        ("devices", f"{spec['parallel']['world_size']:,}", _cut(spec["parallel"])),
        (f"memory of a {memory['limit_of']}", *_memory(memory)),
        ("tokens", show_count(spec["duration"]["tokens"]), f"{spec['duration']['iterations']:,} steps"),
        ("smoke test", _duration(plan["time"][SMOKE]["seconds"]), "before the training, to see that all works"),
        ("training", _duration(time["seconds"]), f"{_duration(time['seconds_per_iteration'])} a step, {time['basis']}"),
        ("device hours", _number(time["device_hours"]), f"cost: {_number(time['cost'])}"),
        ("jobs in a row", _jobs(plan["endurance"]), _walltime(plan["endurance"])),
        ("disk for checkpoints", show_bytes(plan["checkpoint"][FULL]["disk_bytes"]), _interval(spec)),
        ("disk for text", *_text(plan["data_work"])),
        ("rules", *_rules(plan["checks"])),
    ]
    return Table("In short", tuple({"what": what, "plan": value, "beside it": beside} for what, value, beside in found))


def _cut(parallel: Mapping[str, Any]) -> str:
    return (
        f"{parallel['tensor']} tensor x {parallel['pipeline']} pipeline x {parallel['context']} context x "
        f"{parallel['data']} copies"
    )


def _memory(memory: Mapping[str, Any]) -> tuple[str, str]:
    limit = memory["limit_bytes"]
    there = f"of {show_bytes(limit)}" if limit else f"how much there is: {UNKNOWN}"
    return show_bytes(memory["least_bytes"]), there


def _jobs(endurance: Mapping[str, Any]) -> str:
    return UNKNOWN if endurance["jobs"] is None else f"{endurance['jobs']:,}"


def _walltime(endurance: Mapping[str, Any]) -> str:
    limit = endurance["walltime_seconds"]
    return f"of at most {show_duration(limit)}" if limit else "no time limit is known"


def _interval(spec: Mapping[str, Any]) -> str:
    interval = spec["checkpoint"]["interval"]
    return f"saved every {interval:,} steps" if interval else "saved only at the end"


def _text(ways: list[dict[str, Any]]) -> tuple[str, str]:
    if not ways:
        return "none", "no text is tokenized in this run"
    ours, theirs = ways
    if ours["disk_bytes"] is None:
        return UNKNOWN, "the size of the text is not known before it is read"
    return decimal_bytes(ours["disk_bytes"]), f"the documents' three steps: {decimal_bytes(theirs['disk_bytes'])}"


def _rules(checks: list[dict[str, Any]]) -> tuple[str, str]:
    counts = {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in ("pass", "warn", "unknown")}
    named = "; ".join(check["name"] for check in checks if check["verdict"] == "warn")
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return words, f"warned of: {named}" if named else "nothing is warned of"


def _duration(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else show_duration(seconds)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.4g}"
