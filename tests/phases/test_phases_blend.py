"""Several texts become token files under one plan. Ready-made token files are placed where the plan
reads them.
"""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import refuses, says
from suite.tables import table_rows
from toy_run import PROJECT, TOY

from runbook import params
from runbook.core.errors import DataError
from runbook.phases import open_phase as phases
from runbook.phases.job_control import readiness
from runbook.phases.messages import PhaseMessage
from runbook.phases.p02_data import phase as data
from runbook.phases.p02_data.share_checks import share_checks
from runbook.phases.phase_steps import TOKENIZE, VERSIONS, YOUNGER_OPTIONS, phase_step
from runbook.phases.token_inputs import text_identity, tokenize_options
from runbook.planning.data_plan import TextFiles
from runbook.planning.messages import PlanningMessage
from runbook.records.done_marks import fingerprint, read_mark
from runbook.runs import this_machine
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import NEUTRAL_VALUES, TokenizeOptions, read_manifest
from runbook.tokens.verification import sample_documents

READ_ONCE = "text read once"
BLEND = "data.blend=fruit 0.7, stone 0.3"
DATASETS = """
fruit: {title: Fruit, kind: local, folder: fruit, pattern: "*.jsonl", licence: ours, source: test}
stone: {title: Stones, kind: local, folder: stone, pattern: "*.jsonl", licence: ours, source: test}
ready: {title: Ready, kind: tokenized, folder: ready, licence: ours, source: test}
"""


@pytest.fixture
def project(tmp_path: Path, runs) -> Path:
    """Create a project with two texts."""
    root = tmp_path / "project"
    shutil.copytree(PROJECT / "params", root / "params")
    with (root / "params" / "datasets.yaml").open("a") as stream:
        stream.write(DATASETS)
    for name, word in (("fruit", "apple pear plum"), ("stone", "granite basalt")):
        (root / name).mkdir()
        lines = [json.dumps({"text": f"{word} {number}"}) for number in range(40)]
        (root / name / "one.jsonl").write_text("\n".join(lines) + "\n")
    return root


def opened(project: Path, *words: str, phase: str = "02-data"):
    # Most texts here are too short for a validation share.
    shared = (*TOY, "data.workers=1", "training.eval_interval=0")
    settings = params.load("local", set_words=[*shared, *words], project=project)
    return phases.open_run_phase(settings, phase)


def test_each_text_of_a_blend_is_tokenized_and_verified(project, capsys):
    words = ("data.dataset=fruit", "data.blend=fruit 0.7, stone 0.3")
    open_phase = opened(project, *words)
    data.show_source(open_phase)
    cells = table_rows(capsys.readouterr().out)
    shares = [
        PhaseMessage.SHARE_OF_TEXT.fill(share=share, weight=share).split() for share in (0.7, 0.3)
    ]
    rows = [row[1].split() for row in cells if row[0] == data.SHARE_OF_SAMPLES]
    assert rows == shares
    data.fetch(open_phase)
    data.tokenize(open_phase)
    data.verify(open_phase)
    for name, word in (("fruit", " apple"), ("stone", "basalt")):
        prefix = open_phase.folder / "data" / f"{name}_text_document"
        assert read_manifest(prefix).documents == 40
        first_pieces = "".join(document.pieces[0] for document in sample_documents(prefix, 1))
        assert word.strip() in first_pieces or name == "stone"
    assert open_phase.session.results["documents"] == 80
    mark = read_mark(open_phase.folder, TOKENIZE)
    assert len(mark.outputs) == 6
    capsys.readouterr()
    data.tokenize(opened(project, *words))
    assert says(capsys.readouterr().out, PhaseMessage.TOKENIZED_ALREADY)
    train = opened(project, *words, phase="04-training")
    assert readiness.data_check(train.training).verdict == "pass"
    assert [source.weight for source in train.phase_plan.data.train] == [0.7, 0.3]
    shares = {"fruit": 0.7, "stone": 0.3}
    texts = [
        PhaseMessage.SHARES_OF_BLEND.fill(share=share, text=text) for text, share in shares.items()
    ]
    rows = {row["what"]: row["value"] for row in phases.summary_rows(train.run, train.phase)}
    assert rows["data"] == ", ".join(texts)


def test_text_that_is_added_while_others_are_tokenized_is_left_for_the_next_start(
    project, monkeypatch
):
    lines = (project / "fruit" / "one.jsonl").read_text()
    (project / "fruit" / "two.jsonl").write_text(lines)
    tokenize_here = data._tokenize_here

    def tokenize_and_add(run, groups):
        tokenize_here(run, groups)
        (project / "fruit" / "three.jsonl").write_text(lines)

    monkeypatch.setattr(data, "_tokenize_here", tokenize_and_add)
    words = ("data.dataset=fruit", "data.held_out=1")
    open_phase = opened(project, *words)
    data.fetch(open_phase)
    data.tokenize(open_phase)
    mark = read_mark(open_phase.folder, TOKENIZE)
    names = {Path(output.path).name for output in mark.outputs}
    assert {"one_text_document.bin", "two_text_document.bin"} < names
    assert not any(name.startswith("three") for name in names)


