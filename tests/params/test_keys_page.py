"""docs/keys.md lists every key in run files and site files, and is up to date."""

from pathlib import Path

from write_keys import keys_page

from runbook.params.schema.keys import all_keys
from runbook.params.schema.site import QueueLimit

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"


def test_the_page_of_keys_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == keys_page(), "run python tools/write_pages.py"


def test_the_page_explains_each_key_of_a_run_file_once():
    lines = keys_page().partition("## Site file")[0].splitlines()
    listed = [line.split("`")[1] for line in lines if line.startswith("| `")]
    phases = ("jobs.environment.", "jobs.data.", "jobs.smoke.", "jobs.training.")
    expected = set()
    for name in all_keys():
        section = next((phase for phase in phases if name.startswith(phase)), "")
        expected.add("jobs.<phase>." + name.removeprefix(section) if section else name)
    assert set(listed) == expected
    assert len(listed) == len(expected)


def test_a_key_inside_a_list_or_a_mapping_of_a_site_file_is_listed_too():
    rows = [line.strip("| ").split(" | ") for line in keys_page().splitlines()]
    cells = {row[0]: row[1:] for row in rows if len(row) == 3}
    description = QueueLimit.model_fields["max_nodes"].description
    assert description is not None
    assert cells["`queues.<name>.max_nodes`"] == ["`0`", " ".join(description.split())]
    assert cells["`preparation[].title`"][0] == "**required**"
