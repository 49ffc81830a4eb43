"""What notebook 02 shows about the data: tables that add up, coloured tokens, figures with units,
and the same for ready-made files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says
from suite.tables import titled_table

from runbook.phases.messages import PhaseMessage
from runbook.phases.p02_data import phase as data
from runbook.phases.p02_data import phase as phase
from runbook.phases.phase_steps import TOKENIZE
from runbook.records.done_marks import mark_path
from runbook.results.figures.plan_figures import length_figure, source_figure
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.runs.step import ChangedOutputError
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.tokenizer import load_tokenizer
from tests.phases.toy_run import open_run

from .reference import EDGE_TEXTS, json_lines

NO_EVALUATION = "training.eval_interval=0"
"""The texts here are too short for a validation share."""


def test_coloured_tokens_need_no_script_and_escape_what_they_hold() -> None:
    html = data.coloured_tokens([(1, "<b>"), (2, " a&b"), (3, "\n")])
    assert re.sub(r"</?span[^>]*>", "", html) == "&lt;b&gt; a&amp;b\n"
    shades = re.findall(r"background:([^;]+);", html)
    assert len(shades) == 3 and shades[0] != shades[1] != shades[2]
    assert "script" not in html and "class=" not in html


def test_figures_have_units_and_reference_lines() -> None:
    made = {
        "length": length_figure([0, 0, 3, 9, 1], 8),
        "source": source_figure({f"source {n}": 10**6 * n for n in range(1, 16)}),
    }
    for name, figure in made.items():
        axes = figure.axes[0]
        assert axes.get_title(loc="left") or axes.get_title(), name
        assert re.search(r"\(.+\)|tokens", axes.get_xlabel()), name
    assert [bar.get_height() for bar in made["length"].axes[0].patches] == [3, 9, 1]
    assert [label.get_text() for label in made["source"].axes[0].get_yticklabels()][-1] == "3 more"
    assert length_figure([], 2048)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


def test_a_phase_by_hand_shows_plan_and_counts(
    tmp_path: Path, runs: Path, told: Callable[[], str]
) -> None:
    source = tmp_path / "text" / "in.jsonl"
    source.parent.mkdir()
    source.write_bytes(
        json_lines(EDGE_TEXTS, source="edge") + json_lines(["more words"], source="other")
    )
    words = (f"data.folder={source.parent}", NO_EVALUATION)
    open_phase = open_run("02-data", *words, runs=runs)
    phase.fetch(open_phase)
    phase.show_source(open_phase)
    phase.tokenize(open_phase)
    phase.verify(open_phase)
    told()
    print(data.show_what_it_is(open_phase))
    print(data.show_plan_beside(open_phase))
    data.show_documents(open_phase)
    said = told()
    assert says(
        said,
        PhaseMessage.DOCUMENTS_OF_TEXT,
        documents=f"{len(EDGE_TEXTS) + 1} documents",
        empty=EDGE_TEXTS.count(""),
    )
    (manifest,) = data._read_manifests(open_phase)
    assert says(
        said,
        PhaseMessage.NO_TEXT_DIFFERS,
        judge=manifest.tokenizer["judge"],
        judged=manifest.judged,
    )
    title = PhaseMessage.PLANNED_AND_FOUND.fill()
    assert "not known" not in said.split(title)[0]
    compared = titled_table(said, title)
    assert {"tokens", "text (MB)"} <= {row["what"] for row in compared}
    assert {row["planned"] for row in compared} == {""}, "the plan knows nothing of this text"
    assert all(row["remark"] for row in compared)
    assert "other" in said
    sentence = "An ordinary document."
    assert any(text.startswith(sentence) for text in EDGE_TEXTS)
    tokenizer = load_tokenizer()
    assert "|".join(tokenizer.pieces(tokenizer.encode(sentence))) in said


def test_changed_token_files_are_refused_and_neither_made_again_nor_recorded(
    tmp_path: Path, runs: Path
) -> None:
    source = tmp_path / "text" / "in.jsonl"
    source.parent.mkdir()
    source.write_bytes(json_lines(EDGE_TEXTS))
    words = ("02-data", f"data.folder={source.parent}")
    open_phase = open_run(*words, runs=runs)
    phase.tokenize(open_phase)
    mark = mark_path(open_phase.folder, TOKENIZE)
    recorded = mark.read_bytes()
    tokens = next(open_phase.folder.rglob("*.bin"))
    changed = tokens.read_bytes()[:-2] + b"\1\0"
    tokens.write_bytes(changed)
    with refuses(
        ChangedOutputError,
        RunMessage.STEP_OUTPUT_CHANGED,
        fault=containing(tokens.name),
        remedy=containing("--redo"),
    ):
        phase.tokenize(open_run(*words, runs=runs))
    assert tokens.read_bytes() == changed
    assert mark.read_bytes() == recorded


def test_ready_token_files_are_shown_and_verified_not_made(
    tmp_path: Path, runs: Path, told: Callable[[], str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(EDGE_TEXTS))
    prepare([source], tmp_path / "ready" / "mine", TokenizeOptions(workers=1))
    (tmp_path / "ready" / "mine.manifest.json").unlink()  # made by another program
    words = ("data.dataset=tokenized", f"data.folder={tmp_path / 'ready'}", NO_EVALUATION)
    open_phase = open_run("02-data", *words, runs=runs)
    phase.show_source(open_phase)
    phase.tokenize(open_phase)
    phase.verify(open_phase)
    print(data.show_what_it_is(open_phase))
    print(data.show_plan_beside(open_phase))
    data.show_documents(open_phase)
    said = told()
    assert says(said, PhaseMessage.TOKEN_FILES_MADE_ELSEWHERE, number_of_ready=1)
    assert "mine_text_document" in said
    assert open_phase.session.results["documents"] == len(EDGE_TEXTS)