def made_elsewhere(project: Path, *names: str) -> None:
    (project / "ready").mkdir(exist_ok=True)
    for name in names:
        prepare(
            [project / "fruit" / "one.jsonl"], project / "ready" / name, TokenizeOptions(workers=1)
        )


def test_ready_token_files_are_put_where_the_plan_reads_them_and_blend_with_text(project, capsys):
    made_elsewhere(project, "old")
    words = ("data.dataset=fruit", "data.blend=fruit 1, ready 1")
    open_phase = opened(project, *words)
    data.show_source(open_phase)
    data.tokenize(open_phase)
    assert says(capsys.readouterr().out, PhaseMessage.TOKEN_FILES_MADE_ELSEWHERE, number_of_ready=1)
    data.verify(open_phase)
    link = open_phase.folder / "data" / "ready_text_document.bin"
    assert (
        link.is_symlink()
        and link.read_bytes()
        == (open_phase.folder / "data" / "fruit_text_document.bin").read_bytes()
    )
    assert (
        readiness.data_check(opened(project, *words, phase="04-training").training).verdict
        == "pass"
    )


@pytest.mark.parametrize(
    ("number_of_documents", "eval_interval", "verdict", "value"),
    [
        (1, 50, "fail", ("validation", 0, "1 document", "0 tokens")),
        (1, 0, "pass", ()),
        (40, 50, "pass", ()),
    ],
)
def test_text_without_a_sample_for_validation_is_found_before_a_job_waits_for_it(
    project, number_of_documents, eval_interval, verdict, value
):
    """A book in one .txt file is one document, so data.split leaves nothing for validation."""
    line = json.dumps({"text": "apple pear plum " * 400})
    (project / "fruit" / "one.jsonl").write_text(f"{line}\n" * number_of_documents)
    words = ("data.dataset=fruit", f"training.eval_interval={eval_interval}")
    open_phase = opened(project, *words)
    data.tokenize(open_phase)
    checks = share_checks(open_phase.run)
    assert [check.verdict for check in checks] == [verdict, verdict]
    if value:
        names = ("use", "documents", "all_documents", "tokens")
        assert says(
            checks[0].value,
            PhaseMessage.SHARE_OF_DOCUMENTS,
            prefix="fruit_text_document",
            **dict(zip(names, value, strict=True)),
        )


def test_held_out_files_are_checked_whole(project):
    names = ("part1.jsonl", "part2.jsonl", "part3.jsonl")
    entry = (
        "parts: {title: Parts, kind: local, folder: parts, licence: ours, source: test, files: ["
    )
    entry += ", ".join(f"{{path: {name}}}" for name in names)
    with (project / "params" / "datasets.yaml").open("a") as stream:
        stream.write(f"{entry}]}}\n")
    (project / "parts").mkdir()
    for name in names:
        shutil.copy(project / "fruit" / "one.jsonl", project / "parts" / name)
    (project / "parts" / "part3.jsonl").write_text(json.dumps({"text": "plum"}) + "\n")
    words = ("data.dataset=parts", "data.held_out=1", "training.eval_interval=50")
    open_phase = opened(project, *words)
    data.tokenize(open_phase)
    (check, _) = share_checks(open_phase.run)
    assert says(
        check.value, PhaseMessage.SHARE_OF_DOCUMENTS, use="validation", prefix="part3_text_document"
    )


def test_sources_are_chosen_by_keys_of_the_run_and_a_wrong_name_is_warned_of(project, capsys):
    sources = ["web", "book", "web"]
    lines = [
        json.dumps({"text": f"some text {number} " * 66, "kind": source})
        for number, source in enumerate(sources)
    ]
    (project / "fruit" / "one.jsonl").write_text("\n".join(lines) + "\n")
    words = ("data.dataset=fruit", "data.source_key=kind", "data.drop_sources=book, boks")
    open_phase = opened(project, *words)
    data.tokenize(open_phase)
    verdicts = data.verify(open_phase)
    warned = [
        check
        for check in verdicts.checks
        if check.verdict == "warn" and not check.name.endswith(READ_ONCE)
    ]
    assert [(check.name, check.value) for check in warned] == [
        ("sources", TokenMessage.UNKNOWN_SOURCE.fill(unknown="boks", recorded="book, web"))
    ]
    manifest = read_manifest(open_phase.folder / "data" / "fruit_text_document")
    assert (manifest.documents, manifest.dropped_sources) == (2, {"book": 1})
    shown = data.show_what_it_is(open_phase)
    facts = {row["what"]: row["value"] for row in shown[0].rows}
    (by_source,) = (table for table in shown.tables if "B per token" in table.columns)
    assert f" {manifest.text_bytes / manifest.tokens:.4g}" in by_source.as_text()
    books = PhaseMessage.DOCUMENTS_OF_SOURCE.fill(documents=1, source="book")
    named = PhaseMessage.DOCUMENTS_LEFT_OUT.fill(documents="1 document", sources=books)
    assert facts[data.LEFT_OUT_BY_CHOICE] == named
    settings = params.load("local", set_words=[*TOY, *words[:2]], project=project)
    other = replace(open_phase.run, settings=settings)
    assert (
        phase_step(other, "02-data").fingerprint
        != phase_step(open_phase.run, "02-data").fingerprint
    )


