"""Hold master notebooks to the rules of the house: python tools/lint_notebooks.py [NOTEBOOK...].

One parameters cell that equals the schema, no program in a cell (`!`, `%%bash`, `def`), no absolute path, no output, an
id of its own for each cell, prose before every code cell. What is wrong is printed; exit code 1 if anything is.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
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


def faults(notebook: dict[str, Any]) -> Iterator[str]:
    """Everything that is wrong with a notebook, one line each."""
    cells: list[Cell] = notebook["cells"]
    ids = [cell.get("id", "") for cell in cells]
    for name in sorted({one for one in ids if ids.count(one) > 1 or not ID.fullmatch(one)}):
        yield f"cell id {name!r} is missing, used twice, or no lower-case word with dashes"
    if surplus := set(notebook["metadata"]) - METADATA:
        yield f"metadata {', '.join(sorted(surplus))}: strip it (nbstripout, see .pre-commit-config.yaml)"
    yield from parameters_faults(
        [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    )
    for before, cell in pairwise(cells):
        if cell["cell_type"] == "code" and before["cell_type"] != "markdown":
            yield f"{cell['id']}: no prose before it"
    for cell in cells:
        yield from (f"{cell.get('id', '?')}: {fault}" for fault in cell_faults(cell))


def cell_faults(cell: Cell) -> Iterator[str]:
    """What is wrong with one cell."""
    source = "".join(cell["source"])
    if PLACE.search(source):
        yield "names a place of one machine"
    if surplus := set(cell["metadata"]) - {"tags"}:
        yield f"metadata {', '.join(sorted(surplus))}: strip it"
    if cell["cell_type"] != "code":
        return
    if cell["outputs"] or cell["execution_count"] is not None:
        yield "holds output: strip it"
    if re.search(r"^\s*[!%]", source, re.MULTILINE):
        yield "starts a program by a magic: a failing one looks like success to papermill; call the package"
        return
    try:
        body = ast.parse(source)
    except SyntaxError as error:
        yield f"is no Python: {error.msg}"
        return
    for node in ast.walk(body):
        if isinstance(node, FORBIDDEN):
            yield f"holds a program ({type(node).__name__}): it belongs into the package"


def parameters_faults(found: Sequence[Cell]) -> Iterator[str]:
    """The parameters cell against the schema."""
    if len(found) != 1:
        yield f"{len(found)} cells are tagged parameters; papermill needs exactly one"
        return
    values = {}
    for statement in ast.parse("".join(found[0]["source"])).body:
        if not isinstance(statement, ast.AnnAssign) or statement.value is None:
            yield f"parameters: {ast.unparse(statement)} is not name: type = value"
            continue
        values[ast.unparse(statement.target)] = ast.literal_eval(statement.value)
    if list(values.items()) != list(PARAMETERS.items()):
        yield f"parameters: {values} are not the schema's {PARAMETERS}"


def main(words: Sequence[str]) -> int:
    """Lint these notebooks, or all masters."""
    wrong = 0
    for path in [Path(word) for word in words] or sorted(FOLDER.glob("*.ipynb")):
        for fault in faults(json.loads(path.read_text(encoding="utf-8"))):
            sys.stdout.write(f"{path.name}: {fault}\n")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
