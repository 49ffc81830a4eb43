"""Reads executed notebooks, and removes access tokens from their text."""

from pathlib import Path
from typing import Any

from runbook.core.errors import RecordError
from runbook.params.secrets import mask_value
from runbook.records.messages import RecordMessage


def read_notebook(path: Path) -> Any:
    """Return the notebook contained in a file.

    Raise `RecordError` if the file is missing or is not a notebook.
    """
    # nbformat is imported here, because the import takes 0.1 s and only reading a notebook needs
    # it.
    import nbformat

    try:
        return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise RecordError(RecordMessage.NOTEBOOK_MISSING, path=path) from None
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        raise RecordError(
            RecordMessage.NOTEBOOK_NOT_READABLE, path=path, error=str(error).partition(chr(10))[0]
        ) from error


def notebook_text(notebook: Any) -> str:
    """Return the text to write into a notebook file.

    Anything that looks like a real access token is cut to its first four characters.
    """
    import nbformat

    return str(nbformat.writes(mask_value(notebook)))  # type: ignore[no-untyped-call]
