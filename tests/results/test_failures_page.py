"""docs/when-it-fails.md matches what tools/write_help.py writes from the current rules."""

from pathlib import Path

import write_help

from runbook.plan_file.phase_names import PHASES
from runbook.results.failures.finder import anchor
from runbook.results.failures.kinds import KINDS

PROJECT = Path(__file__).parents[2]


def test_the_page_of_known_failures_is_that_of_the_code():
    page = (PROJECT / "docs" / "when-it-fails.md").read_text()
    assert page == write_help.markdown(), "write the page again: python tools/write_help.py"
    for kind in KINDS:
        assert f"## {kind.name}\n" in page
        assert anchor(kind.name).replace("-", "").isalnum()


def test_every_notebook_links_to_the_page_of_known_failures():
    for phase in PHASES:
        notebook = (PROJECT / "notebooks" / f"{phase}.ipynb").read_text()
        assert "(../docs/when-it-fails.md)" in notebook
