"""Embeds files in the report for mail, so that its reader needs no other file."""

import base64
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from runbook.core.units import show_bytes
from runbook.params.secrets import mask
from runbook.plan_file.phase_names import PHASES

LARGEST_ATTACHED = 300_000
"""Size limit in bytes.

A larger file is only listed, because mail servers would reject the report.
"""
TYPES = {".json": "application/json", ".yaml": "text/plain", ".md": "text/plain"}


class Attachment(NamedTuple):
    """An embedded file: its display name, its size, and a link that contains the whole file."""

    name: str
    shown_size: str
    content: Markup
    """`data:` address, or empty if the file is too large to embed."""


def attachments(run_folder: Path) -> list[Attachment]:
    """Return the parameters, plan, logbook and records for a run."""
    names = ["run.yaml", "plan.json", "logbook.md"]
    names += [f"records/{phase}.json" for phase in PHASES]
    attachments: list[Attachment] = []
    for name in names:
        if (run_folder / name).exists():
            attachments.append(_attached(run_folder / name))

    return attachments


def _attached(path: Path) -> Attachment:
    size = path.stat().st_size
    if size > LARGEST_ATTACHED:
        return Attachment(path.name, show_bytes(size), Markup())
    # The search for secrets in the page cannot see encoded text, so the text is masked here.
    text = mask(path.read_text(encoding="utf-8", errors="replace"))
    encoded = base64.b64encode(text.encode()).decode()
    return Attachment(
        path.name, show_bytes(size), Markup(f"data:{TYPES[path.suffix]};base64,{encoded}")
    )
