"""The short table that the benchmark prints last.

It fits into the last 12,000 characters of the output.
"""

from __future__ import annotations

from typing import Any

MOST_CHARACTERS = 9_000
REHEARSAL = "REHEARSAL, no measurement"
"""First words in the table for a rehearsal."""


def lines_of(content: dict[str, Any]) -> list[str]:
    """Return the table of all rows."""
    environment = content["environment"]
    kind = REHEARSAL if content["rehearsal"] else "measured"
    lines = [
        f"{kind}: {environment.get('device', '?')}, torch {environment.get('torch', '?')}, "
        f"commit {content['commit'] or '?'}, {content['date']}",
        f"compiles {environment.get('compiles')}, triton {_works(environment, 'triton')}, "
        f"nccl {_works(environment, 'nccl')}, gcc {environment.get('gcc', '')[:40]}",
    ]
    for row in content["rows"]:
        lines.append(line_of(row)[:200])
    for job in content["jobs"]:
        if job["state"] != "done":
            lines.append(f"{job['stage']} {job['job']}: {job['state']}: {job['reason'][:160]}")
    text = "\n".join(lines)
    return text[:MOST_CHARACTERS].splitlines()


def line_of(row: dict[str, Any]) -> str:
    """Return one row in a line."""
    if "failed" in row:
        return f"{_name(row)}: failed: {row['failed'][:120]}"
    if "tokens_per_second" in row:
        return _throughput(row)
    if "kinds" in row:
        return _profile(row)
    if "check" in row:
        return _check(row)
    if "measured" in row:
        return f"{row['measured']:32} {_numbers(row)}"
    reason = row.get("refused") or row.get("not_run") or ""
    return f"{_name(row)}: {reason[:140]}"


def _name(row: dict[str, Any]) -> str:
    return str(row.get("measured") or row.get("check") or f"{row['stage']} {row['job']}")


def _throughput(row: dict[str, Any]) -> str:
    share = f"{row['mfu']:6.1%}" if row["mfu"] is not None else "     -"
    state = row.get("gpu_state", {})
    note = f"  smaller: {row['too_large'][-1][:60]}" if row.get("too_large") else ""
    return (
        f"{row['stage'] + ' ' + row['job']:34} {row['shape']:8} {row['micro_batch']:2}x{row['num_micro_batches']:<2} "
        f"{row['median_seconds']:8.4f} s {row['tokens_per_second']:9.0f} tok/s MFU {share} "
        f"{row['peak_bytes'] / 2**30:6.1f} GiB loss {row['losses'][-1]:.4f} "
        f"{state.get('clocks.sm', '?')} MHz {state.get('power.draw', '?')} W{note}"
    )


def _profile(row: dict[str, Any]) -> str:
    kinds = [f"{kind} {sums['seconds'] * 1e3:.0f}" for kind, sums in row["kinds"].items()]
    return (
        f"  profile of {row['job']}, ms of {row['step_seconds'] * 1e3:.0f}: {', '.join(kinds)}, "
        f"idle {row['idle_seconds'] * 1e3:.0f}; {row['host_waits']} waits"
    )


def _check(row: dict[str, Any]) -> str:
    parts = [
        f"{key} {row[key]}"
        for key in ("agrees", "resumes", "resumed_exactly", "finite")
        if key in row
    ]
    if "worst_relative" in row:
        parts.append(f"worst {float(row['worst_relative']):.1e}")
    if "not_run" in row:
        parts.append(row["not_run"])
    return f"{row.get('engine', '')} {row['check']}: {', '.join(parts)}"


def _numbers(row: dict[str, Any]) -> str:
    """Return the numbers in a row about ceilings or saves, rates first."""
    parts = []
    for key, value in row.items():
        if isinstance(value, dict) and "tflops" in value:
            parts.append(f"{key} {value['tflops']:.0f} TFLOP/s")
        elif key == "tflops":
            parts.append(f"{value:.0f} TFLOP/s")
        elif key == "gigabytes_per_second":
            parts.append(f"{value:.2f} GB/s")
        elif key == "saves":
            parts.append(", ".join(_save(save) for save in value))
        elif "seconds" in key and isinstance(value, float) and "tflops" not in row:
            parts.append(f"{key.replace('_seconds', '')} {value * 1e3:.3f} ms")
        elif key in ("correct", "relative_error", "speedup"):
            parts.append(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}")
    return "  ".join(parts)


def _save(save: dict[str, Any]) -> str:
    return f"stall {save['stall_seconds']:.2f} of {save['seconds']:.2f} s for {save['bytes'] / 1e9:.1f} GB"


def _works(environment: dict[str, Any], name: str) -> str:
    answer = environment.get(name, {})
    if answer.get("works"):
        return "works"
    return f"fails: {answer.get('reason', 'not looked at')[:120]}"
