"""The docs stay short enough, counted as a reader would, and all links work."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WORD_LIMIT = 25_000
GENERATED = {
    "departures.md",
    "errors-in-the-documents.md",
    "hours-lost.md",
    "json.md",
    "keys.md",
    "lumi-table.md",
    "storage.md",
    "when-it-fails.md",
    "measurements/drills.md",
    "measurements/predicted-speed.md",
    "measurements/preflight-defects.md",
}
"""Pages that list what the code contains. Each is written or checked by a script
(docs/start-here.md).
"""


def count_words(text: str) -> int:
    """Count the words in a page without comments, link addresses and table rows."""
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def heading_anchors(text: str) -> set[str]:
    """Return the anchors for the headings on a page, as the docs site and GitHub generate them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_all_written_pages_together_are_read_in_two_hours():
    pages = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    assert set(pages) >= GENERATED
    counts = {
        name: count_words(path.read_text()) for name, path in pages.items() if name not in GENERATED
    }
    longest = sorted(counts.items(), key=lambda item: -item[1])[:8]
    assert sum(counts.values()) <= WORD_LIMIT, f"{sum(counts.values())} words; longest: {longest}"


def test_every_link_of_a_page_leads_to_a_file_and_a_heading():
    broken = []
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for target in re.findall(r"\]\(((?!https?:|mailto:)[^)\s]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            is_missing = not linked.exists()
            if is_missing or (anchor and anchor not in heading_anchors(linked.read_text())):
                broken.append(f"{page.name}: {target}")
    assert broken == []
