"""The notebooks match the Markdown in masters/, and a cell that all of them share is written once."""

from __future__ import annotations

import json

import build_notebooks
import nbformat
import pytest

from runbook.plan_file.phase_names import PHASES


def test_each_notebook_is_built_from_its_markdown():
    assert build_notebooks.differences() == []
    assert tuple(path.stem for path in build_notebooks.sources()) == PHASES


def test_an_edit_of_either_is_seen_and_can_be_taken_over(tmp_path, monkeypatch, capsys):
    for name in ("SOURCES", "NOTEBOOKS"):
        folder = tmp_path / name
        folder.mkdir()
        for path in getattr(build_notebooks, name).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        monkeypatch.setattr(build_notebooks, name, folder)
    monkeypatch.setattr(build_notebooks, "SHARED", tmp_path / "SOURCES" / "shared.md")
    path = tmp_path / "NOTEBOOKS" / "03-smoke-test.ipynb"
    notebook = json.loads(path.read_text())
    next_line = notebook["cells"][-1]["source"][0]
    notebook["cells"][-1]["source"] = ["**Next:** a walk.\n", "\n", "```\n", "sh\n", "```"]
    path.write_text(json.dumps(notebook))
    assert build_notebooks.main(["--check"]) == 1
    added = [line.rstrip(",") for line in capsys.readouterr().out.splitlines()]
    assert f"+    {json.dumps(next_line, ensure_ascii=False)}" in added
    assert build_notebooks.main(["--import"]) == 0
    assert "a walk." in (tmp_path / "SOURCES" / "03-smoke-test.md").read_text()
    assert build_notebooks.main(["--check"]) == 0
    shared = tmp_path / "SOURCES" / "shared.md"
    old_heading = "## Did it go well?"
    heading = "## Did it go wrong?"
    shared.write_text(shared.read_text().replace(old_heading, heading))
    assert build_notebooks.main([]) == 0
    for built in path.parent.iterdir():
        cells = json.loads(built.read_text())["cells"]
        headings = [cell["source"][0].strip() for cell in cells if cell["source"]]
        assert heading in headings and old_heading not in headings, built
    nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("name", ["operation", "parameters", "bind-text", "finish-text", "finish"])
def test_a_cell_of_all_notebooks_is_written_once(name):
    cell = build_notebooks.shared_cells("{phase}")[name]
    texts = [path.read_text() for path in build_notebooks.sources()]
    assert all(cell.text not in text for text in texts)
    assert all(build_notebooks.INCLUDE.format(id=name) in text for text in texts)
