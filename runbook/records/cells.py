"""Which cell of the master notebook an executed source is, so that a record speaks of cells by their stable ids.

read_master(notebook) -> tuple[MasterCell, ...]      CellStates(master).mark(source, state, cell_id="") -> str
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.errors import RecordError
from runbook.records.twin import Cell


@dataclass(frozen=True)
class MasterCell:
    """A code cell of the master: its id and its source."""

    id: str
    source: str
    is_parameters: bool = False


def read_master(notebook: Path) -> tuple[MasterCell, ...]:
    """Code cells of a notebook in order; empty where the notebook does not exist (a phase called without one)."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{notebook} is not a notebook ({error}); restore it from the repository.") from error
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    return tuple(
        MasterCell(cell.get("id", f"cell-{index}"), source, "parameters" in cell["metadata"].get("tags", []))
        for index, (cell, source) in enumerate(zip(code, sources, strict=True))
        if source.strip()
    )


class CellStates:
    """State of each code cell of the master; cells that are not in it (injected parameters) are not counted."""

    def __init__(self, master: tuple[MasterCell, ...]) -> None:
        self._master = master
        self._states = {cell.id: "pending" for cell in master}

    def mark(self, source: str, state: str, cell_id: str = "") -> str:
        """Note how a cell ended; its id, or an empty string where the master has no such cell.

        JupyterLab says the id of the cell it runs; papermill and nbconvert do not, there the source decides.
        """
        found = cell_id if cell_id in self._states else self._same_source(source)
        if found:
            self._states[found] = state
        return found

    def mark_earlier(self, history: Sequence[str]) -> None:
        """Note the cells that ran before anyone listened: those of a kernel's history above the one running now.

        The last source of the history is the running one. Cells below it may be in the history from an earlier round.
        """
        current = next((index for index, cell in enumerate(self._master) if history and _same(cell, history[-1])), 0)
        for cell in self._master[:current]:
            # A person changes the parameters cell before running it, so its source is not the master's.
            if cell.is_parameters or any(_same(cell, source) for source in history):
                self._states[cell.id] = "completed"

    def as_cells(self) -> tuple[Cell, ...]:
        """All cells with their states, in the master's order."""
        return tuple(Cell(name, state) for name, state in self._states.items())

    def _same_source(self, source: str) -> str:
        same = [cell.id for cell in self._master if _same(cell, source)]
        return next((name for name in same if self._states[name] == "pending"), same[-1] if same else "")


def _same(cell: MasterCell, source: str) -> bool:
    return cell.source.strip() == source.strip()
