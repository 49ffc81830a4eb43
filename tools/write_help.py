"""Write docs/when-it-fails.md from the known failures: python tools/write_help.py."""

from __future__ import annotations

from pathlib import Path

from runbook.analysis.help_text import markdown

if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "when-it-fails.md"
    page.write_text(markdown(), encoding="utf-8")
