"""The example in docs/explain.md matches the command's current output."""

from pathlib import Path

from write_pages import explain_page

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


def test_the_example_of_the_page_is_what_the_command_prints():
    page = PAGE.read_text(encoding="utf-8")
    assert page == explain_page(page), "run python tools/write_pages.py"
