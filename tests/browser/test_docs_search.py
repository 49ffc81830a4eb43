"""Search on the docs site, on a page that is opened as a file: without a server or a Worker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser]

ROOT = Path(__file__).parents[2]
SITE = """\
INHERIT: {base}
docs_dir: pages
site_dir: site
nav: [Runbook: index.md, Queues: pbs.md]
not_in_nav: ""
"""


@pytest.fixture
def site(tmp_path) -> Path:
    """Build two pages in the same way as the whole site."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pages = tmp_path / "pages"
    shutil.copytree(ROOT / "docs" / "javascripts", pages / "javascripts")
    (pages / "index.md").write_text("# Runbook\n\nPlans and trains.\n")
    (pages / "pbs.md").write_text("# Queues\n\n## Limits\n\nThe walltime ends a job.\n")
    (tmp_path / "mkdocs.yml").write_text(SITE.format(base=ROOT / "mkdocs.yml"))
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "site"


def test_a_word_is_searched_and_leads_to_its_page_without_a_server(site, page):
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((site / "index.html").as_uri())
    box = page.get_by_role("textbox", name="Search")
    link = page.locator(".md-search-result__link", has_text="Limits")
    # The search reacts to a key press, and misses keys pressed before its script listens.
    for _ in range(20):
        box.fill("")
        box.press_sequentially("walltime", delay=50)
        page.wait_for_timeout(500)
        if link.count():
            break
    link.click()
    page.wait_for_url("**/pbs.html**")
    page.get_by_role("heading", name="Limits").wait_for()
    assert [address for address in requested if address.startswith("http")] == []
