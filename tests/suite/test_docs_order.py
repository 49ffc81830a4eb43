"""Reading order: the contents of the docs site and docs/start-here.md list the same pages, and all
of them exist.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {"index.md", "campaign.md", "sites.md", "api.md", "pages.md"}
"""Pages that tools/build_docs.py writes."""


def test_the_sites_contents_name_each_page_once_and_all_exist():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("not_in_nav")[0]
    names = re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE)
    assert len(names) == len(set(names))
    assert all((ROOT / "docs" / name).exists() for name in set(names) - GENERATED)
    assert set(names) >= GENERATED


def test_where_to_start_leads_to_every_page_of_the_contents():
    text = (ROOT / "docs" / "start-here.md").read_text()
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", text))
    assert all((ROOT / "docs" / name).exists() for name in linked)
    nav = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert nav - GENERATED - {"start-here.md"} <= linked
    readme = (ROOT / "README.md").read_text()
    assert "(docs/start-here.md)" in readme
