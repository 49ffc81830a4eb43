"""The run file: what was taken from a script, each value with the line it stood in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runbook.adopt.findings import Taken
from runbook.params.keys import all_keys
from runbook.params.writing import write_scalar

_LONGEST = 110


def run_file(
    name: str, script: str, taken: Mapping[str, Taken], required: Mapping[str, str], places: Mapping[int, str]
) -> str:
    """The text of a run file; `places` says how a line of the script is named."""
    lines = [f"run: {name}  # from {_remark(script)}; values name the lines they come from"]
    if required:
        lines.insert(0, "# Still to be given, here or by --set:")
        lines[1:1] = [f"#   {key}: {_remark(what)}" for key, what in required.items()]
    open_sections: Sequence[str] = ()
    for key in all_keys():
        if key == "run" or key not in taken:
            continue
        *parents, last = key.split(".")
        shared = next(
            (depth for depth, pair in enumerate(zip(open_sections, parents, strict=False)) if pair[0] != pair[1]),
            min(len(open_sections), len(parents)),
        )
        lines += [f"{'  ' * depth}{parents[depth]}:" for depth in range(shared, len(parents))]
        open_sections = parents
        one = taken[key]
        where = f"{places[one.line]}: " if one.line else ""
        text = f"{'  ' * len(parents)}{last}: {_value(last, one.value)}"
        lines.append(f"{text}  # {_remark(where + one.source)}")
    return "\n".join(_spaced(lines)) + "\n"


def _value(name: str, value: Any) -> str:
    if name in ("walltime", "exit_duration") and isinstance(value, int) and value:
        value = f"{value // 3600:02d}:{value % 3600 // 60:02d}:{value % 60:02d}"
    return write_scalar(value)


def _spaced(lines: Sequence[str]) -> list[str]:
    """An empty line before each section."""
    spaced: list[str] = []
    for line in lines:
        if spaced and not line.startswith((" ", "#")) and line.endswith(":"):
            spaced.append("")
        spaced.append(line)
    return spaced


def _remark(text: str) -> str:
    """Text for a comment: one line of plain letters, not too long."""
    letters = "".join(letter if letter.isprintable() else " " for letter in text)
    return letters if len(letters) <= _LONGEST else f"{letters[: _LONGEST - 3]}..."
