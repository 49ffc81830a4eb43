"""One complete run at toy size: its records, and what a second `runbook run` does with it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from suite.messages import containing, says, says_only
from suite.tables import titled_table
from toy_project import ITERATIONS, PHASES, SECRET, Toy, json_of, lines_of, losses, tree

from runbook.cli.messages import CliMessage
from runbook.core.messages import CoreMessage
from runbook.core.processes import host_name
from runbook.phases.messages import PhaseMessage
from runbook.records.manifest import Finding
from runbook.results.history import ALL_PAIRS, BITS_PER_BYTE, PHENOMENON
from runbook.results.messages import ResultMessage
from runbook.runs.messages import RunMessage

pytestmark = pytest.mark.notebooks

REPOSITORY = Path(__file__).parents[2]
TRAININGS = ("03-smoke-test", "04-training")
RESULTS = (
    "parameters",
    "sequence_length",
    "world_size",
    "iterations",
    "first_loss",
    "last_loss",
    "tokens_per_second",
)
IDLE_KERNEL_INTERRUPTED = "[IPKernelApp] ERROR | KeyboardInterrupt caught in kernel."
"""ipykernel occasionally prints this when jupyter_client interrupts it before ending it, right
after its last reply."""
TWIN_KEYS = {
    *(
        "schema",
        "run",
        "phase",
        "state",
        "verdict",
        "started",
        "ended",
        "reason",
        "commit",
        "versions",
    ),
    *("parameters", "plan", "results", "checks", "cells"),
}


@pytest.fixture(scope="module")
def twins(campaign) -> dict[str, dict]:
    return {phase: json_of(campaign.folder / "records" / f"{phase}.json") for phase in PHASES}


def test_every_phase_is_done_and_nothing_failed(campaign: SimpleNamespace, twins):
    assert campaign.code == 0, campaign.text
    for phase, twin in twins.items():
        assert twin.keys() == TWIN_KEYS, phase
        assert (twin["run"], twin["phase"], twin["state"], twin["reason"]) == (
            "local",
            phase,
            "done",
            "",
        )
        assert twin["verdict"] in ("pass", "warn"), twin["checks"]
        assert {check["verdict"] for check in twin["checks"]} <= {"pass", "warn", "unknown"}
        assert {cell["state"] for cell in twin["cells"]} == {"completed"}
        assert twin["parameters"]["training.iterations"]["value"] == ITERATIONS
        assert twin["parameters"]["training.iterations"]["origin"].startswith("params/local.yaml:")


def test_a_secret_by_reference_is_used_and_is_in_no_record_log_plan_or_process_list(
    campaign, toy: Toy
):
    used = (campaign.folder / "logged-in").read_text().split()[0]
    assert used == hashlib.sha256(f"{SECRET}\n".encode()).hexdigest()
    assert campaign.listener.looks > 50 and campaign.listener.heard == set()
    assert SECRET not in campaign.text + campaign.second.text
    for folder in (campaign.runs, toy.root):
        assert [name for name, content in tree(folder).items() if SECRET.encode() in content] == []


def test_the_results_of_training_phases_hold_what_others_rely_on(twins):
    for phase in TRAININGS:
        results = twins[phase]["results"]
        assert {key: type(results[key]) for key in RESULTS} == {
            key: float if key in ("first_loss", "last_loss", "tokens_per_second") else int
            for key in RESULTS
        }
        assert (results["sequence_length"], results["world_size"]) == (128, 2)
        assert results["tokens_per_second"] > 0
        assert 0 < results["last_loss"] < results["first_loss"] < 11.2
    assert [twins[phase]["results"]["iterations"] for phase in TRAININGS] == [8, ITERATIONS]
    assert [twins[phase]["results"]["parameters"] for phase in TRAININGS] == [6_852_096, 7_248_640]


def test_the_plan_stands_beside_what_came_true(twins):
    for phase in TRAININGS:
        assert twins[phase]["plan"]["world_size"] == twins[phase]["results"]["world_size"]
        assert twins[phase]["plan"]["iterations"] == twins[phase]["results"]["iterations"]


def test_the_run_was_stopped_and_went_on_without_a_gap(campaign):
    events = [
        one for one in lines_of(campaign.folder / "events.jsonl") if one["phase"] == "04-training"
    ]
    names = [one["event"] for one in events]
    stop = events[names.index("stopped")]["iteration"]
    assert 6 <= stop < ITERATIONS
    assert [one["iteration"] for one in events if one["event"] == "resumed"] == [stop]
    assert (
        names.index("begun")
        < names.index("submitted")
        < names.index("started")
        < names.index("stopped")
    )
    assert (names.count("submitted"), names.count("started"), names[-2:]) == (
        2,
        2,
        ["finished", "ended"],
    )
    rows = lines_of(campaign.folder / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, ITERATIONS + 1))
    assert [row["segment"] for row in rows] == [0] * stop + [1] * (ITERATIONS - stop)
    assert sorted(path.name for path in (campaign.folder / "jobs").iterdir()) == [
        "03-smoke-test",
        "04-training",
        "04-training-2",
    ]


def test_the_smoke_test_shares_no_place_with_the_training(campaign):
    assert sorted(losses(campaign.folder, "smoke/metrics.jsonl")) == list(range(1, 9))
    assert (campaign.folder / "smoke" / "checkpoints").is_dir()
    assert json_of(campaign.folder / "smoke" / "gate.json")["verdict"] == "pass"


def test_each_record_has_its_notebook_and_a_report_that_needs_no_network(campaign):
    for phase in PHASES:
        notebook = nbformat.read(campaign.folder / "records" / f"{phase}.ipynb", as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert {cell.metadata.papermill.status for cell in code} == {"completed"}
        assert not [
            output for cell in code for output in cell.outputs if output.output_type == "error"
        ]
        page = (campaign.folder / "records" / f"{phase}.html").read_text()
        page = re.sub(
            r'<a href="https://arxiv\.org/abs/[\d.]+">', "<a>", page
        )  # a link to a paper, which is only opened by a click
        for fetched in ('src="http', "src='http", 'href="http', "@import", "url(http"):
            assert fetched not in page, f"{phase}.html asks the network: {fetched}"
    for page in (campaign.folder / "index.html", campaign.runs / "index.html"):
        text = page.read_text()
        assert "local" in text
        assert (
            all(f"records/{phase}.html" in text for phase in PHASES) or page.parent == campaign.runs
        )


def test_no_warning_stands_in_a_record(campaign):
    for phase in PHASES:
        notebook = nbformat.read(campaign.folder / "records" / f"{phase}.ipynb", as_version=4)
        errors = [
            output.text
            for cell in notebook.cells
            for output in cell.get("outputs", [])
            if output.output_type == "stream" and output.name == "stderr"
        ]
        assert errors == [], phase
    said = "\n".join(line for line in campaign.text.splitlines() if line != IDLE_KERNEL_INTERRUPTED)
    assert "Warning" not in said
    assert "ERROR" not in said
    assert "Traceback" not in said


def test_the_card_at_the_end_says_verdict_losses_sample_and_where_the_report_is(campaign):
    card = campaign.text.partition("\nlocal: ")[2]
    assert card.partition("\n")[0] in ("pass", "warn")
    for phase in PHASES:
        assert f"{phase} " in card
    steps = lines_of(campaign.folder / "metrics.jsonl")
    first_loss = steps[0]["loss"]
    assert 10 <= first_loss < 11
    last_loss = steps[-1]["loss"]
    assert says(
        card, PhaseMessage.LOSS_CURVE, phase="04-training", first=first_loss, last=last_loss
    )
    for iteration in (0, ITERATIONS):
        text = containing("The first time")
        assert says(card, PhaseMessage.SAMPLE_AFTER, iteration=iteration, text=text)

    comparison = titled_table(card, ResultMessage.PLAN_VERSUS_ACTUAL.fill())
    assert {row["phase"] for row in comparison} == set(TRAININGS)
    scores = titled_table(card, PhaseMessage.SCORES_BEFORE_AND_AFTER.fill())
    (bits,) = [row for row in scores if row["measure"] == BITS_PER_BYTE]
    assert float(bits["after"]) < float(bits["before"]), (
        "48 steps are enough to foresee text better than chance"
    )
    assert ALL_PAIRS in [row["what"] for row in scores]
    assert PHENOMENON not in [row["measure"] for row in scores]
    report = PhaseMessage.REPORT_WRITTEN.fill(path=campaign.folder / "index.html")
    assert card.strip().splitlines()[-1] == report


def test_nothing_is_left_running_and_no_lock_is_left(campaign):
    assert campaign.left == []
    assert not (campaign.folder / "lock.json").exists()
    assert not list(campaign.folder.rglob("*.part*"))


def test_a_second_run_at_the_same_time_is_told_who_holds_it(campaign):
    assert campaign.second.code == 1, campaign.second
    text = campaign.second.text
    holder = CoreMessage.LOCK_HOLDER.of(
        pid=campaign.pid, host=host_name(), purpose="runbook run local"
    )
    held = CoreMessage.LOCK_HELD.of(folder=campaign.folder, holder=holder, advice="")
    assert says_only(text, "Error: {held}\n", held=held), text
    assert campaign.second.executed() == []


def test_verify_finds_nothing_and_then_one_flipped_byte(campaign, toy: Toy):
    clean = toy.call("runbook", "verify", "local", "--runs", campaign.runs)
    assert (clean.code, clean.text) == (
        0,
        f"{campaign.folder}: {CliMessage.NOTHING_CHANGED.fill()}\n",
    )
    record = campaign.folder / "records" / "04-training.ipynb"
    whole = record.read_bytes()
    place = len(whole) // 2
    try:
        record.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        edited = toy.call("runbook", "verify", "local", "--runs", campaign.runs)
        edited_findings = findings_of(toy, campaign)
    finally:
        record.write_bytes(whole)
    assert edited.code == 1
    assert {finding.file for finding in edited_findings} == {"records/04-training.ipynb"}
    (changed,) = [finding for finding in edited_findings if finding.kind == "changed"]
    assert changed.expected == f"sha256 {hashlib.sha256(whole).hexdigest()}"
    assert str(changed) in edited.text.splitlines()
    removed = campaign.folder / "metrics.jsonl"
    removed.rename(campaign.runs / "metrics.jsonl")
    lost_findings = findings_of(toy, campaign)
    (campaign.runs / "metrics.jsonl").rename(removed)
    assert ("missing", "metrics.jsonl") in [
        (finding.kind, finding.file) for finding in lost_findings
    ]


def findings_of(toy: Toy, campaign) -> list[Finding]:
    """Run `runbook verify`, which must fail, and return its findings."""
    ended = toy.call("runbook", "verify", "local", "--runs", campaign.runs, "--json")
    assert ended.code == 1, ended
    return [Finding(**finding) for finding in json.loads(ended.text)["findings"]]


def test_a_second_run_does_nothing_and_says_so(campaign, toy: Toy):
    before = tree(campaign.folder, without=("index.html", "manifest.json"))
    second = toy.run(campaign.runs)
    print(f"second run: {second.seconds:.1f} s")
    assert (second.code, second.executed(), second.verified()) == (0, [], list(PHASES)), second
    assert tree(campaign.folder, without=("index.html", "manifest.json")) == before
    assert "Report: " in second.text


def test_another_value_is_refused_and_named(campaign, toy: Toy):
    before = tree(campaign.folder)
    refused = toy.run(campaign.runs, "--set", "training.iterations=12")
    assert refused.code == 2
    changes = PhaseMessage.VALUE_CHANGED.fill(
        key="training.iterations",
        old=ITERATIONS,
        new=12,
        origin=" (--set training.iterations=12)",
    )
    remedies = PhaseMessage.KEEP_BOTH_OR_DO_AGAIN.fill(run="local")
    remedies += PhaseMessage.LONGER_TRAINING_GOES_ON.fill()
    refusal = PhaseMessage.FOLDER_OF_OTHER_VALUES.fill(
        folder=campaign.folder, changes=changes, remedies=remedies
    )
    assert refused.text == f"Error: {refusal}\n"
    assert tree(campaign.folder) == before


@pytest.mark.rotate(3, turn=0)
def test_redo_does_again_what_depends_on_it_and_keeps_what_was(campaign, toy: Toy, tmp_path):
    """Use a copy of the run folder, in which nothing refers to the old path."""
    folder = tmp_path / "local"
    shutil.copytree(campaign.folder, folder)
    before = tree(folder, without=("manifest.json", "index.html"))
    words = (
        "--set",
        "training.iterations=8",
        "--set",
        "training.rehearse_stop=0",
        "--redo",
        "training",
    )
    redone = toy.run(tmp_path, *words)
    assert redone.code == 0, redone
    assert redone.executed() == ["00-plan", "04-training", "05-analysis", "06-evaluation"], redone
    assert redone.verified() == ["01-environment", "02-data", "03-smoke-test"]
    assert f"training.iterations: {ITERATIONS} -> 8" in redone.text
    (kept,) = (folder / "history").glob("04-training-*")
    assert (kept / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert {path.name for path in (kept / "checkpoints").iterdir()} >= {
        "latest_checkpointed_iteration.txt"
    }
    (asked,) = (folder / "history").glob("run-*")
    assert (asked / "run.yaml").read_bytes() == before["run.yaml"]
    history = {path.name.rpartition("-")[0] for path in (folder / "records" / "history").iterdir()}
    assert history == {"00-plan", "04-training", "05-analysis", "06-evaluation"}
    for name in ("records/04-training.json", "records/04-training.html"):
        suffix = name.rpartition(".")[2]
        (old,) = (folder / "records" / "history").glob(f"04-training-*.{suffix}")
        assert old.read_bytes() == before[name]
    assert json_of(folder / "records" / "04-training.json")["results"]["iterations"] == 8
    assert sorted(losses(folder)) == list(range(1, 9))
    assert losses(folder)[1] == losses(campaign.folder)[1], (
        "the same first loss whatever comes after"
    )
    assert toy.call("runbook", "verify", "local", "--runs", tmp_path).code == 0
    again = toy.run(tmp_path, *words[:4])
    assert again.verified() == list(PHASES)


def test_a_forged_loss_stops_the_run_and_never_becomes_its_record(campaign, toy: Toy, tmp_path):
    folder = tmp_path / "local"
    shutil.copytree(campaign.folder, folder)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    last = json.loads(lines[-1])
    lines[-1] = json.dumps(last | {"loss": last["loss"] - 1})
    metrics.write_text("\n".join(lines) + "\n")
    before = tree(folder)
    forged = toy.run(tmp_path, "--to", "05-analysis")
    assert forged.code == 1
    assert any(
        says(
            forged.text,
            RunMessage.STEP_OUTPUT_CHANGED,
            step="04-training--train",
            fault=fault.of(file="metrics.jsonl"),
        )
        for fault in (RunMessage.OUTPUT_CHANGED, RunMessage.OUTPUT_SIZE_CHANGED)
    ), forged
    assert forged.executed() == []
    assert tree(folder) == before
    redone = toy.run(tmp_path, "--redo", "05-analysis")
    assert redone.code == 1
    assert tree(folder) == before


def test_the_two_runs_are_told_apart_by_status(campaign, toy: Toy):
    shown = toy.call("runbook", "status", "--runs", campaign.runs)
    assert [line.split()[:3] for line in shown.text.splitlines()[2:]] == [
        ["local", "06-evaluation", "done"]
    ]


class _ReaderText(HTMLParser):
    """Return the text on a page as people read it, without code, pictures and scripts, and with a
    separator between table cells.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self._skipped = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("br", "hr", "img", "input", "link", "meta"):
            return
        is_code = dict(attrs).get("class") == "code" or tag in (
            "code",
            "script",
            "style",
            "svg",
            "title",
        )
        if self._skipped or is_code:
            self._skipped.append(tag)
        self.text += " | " if tag in ("td", "th", "div", "dd", "dt", "li", "p", "span") else ""

    def handle_endtag(self, tag):
        while self._skipped and self._skipped.pop() != tag:
            pass

    def handle_data(self, data):
        self.text += "" if self._skipped else data


