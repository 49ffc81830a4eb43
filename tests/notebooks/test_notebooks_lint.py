"""The masters in the repository are clean, consistent, and readable without the package."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from runbook.core.table import Table
from runbook.display import CheckTable, View
from runbook.params import PARAMETERS
from runbook.params.schema.run_file import Run
from runbook.plan_file.phase_names import PHASES

FOLDER = Path(__file__).parents[2] / "notebooks"
MASTERS = sorted(FOLDER.glob("*.ipynb"))
HEAD = ("title", "operation")
"""Cells before the parameters cell. They are not sections."""
OPERATION_TABLE = "| time | cost | what it changes | safe to repeat? |"
FORBIDDEN = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Try,
    ast.Lambda,
    ast.With,
    ast.For,
    ast.While,
)


@pytest.fixture(params=MASTERS, ids=lambda path: path.stem)
def notebook(request):
    content = nbformat.read(request.param, as_version=4)
    nbformat.validate(content)
    return content


def code_of(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parameters_cell(notebook) -> str:
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


def test_there_is_one_notebook_a_phase_and_nothing_else():
    assert tuple(path.stem for path in MASTERS) == PHASES
    assert sorted(
        path.name for path in FOLDER.iterdir() if path.name != ".ipynb_checkpoints"
    ) == sorted(path.name for path in MASTERS)


def test_every_kernel_finds_it(notebook):
    assert notebook.metadata.kernelspec == {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)


def test_every_cell_has_an_id_of_its_own(notebook):
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{2,40}", one) for one in ids), ids


def test_a_master_holds_no_trace_of_an_execution(notebook):
    for cell in code_of(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}, cell.id


def test_the_parameters_come_first_and_once(notebook):
    first = code_of(notebook)[0]
    assert first.metadata.get("tags") == ["parameters"]
    assert [cell for cell in notebook.cells if cell.metadata.get("tags")] == [first]


def test_the_parameters_are_those_the_package_knows(notebook):
    found = {}
    for statement in ast.parse(parameters_cell(notebook)).body:
        assert isinstance(statement, ast.AnnAssign), ast.unparse(statement)
        assert statement.value is not None
        found[ast.unparse(statement.target)] = ast.literal_eval(statement.value)
        assert (
            ast.unparse(statement.annotation)
            == type(PARAMETERS[ast.unparse(statement.target)]).__name__
        )
    assert list(found.items()) == list(PARAMETERS.items())
    assert set(PARAMETERS) - {"overrides"} == set(Run.model_fields)


def test_every_parameters_line_is_one_that_papermill_can_read(notebook):
    for line in parameters_cell(notebook).splitlines():
        code, _, text = line.partition("  # ")
        assert text, f"no help: {line}"
        assert code.count("=") == 1, line
        assert "|" not in line, line


def phase_of(notebook: nbformat.NotebookNode) -> ModuleType:
    """Return the module that a notebook calls `phase`."""
    bind = code_of(notebook)[1].source
    (package,) = re.findall(r"^from (runbook\.phases\.\w+) import phase$", bind, re.MULTILINE)
    return importlib.import_module(f"{package}.phase")


def test_the_parameters_cell_is_the_same_in_all():
    assert len({parameters_cell(nbformat.read(path, as_version=4)) for path in MASTERS}) == 1


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_papermill_finds_all_parameters_with_their_help(path):
    from papermill.inspection import inspect_notebook

    found = inspect_notebook(str(path))
    assert list(found) == list(PARAMETERS)
    for name, told in found.items():
        assert ast.literal_eval(told["default"]) == PARAMETERS[name]
        assert told["inferred_type_name"] == type(PARAMETERS[name]).__name__
        assert len(told["help"]) > 10, name


def test_cells_hold_calls_and_no_programs(notebook):
    for cell in code_of(notebook):
        body = ast.parse(cell.source)  # also refuses !command, %magic and %%bash
        wrong = [type(node).__name__ for node in ast.walk(body) if isinstance(node, FORBIDDEN)]
        assert wrong == [], cell.id
        assert "sys.exit" not in cell.source
        assert len(cell.source.splitlines()) <= 20
        if cell.metadata.get("tags") != ["parameters"]:
            code = [line for line in cell.source.splitlines() if line]
            assert len(code) <= 5, cell.id


def test_each_cell_after_the_first_two_is_one_call_and_what_it_gives_has_a_name(notebook):
    """A cell displays its result by naming it at its end.

    What was displayed during the cell is not displayed again.
    """
    names = set(re.findall(r"^(\w+) = ", code_of(notebook)[1].source, re.MULTILINE))
    for cell in code_of(notebook)[2:]:
        call, *shown = ast.parse(cell.source).body
        name = ast.unparse(call.targets[0]) if isinstance(call, ast.Assign) else ""
        source = re.match(
            r"(?:(?:phase|speed)\.\w+\(open_phase\)$|(\w+)\.)", ast.unparse(call.value)
        )
        assert source and (source[1] is None or source[1] in names), cell.source
        assert len(shown) <= 1 and all(name and name in ast.unparse(line) for line in shown), (
            cell.source
        )
        assert name not in names, cell.source
        names |= {name} - {""}


def test_what_a_phase_gives_is_named_in_its_notebook(notebook):
    phase = phase_of(notebook)
    for cell in code_of(notebook)[2:]:
        for name in re.findall(r"phase\.(\w+)\(open_phase\)", cell.source):
            gives = inspect.signature(getattr(phase, name)).return_annotation
            is_named = " = " in cell.source
            is_shown = "\n" in cell.source
            assert is_named == (gives in (View, Table, CheckTable)), cell.source
            assert is_shown == (gives in (View, Table)), (
                f"checks show themselves while they are made: {cell.source}"
            )


def test_code_has_no_trailing_comment_that_explains_what_it_does(notebook):
    for cell in code_of(notebook)[1:]:
        kinds = [
            token.type for token in tokenize.generate_tokens(io.StringIO(cell.source).readline)
        ]
        assert tokenize.COMMENT not in kinds, cell.id


def test_there_is_prose_before_each_code_cell(notebook):
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown", cell.id


def test_each_section_asks_a_question_and_says_what_one_should_see(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            heading = cell.source.splitlines()[0]
            assert heading.endswith("?"), heading
            assert "**You should see**" in cell.source, heading


def test_a_notebook_begins_with_its_title_and_what_it_costs_and_ends_with_what_is_next(notebook):
    title = notebook.cells[0].source
    assert re.match(r"# [^\n]+\n\n[^\n]+\.\n\n\| time", title)
    assert OPERATION_TABLE in title
    assert notebook.cells[-1].cell_type == "markdown"
    assert notebook.cells[-1].source.startswith(("**Next:** [0", "**Done.**"))


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_what_a_notebook_names_exists(path):
    content = nbformat.read(path, as_version=4)
    for cell in content.cells:
        for name in re.findall(r"`?(\d\d-[a-z-]+)\.(?:ipynb|json)", cell.source):
            assert name in PHASES, name
    assert f"notebooks/{path.stem}.ipynb" in content.cells[1].source
    assert f"records/{path.stem}.json" in "".join(cell.source for cell in content.cells)
    following = PHASES[PHASES.index(path.stem) + 1 :][:1]
    assert all(f"[{name}]({name}.ipynb)" in content.cells[-1].source for name in following)


def test_every_call_is_one_the_phase_has(notebook):
    phase = phase_of(notebook)
    called = [
        name for cell in code_of(notebook) for name in re.findall(r"phase\.(\w+)\(", cell.source)
    ]
    assert called[0] == "bind"
    assert called[-1] == "finish"
    for name in called:
        assert getattr(phase, name).__doc__, name


def test_no_place_of_a_machine_is_named(notebook):
    text = "\n".join(cell.source for cell in notebook.cells)
    assert not re.findall(r"(?<![\w.])/(?:root|home|work|tmp|Users|scratch|mnt)/", text)
    assert not re.findall(r"\b[A-Z]:\\", text)


def test_links_lead_where_records_and_copies_have_a_page(notebook):
    """Allow links to the web, to the other notebooks, and to docs/when-it-fails.md. Records and
    copies have no page for any other file."""
    texts = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", texts)}
    assert {link for link in links if not link.startswith("https:")} <= {
        "../docs/when-it-fails.md",
        *(f"{phase}.ipynb" for phase in PHASES),
    }
