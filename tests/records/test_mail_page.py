"""The report to mail: short, self-contained, with its records inside, and a first sentence for a
manager.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import pytest
from made_run import RECORD, write_run

from runbook.core.checks import Check
from runbook.plan_file.phase_names import PHASES
from runbook.records.manifest import verify_run
from runbook.records.messages import RecordMessage
from runbook.records.pages import attachments
from runbook.records.pages.front_page import FrontPage, write_front_page
from runbook.records.pages.plan_section import without_repeated_remarks
from runbook.records.pages.summary import summarize
from runbook.records.phase_record import write_phase_record
from runbook.records.run_state import read_run
from runbook.results.scores import Score

OPEN = Check("plan came true", "warn", "throughput 21 %", "within 50 %")


def finished_run(runs, *open_checks):
    """Write a run with a record for every phase.

    The last phase has these checks in addition to one that passed.
    """
    run_folder = write_run(runs)
    for phase in PHASES:
        verdict = "warn" if open_checks else "pass"
        record = replace(
            RECORD, phase=phase, verdict=verdict, checks=(*RECORD.checks, *open_checks)
        )
        write_phase_record(record, run_folder / "records" / f"{phase}.json")
    return run_folder


def mailed(run_folder, outcome=None):
    write_front_page(run_folder, outcome)
    return (run_folder / "report.html").read_text()


def test_it_leads_nowhere_but_into_itself(tmp_path):
    text = mailed(write_run(tmp_path / "runs"))
    targets = re.findall(r'href="([^"]*)"', text)
    assert targets
    assert all(target.startswith(("#", "data:")) for target in targets)
    inside = {target[1:] for target in targets if target.startswith("#")}
    assert inside <= set(re.findall(r'id="([^"]+)"', text))
    assert "default-src 'none'" in text
    assert verify_run(tmp_path / "runs" / "toy") == []


def test_the_records_travel_whole_and_without_secrets(tmp_path):
    run_folder = write_run(tmp_path / "runs")
    token = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    (run_folder / "run.yaml").write_text(f"run: toy\nnote: {token}\n")
    text = mailed(run_folder)
    files = dict(re.findall(r'download="toy-([^"]+)" href="data:[\w/]+;base64,([^"]+)"', text))
    record = json.loads(base64.b64decode(files["04-training.json"]))
    assert record == json.loads((run_folder / "records" / "04-training.json").read_text())
    assert token not in base64.b64decode(files["run.yaml"]).decode()
    assert "note: " in base64.b64decode(files["run.yaml"]).decode()


def test_a_file_too_large_for_a_mail_is_only_named(tmp_path, monkeypatch):
    run_folder = write_run(tmp_path / "runs")
    monkeypatch.setattr(attachments, "LARGEST_ATTACHED", 100)
    text = mailed(run_folder)
    files = {file.name: file for file in attachments.attachments(run_folder)}
    large = files["04-training.json"]
    assert large.content == ""
    assert RecordMessage.FILE_TOO_LARGE.fill(name=large.name, size=large.shown_size) in text
    assert 'download="toy-04-training.json"' not in text
    assert 'download="toy-run.yaml"' in text


def test_checks_that_did_not_pass_stand_open_and_the_others_are_folded(tmp_path):
    text = mailed(finished_run(tmp_path / "runs", OPEN))
    open_part = text.partition('id="checks"')[2].partition("<details>")[0]
    assert open_part.count(OPEN.name) == len(PHASES)
    assert "first loss" not in open_part
    assert f"{len(PHASES)} checks passed</summary>" in text
    assert "<p>None.</p>" in mailed(finished_run(tmp_path / "others"))


@pytest.mark.parametrize(
    ("state", "answer", "next_step"),
    [
        ("pass", "Yes: all 7 phases are done, and all 7 checks passed.", "runbook export toy"),
        ("warn", "Done, with 7 of 14 checks to look at", "Decide whether the checks below"),
        ("part", "It is not finished: 1 of 7 phases are done.", "continues with 00-plan"),
        ("failed", "1 phases are done; 04-training ended as: failed", "Fix the cause"),
        ("running", "It is running 04-training", "runbook status toy"),
    ],
)
def test_a_manager_reads_whether_it_is_good_and_what_is_next(tmp_path, state, answer, next_step):
    runs = tmp_path / "runs"
    if state in ("pass", "warn"):
        run_folder = finished_run(runs, *([OPEN] if state == "warn" else []))
    else:
        run_folder = write_run(runs)
    if state == "failed":
        record = replace(RECORD, state="failed", verdict="fail", reason="CUDA out of memory")
        write_phase_record(record, run_folder / "records" / "04-training.json")
        answer = answer.replace("1 phases", "0 of 7 phases")
    run = read_run(run_folder)
    if state == "running":
        run = replace(run, state="running")
    summary = summarize(run, [(1, 10.8), (100, 3.6)], [Score("corpus", "bits per byte", 9, 4.6, 2)])
    assert answer in summary.answer
    assert next_step in summary.next_step
    score = RecordMessage.SCORE_WENT.fill(
        name="Corpus", measure="bits per byte", before="4.6", after="2", change="better"
    )
    assert summary.result == f"{RecordMessage.LOSS_WENT.fill(first=10.8, last=3.6)} {score}"
    assert summary.asked == RecordMessage.NOTHING_PLANNED.fill()


def test_a_remark_stands_once_in_a_phase():
    remark = "warm-up left out"
    rows = [
        {"phase": "04-training", "what": "step time (s)", "remark": remark},
        {"phase": "04-training", "what": "throughput", "remark": remark},
        {"phase": "03-smoke-test", "what": "throughput", "remark": remark},
    ]
    remarks = [row["remark"] for row in without_repeated_remarks(rows)]
    assert remarks == [remark, "", remark]


def test_made_again_from_the_same_records_it_is_the_same(tmp_path):
    run_folder = finished_run(tmp_path / "runs")
    outcome = FrontPage(("before", "after"))
    assert mailed(run_folder, outcome) == mailed(run_folder, outcome)
