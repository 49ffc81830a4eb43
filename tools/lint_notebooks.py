"""Check master notebooks against our rules: python tools/lint_notebooks.py [NOTEBOOK...].

The rules: one parameters cell that matches the schema, no program in a cell (`!`, `%%bash`, `def`),
no absolute path, no output, a unique id for each cell, prose before every code cell. Violations are
printed. The exit code is 1 if there are any.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from runbook.params import PARAMETERS

FOLDER = Path(__file__).parents[1] / "notebooks"
FORBIDDEN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Try)
PLACE = re.compile(r"(?<![\w./])/(?:root|home|work|tmp|Users|scratch|mnt|opt|data)/|\b[A-Z]:\\")
ID = re.compile(r"[a-z][a-z0-9-]{2,40}")
METADATA = {"kernelspec", "language_info"}

Cell = dict[str, Any]


class Rule(StrEnum):
    """The rules for notebooks, each with the message about a cell that breaks it."""

    CELL_ID = "the cell id is missing, used twice, or no lower-case word with dashes"
    METADATA = "metadata {value}: strip it (nbstripout, see .pre-commit-config.yaml)"
    NO_PROSE = "no prose before it"
    PLACE = "contains a path of one machine"
    OUTPUT = "holds output: strip it"
    MAGIC = (
        "starts a program by a magic: a failing one looks like success to papermill; call the "
        "package"
    )
    SYNTAX = "is no Python: {value}"
    PROGRAM = "contains a program ({value}): move it to the package"
    PARAMETERS_CELLS = "{value} cells have the tag parameters; papermill needs exactly one"
    PARAMETER = "{value} does not have the form name: type = value"
    SCHEMA = "{value} differ from the schema"


@dataclass(frozen=True)
class Fault:
    """A rule that a cell breaks."""

    cell: str
    """Cell id. Empty if the problem concerns the whole notebook."""
    rule: Rule
    value: str = ""
    """The value that the message shows."""

    def __str__(self) -> str:
        cell = f"{self.cell}: " if self.cell else ""
        return cell + self.rule.format(value=self.value)


def faults(notebook: dict[str, Any]) -> Iterator[Fault]:
    """Yield all violations in a notebook."""
    cells: list[Cell] = notebook["cells"]
    ids = [cell.get("id", "") for cell in cells]
    for name in sorted({one for one in ids if ids.count(one) > 1 or not ID.fullmatch(one)}):
        yield Fault(name or "?", Rule.CELL_ID)
    if surplus := set(notebook["metadata"]) - METADATA:
        yield Fault("", Rule.METADATA, ", ".join(sorted(surplus)))
    yield from parameters_faults(
        [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    )
    for before, cell in pairwise(cells):
        if cell["cell_type"] == "code" and before["cell_type"] != "markdown":
            yield Fault(cell["id"], Rule.NO_PROSE)
    for cell in cells:
        yield from cell_faults(cell)


def cell_faults(cell: Cell) -> Iterator[Fault]:
    """Yield the violations in one cell."""
    name = cell.get("id", "?")
    source = "".join(cell["source"])
    if PLACE.search(source):
        yield Fault(name, Rule.PLACE)
    if surplus := set(cell["metadata"]) - {"tags"}:
        yield Fault(name, Rule.METADATA, ", ".join(sorted(surplus)))
    if cell["cell_type"] != "code":
        return
    if cell["outputs"] or cell["execution_count"] is not None:
        yield Fault(name, Rule.OUTPUT)
    if re.search(r"^\s*[!%]", source, re.MULTILINE):
        yield Fault(name, Rule.MAGIC)
        return
    try:
        body = ast.parse(source)
    except SyntaxError as error:
        yield Fault(name, Rule.SYNTAX, error.msg)
        return
    for node in ast.walk(body):
        if isinstance(node, FORBIDDEN):
            yield Fault(name, Rule.PROGRAM, type(node).__name__)


def parameters_faults(tagged: Sequence[Cell]) -> Iterator[Fault]:
    """Yield the differences between the parameters cell and the schema."""
    if len(tagged) != 1:
        yield Fault("", Rule.PARAMETERS_CELLS, str(len(tagged)))
        return
    (cell,) = tagged
    values = {}
    for statement in ast.parse("".join(cell["source"])).body:
        if not isinstance(statement, ast.AnnAssign) or statement.value is None:
            yield Fault(cell["id"], Rule.PARAMETER, ast.unparse(statement))
            continue
        values[ast.unparse(statement.target)] = ast.literal_eval(statement.value)
    if list(values.items()) != list(PARAMETERS.items()):
        yield Fault(cell["id"], Rule.SCHEMA, str(values))


def main(words: Sequence[str]) -> int:
    """Lint these notebooks, or all master notebooks."""
    wrong = 0
    for path in [Path(word) for word in words] or sorted(FOLDER.glob("*.ipynb")):
        for fault in faults(json.loads(path.read_text(encoding="utf-8"))):
            sys.stdout.write(f"{path.name}: {fault}\n")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
