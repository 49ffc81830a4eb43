"""Build notebooks/*.ipynb from masters/: python tools/build_notebooks.py [--check | --import].

masters/*.md are MyST Markdown as jupytext reads it, so that a change to a notebook is reviewed as
text. Cells that all notebooks share are in masters/shared.md. `{phase}` in them is the notebook
name. --check only compares. --import writes the masters from the notebooks, after an edit in
JupyterLab.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "masters"
NOTEBOOKS = ROOT / "notebooks"
SHARED = SOURCES / "shared.md"
HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---
"""
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
HINT = """Edit masters/*.md and build: python tools/build_notebooks.py.
After an edit in a notebook: python tools/build_notebooks.py --import"""
PHASE = "{phase}"
BLOCK = re.compile(r"^\+\+\+ (\{.*\})\n", re.MULTILINE)
"""Matches the beginning of a cell, with its id."""
INCLUDE = "```{{include}} shared.md#{id}\n```"
"""Placeholder for a cell from masters/shared.md."""
CODE = re.compile(r"```\{code-cell\}\n(?::tags: \[(.*)\]\n\n)?(.*)\n```", re.DOTALL)


@dataclass(frozen=True)
class MasterCell:
    """A cell of a master."""

    id: str
    text: str
    is_code: bool = False
    tags: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the cell as notebooks store it."""
        lines = self.text.splitlines(keepends=True)
        metadata = {"tags": list(self.tags)} if self.tags else {}
        if not self.is_code:
            return {"cell_type": "markdown", "id": self.id, "metadata": metadata, "source": lines}
        return {
            "cell_type": "code",
            "execution_count": None,
            "id": self.id,
            "metadata": metadata,
            "outputs": [],
            "source": lines,
        }

    def as_markdown(self) -> str:
        """Return the cell as it is written in masters/*.md."""
        head = f"+++ {json.dumps({'id': self.id})}\n\n"
        if not self.is_code:
            return f"{head}{self.text}\n"
        options = f":tags: [{', '.join(self.tags)}]\n\n" if self.tags else ""
        return f"{head}```{{code-cell}}\n{options}{self.text}\n```\n"


def read_cells(text: str) -> Iterator[MasterCell]:
    """Yield the cells of a Markdown master."""
    _, *parts = BLOCK.split(text)
    for about, content in zip(parts[::2], parts[1::2], strict=True):
        name = json.loads(about)["id"]
        body = content.strip("\n")
        code = CODE.fullmatch(body)
        if code is None:
            yield MasterCell(name, body)
        else:
            tags = tuple(code[1].split(", ")) if code[1] else ()
            yield MasterCell(name, code[2], is_code=True, tags=tags)


def shared_cells(phase: str) -> dict[str, MasterCell]:
    """Return the cells that all notebooks share, filled in for one notebook."""
    text = SHARED.read_text(encoding="utf-8").replace(PHASE, phase)
    return {cell.id: cell for cell in read_cells(text)}


def build(source: Path) -> dict[str, Any]:
    """Return the notebook that a Markdown master describes."""
    shared = shared_cells(source.stem)
    cells = []
    for cell in read_cells(source.read_text(encoding="utf-8")):
        is_shared = cell.text == INCLUDE.format(id=cell.id)
        cells.append((shared[cell.id] if is_shared else cell).as_json())
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def as_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as nbformat writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def import_notebook(notebook: Path) -> str:
    """Return a notebook as a Markdown master."""
    shared = shared_cells(notebook.stem)
    parts = [HEAD]
    for content in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        tags = tuple(content["metadata"].get("tags", ()))
        is_code = content["cell_type"] == "code"
        cell = MasterCell(content["id"], "".join(content["source"]), is_code, tags)
        if cell == shared.get(cell.id):
            parts.append(MasterCell(cell.id, INCLUDE.format(id=cell.id)).as_markdown())
        else:
            parts.append(cell.as_markdown())
    return "\n".join(parts)


def sources() -> list[Path]:
    """Return the Markdown masters, one per notebook."""
    return sorted(path for path in SOURCES.glob("*.md") if path != SHARED)


def differences() -> list[str]:
    """Return the lines that differ between notebooks and their masters."""
    lines = list[str]()
    for source in sources():
        notebook = NOTEBOOKS / f"{source.stem}.ipynb"
        there = as_text(json.loads(notebook.read_text(encoding="utf-8"))).splitlines()
        built = as_text(build(source)).splitlines()
        names = (f"notebooks/{notebook.name}", f"built from masters/{source.name}")
        lines += difflib.unified_diff(there, built, *names, lineterm="", n=1)
    return lines


def main(options: list[str]) -> int:
    """Build, compare or import, and return the exit code."""
    if options == ["--check"]:
        lines = differences()
        if lines:
            sys.stdout.write("\n".join([*lines, HINT]) + "\n")
        return 1 if lines else 0
    if options == ["--import"]:
        for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
            text = import_notebook(notebook)
            (SOURCES / f"{notebook.stem}.md").write_text(text, encoding="utf-8")
        return 0
    if options:
        sys.stdout.write(__doc__ or "")
        return 2
    for source in sources():
        notebook = NOTEBOOKS / f"{source.stem}.ipynb"
        if json.loads(notebook.read_text(encoding="utf-8")) != build(source):
            notebook.write_text(as_text(build(source)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