def test_a_report_shows_no_long_numbers_no_bare_bytes_and_no_names_of_variables(campaign):
    """Exact values may only appear in titles and attributes.

    Counts remain whole numbers, and quotations remain unchanged.
    """
    quoted = (REPOSITORY / "runbook/results/published/published_results.csv").read_text()
    records = [*(campaign.folder / "records").glob("*.html")]
    for page in (*records, campaign.folder / "index.html", campaign.runs / "index.html"):
        text = re.sub(r"arXiv[: ]\d+\.\d+", "", _ReaderText(page.read_text()).text)
        assert len(text) > 200, page.name
        decimals = re.findall(r"(?<![\w.\-/])\d[\d,]*\.\d+(?:e[+-]?\d+)?(?![\w.]*[./]\w)", text)
        digits = {one: re.sub("[.,]", "", one.partition("e")[0]).lstrip("0") for one in decimals}
        assert [
            one
            for one, found in digits.items()
            if (len(found) > 4 or "e+" in one) and one not in quoted
        ] == [], page.name
        assert re.findall(r"\b\d[\d,]{4,} (?:bytes|B)\b", text) == [], page.name
        assert re.findall(r"(?<![\w/.=-])[a-z]+(?:_[a-z0-9]+)+(?![\w/=])", text) == [], page.name
