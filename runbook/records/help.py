"""runs/when-it-fails.html: the known failures and their remedies, beside the index of runs; needs no network.

write_help(runs_folder) -> Path      links_for(reason, to_runs) -> [(name, address)]
"""

from __future__ import annotations

from pathlib import Path

from runbook.analysis.help_text import TITLE, anchor, classes, named_in
from runbook.records.files import write_text
from runbook.records.pages import head, page

NAME = "when-it-fails.html"


def write_help(runs_folder: Path) -> Path:
    """Write the page anew where it is not the newest."""
    path = runs_folder / NAME
    rows = [(anchor(one.name), one.name, one.remedy, one.patterns) for one in classes()]
    text = page("help.html.j2", head=head(TITLE), title=TITLE, rows=rows)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
    return path


def links_for(reason: str, to_runs: str) -> list[tuple[str, str]]:
    """The failures that a reason names and where each is explained; the whole page where it names none.

    >>> links_for("CUDA out of memory", "../../")
    [('device out of memory', '../../when-it-fails.html#device-out-of-memory')]
    """
    if not reason:
        return []
    return [(name, f"{to_runs}{NAME}#{anchor(name)}") for name in named_in(reason)] or [(TITLE, f"{to_runs}{NAME}")]
