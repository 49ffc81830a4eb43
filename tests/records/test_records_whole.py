"""The whole report in one file, the links to evidence, and the page of known failures."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from made_run import RECORD, data, notebook, write_run
from page_elements import texts_of
from suite.messages import containing, refuses, says

from runbook.core.errors import RunbookError
from runbook.records.engine.execute import file_finished_notebook
from runbook.records.manifest import verify_run
from runbook.records.messages import RecordMessage
from runbook.records.pages.front_page import write_front_page
from runbook.records.pages.notebook_page import LARGEST_PAGE, write_html
from runbook.records.pages.page_parts import links_for, write_help
from runbook.records.pages.whole_report import write_whole_report
from runbook.records.run_state import evidence_links
from runbook.results.failures.kinds import DEVICE_MEMORY, TITLE


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs")


def test_the_whole_report_is_one_page_with_its_own_anchors_and_no_link_to_a_part(run):
    text = write_whole_report(run).read_text()
    assert text.count("<html") == text.count("<main>") == text.count('id="record"') == 1
    assert 'href="#04-training-report"' in text
    assert 'id="04-training-report"' in text
    assert 'href="records/04-training.html"' not in text
    assert 'href="records/04-training.json"' in text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    inside = re.findall(r'href="#([^"]+)"', text)
    assert set(inside) <= set(ids)
    assert verify_run(run) == []


def test_made_again_from_the_same_pages_it_is_the_same(run):
    before = write_whole_report(run).read_bytes()
    write_front_page(run)
    assert write_whole_report(run).read_bytes() == before


def test_a_notebook_that_is_too_large_keeps_its_card_only(run):
    page = run / "records" / "04-training.html"
    page.write_text(page.read_text().replace("<main>", "<main>" + "<p>long</p>" * 300_000))
    whole = write_whole_report(run)
    assert whole.stat().st_size < LARGEST_PAGE
    link = containing('href="records/04-training.html"')
    assert says(whole.read_text(), RecordMessage.CELLS_ONLY_IN, report=link)
    assert "3.61803398875" in whole.read_text()


def test_script_log_and_metrics_of_the_newest_job_are_linked(run):
    for name, files in (
        ("04-training", ("job.sh", "job.json")),
        ("04-training-2", ("job.sh", "job.json", "out", "err")),
        ("04-training-10", ("job.sh", "job.json", "out")),
    ):
        (run / "jobs" / name).mkdir(parents=True)
        for file in files:
            (run / "jobs" / name / file).write_text("x")
    assert evidence_links(run, "04-training") == [
        ("script", "jobs/04-training-10/job.sh"),
        ("log", "jobs/04-training-10/out"),
        ("metrics", "metrics.jsonl"),
    ]
    assert evidence_links(run, "00-plan") == []
    page = write_html(run, "04-training").read_text()
    for name, target in (("Script", "jobs/04-training-10/job.sh"), ("Metrics", "metrics.jsonl")):
        assert f'<a href="../{target}">{name}</a>' in page
    assert '<a href="jobs/04-training-10/out">log</a>' in write_front_page(run).read_text()


def test_a_failure_leads_to_its_remedy(tmp_path):
    run = write_run(
        tmp_path / "runs",
        reason="JobError: torch.OutOfMemoryError: CUDA out of memory",
        verdict="fail",
        state="failed",
    )
    help_page = write_help(run.parent).read_text()
    target = "../../when-it-fails.html#device-out-of-memory"
    page = (run / "records" / "04-training.html").read_text()
    assert texts_of(page, "a", href=target) == [DEVICE_MEMORY.name]
    assert target[3:] in (run / "index.html").read_text()
    assert 'id="device-out-of-memory"' in help_page
    assert "Lower training.micro_batch" in help_page
    unknown_error = "something nobody knows"
    assert links_for(unknown_error, "") == [(TITLE, "when-it-fails.html")]


def test_a_notebook_that_lost_its_first_outputs_is_filed_by_its_name(run, tmp_path):
    output = "drawn by hand"
    content = notebook(data(text_plain=output))
    path = tmp_path / "04-training.ipynb"
    nbformat.write(content, path)
    filed = file_finished_notebook(path, run_folder=run)
    assert (filed.state, filed.notebook) == ("done", run / "records" / "04-training.ipynb")
    assert output in (run / "records" / "04-training.html").read_text()
    assert (
        json.loads((run / "records" / "04-training.json").read_text())["started"] == RECORD.started
    )
    with refuses(RunbookError, RecordMessage.NOTEBOOK_OF_NO_RUN, notebook=path):
        file_finished_notebook(path)
    other = write_run(tmp_path / "others", "other")
    with refuses(
        RunbookError, RecordMessage.RUN_IS_ANOTHER, belongs=containing("belongs to the run in")
    ):
        file_finished_notebook(other / "records" / "04-training.ipynb", run_folder=run)