@pytest.mark.parametrize(
    ("words", "read_most"),
    [(["data.dataset=fruit"], ""), (["data.dataset=fruit", BLEND], "fruit")],
    ids=["one text", "a blend"],
)
def test_epochs_are_checked_as_soon_as_the_tokens_are_counted(project, words, read_most):
    open_phase = opened(project, *words)
    names = [f"{phase}: {READ_ONCE}" for phase in ("03-smoke-test", "04-training")]
    planned = {check.name: check for check in open_phase.run.plan.checks}
    assert [planned[name].verdict for name in names] == ["warn", "warn"], "an estimate, of 80 lines"
    assert all(says(planned[name].value, PlanningMessage.ESTIMATED_FROM_FILES) for name in names)
    data.tokenize(open_phase)
    checks = {check.name: check for check in data.verify(open_phase).checks}
    assert [checks[name].verdict for name in names] == ["warn", "warn"], "80 lines are few"
    assert read_most in checks[names[1]].remedy
    assert not any(
        says(check.value, PlanningMessage.ESTIMATED_FROM_FILES) for check in checks.values()
    )


def test_files_of_uncounted_text_are_measured_if_they_can_be_read(project):
    def measured(*words):
        settings = params.load("local", set_words=[*TOY, *words], project=project)
        return this_machine.uncounted_texts(settings)

    plain = (project / "fruit" / "one.jsonl").stat().st_size
    assert measured("data.dataset=fruit", BLEND)["fruit"] == TextFiles(plain, plain)
    packed = project / "fruit" / "two.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"text": "cherry"}\n' * 1000))
    size = packed.stat().st_size
    # The entry's pattern has plain files only; the corpus is replaced by files of any name.
    assert measured("data.dataset=fruit")["fruit"] == TextFiles(plain, plain)
    assert measured("data.folder=fruit")["corpus"] == TextFiles(plain + size, plain + 3.0 * size)
    shutil.rmtree(project / "stone")
    assert measured("data.dataset=fruit", BLEND).keys() == {"fruit"}
    assert measured() == {}, "the shipped corpus is counted"


def test_epochs_that_the_plan_knew_are_not_checked_again(project):
    open_phase = opened(project)
    data.tokenize(open_phase)
    names = {check.name for check in data.verify(open_phase).checks}
    assert not any(name.endswith(READ_ONCE) for name in names)


def test_ready_token_files_that_the_plan_does_not_know_are_refused_with_what_to_do(project):
    made_elsewhere(project, "old", "new")
    open_phase = opened(project, "data.dataset=ready")
    with refuses(
        DataError,
        PhaseMessage.MORE_TOKEN_FILES_THAN_PLANNED,
        text_name="ready",
        number_of_present=2,
        number_of_planned=1,
    ):
        data.tokenize(open_phase)


def test_mock_data_needs_no_token_files(project):
    train = opened(project, "data.dataset=mock", phase="04-training")
    assert readiness.data_check(train.training).verdict == "pass"


YOUNGER = (
    "data.blend",
    "data.keep_sources",
    "data.drop_sources",
    "data.source_key",
    "data.fix_text",
)
"""Keys that were added after fingerprints existed."""


def test_a_run_that_sets_no_newer_key_is_tokenized_with_the_neutral_values(project):
    options = tokenize_options(opened(project, "data.dataset=fruit").settings)
    for option in YOUNGER_OPTIONS:
        assert getattr(options, option) == NEUTRAL_VALUES[option]


def test_what_is_not_asked_for_leaves_the_fingerprint_of_the_data_as_it_was(project):
    open_phase = opened(project, "data.dataset=fruit")
    dataset = open_phase.settings.dataset.model_dump(mode="json")
    assert dataset.pop("parts_order") == "listed"
    assert not (dataset["files"] or dataset["groups"] or dataset["parts"])
    inputs = {
        "data": {
            key: value
            for key, value in open_phase.settings.subset(["data"]).items()
            if key not in YOUNGER
        },
        "dataset": dataset,
        "vocabulary": open_phase.settings.model.vocabulary,
        "text": text_identity(open_phase.settings, open_phase.folder),
    }
    digest = phase_step(open_phase.run, "02-data").fingerprint
    assert digest == fingerprint(VERSIONS["02-data"], inputs)
