"""Notebook files: nbformat, which has no types, behind a few functions that have.

read(path) -> notebook      text_of(notebook) -> str      markdown_cell(text, tag)      error_output(name, value, trace)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runbook.errors import RecordError
from runbook.params.secrets import mask


def read(path: Path) -> Any:
    """The notebook in a file; `RecordError` where it is missing or no notebook."""
    nbformat = _nbformat()
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist.") from None
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        raise RecordError(f"{path} cannot be read as a notebook: {str(error).partition(chr(10))[0]}") from error


def text_of(notebook: Any) -> str:
    """The text of a notebook's file; what looks like a real token, typed or printed, is cut to its first letters."""
    return mask(str(_nbformat().writes(notebook)))


def markdown_cell(text: str, tag: str) -> Any:
    """A new markdown cell."""
    return _nbformat().v4.new_markdown_cell(text, metadata={"tags": [tag]})


def error_output(name: str, value: str, trace: Sequence[str]) -> Any:
    """The output of a cell that raised."""
    return _nbformat().v4.new_output("error", ename=name, evalue=value, traceback=list(trace))


def _nbformat() -> Any:
    import nbformat  # 0.1 s: only where a notebook is really handled

    return nbformat
