"""`runbook publish`: several runs in one folder, without links to anything outside it."""

from __future__ import annotations

import json
import re

import pytest
from made_run import write_run
from suite.messages import refuses

from runbook.core.errors import RecordError
from runbook.plan_file.phase_names import EVALUATION, FULL
from runbook.records.pages.front_page import FrontPage
from runbook.records.run_state import OUTDATED, RECORD_MISSING, UNREADABLE, read_run
from runbook.runs.step import write_mark
from runbook.tools.publish import published_site
from runbook.tools.publish.messages import PublishMessage
from runbook.tools.publish.published_site import copy_whole_run, publish
from runbook.tools.redact import redacted_copy
from runbook.tools.redact.redacted_copy import copy_redacted


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write two runs without plans, and replace what is read for their front pages."""
    front_page = lambda folder: FrontPage()  # noqa: E731
    monkeypatch.setattr(published_site, "read_front_page", front_page)
    folders = [write_run(tmp_path / "runs", name) for name in ("a", "b")]
    (folders[0] / "jobs" / "04-training").mkdir(parents=True)
    (folders[0] / "jobs" / "04-training" / "job.sh").write_text(
        "#SBATCH --account=account-of-the-job\n"
    )
    return folders


def test_every_link_of_a_published_page_leads_to_a_published_file(runs, tmp_path):
    index = publish(runs, tmp_path / "site", copy_whole_run)
    pages = sorted(index.parent.rglob("*.html"))
    assert len(pages) == 8
    for page in pages:
        text = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r'href="([^"#]+)', text):
            if not target.startswith(("data:", "http")):
                assert (page.parent / target).exists(), f"{page}: {target}"
    assert "sdk: static" in (index.parent / "README.md").read_text()


def test_job_scripts_and_logs_stay_at_home(runs, tmp_path):
    site = publish(runs, tmp_path / "site", copy_whole_run).parent
    assert not list(site.rglob("jobs"))
    assert not [
        path
        for path in site.rglob("*")
        if path.is_file() and b"account-of-the-job" in path.read_bytes()
    ]


def test_again_it_replaces_its_own_files_and_nothing_else(runs, tmp_path):
    site = publish(runs, tmp_path / "site", copy_whole_run).parent
    (site / ".git").mkdir()
    (site / ".git" / "HEAD").write_text("ref")
    (site / "README.md").write_text("mine")
    publish(runs[:1], site, copy_whole_run)
    assert (site / ".git" / "HEAD").read_text() == "ref"
    assert (site / "README.md").read_text() == "mine"
    assert (site / "a").exists() and not (site / "b").exists()
    assert not site.with_name("site.part").exists()


def test_a_folder_of_somebody_else_is_refused(runs, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    thesis = tmp_path / "thesis"
    with refuses(RecordError, PublishMessage.NOT_A_PUBLISHED_FOLDER, site=thesis):
        publish(runs, thesis, copy_whole_run)
    with refuses(RecordError, PublishMessage.NOTHING_TO_PUBLISH):
        publish([], tmp_path / "site", copy_whole_run)


@pytest.mark.parametrize("copy_run", [copy_whole_run, copy_redacted])
def test_outdated_results_and_lost_records_are_not_published_as_finished(
    runs, tmp_path, monkeypatch, copy_run
):
    """A copy has no done markers, which tell this: an outdated run was published as passed."""
    monkeypatch.setattr(redacted_copy, "read_front_page", published_site.read_front_page)
    outdated, broken = runs
    training = outdated / "records" / "04-training.json"
    for phase in (FULL, EVALUATION):
        record = json.loads(training.read_text())
        path = outdated / "records" / f"{phase}.json"
        path.write_text(json.dumps({**record, "phase": phase}))
    write_mark(outdated, EVALUATION, 1, "0" * 16, [])
    write_mark(outdated, f"{FULL}--train", 1, "1" * 16, [])
    (broken / "records" / "04-training.json").write_text("{")
    states = [read_run(folder).state for folder in runs]
    assert states == [OUTDATED, UNREADABLE]
    site = publish(runs, tmp_path / "site", copy_run).parent
    published = [read_run(site / folder.name) for folder in runs]
    assert published[0].state == OUTDATED and published[0].verdict == "unknown"
    assert published[1].state in (UNREADABLE, RECORD_MISSING)
    (broken / "records" / "04-training.json").unlink()
    publish(runs, site, copy_run)
    assert read_run(site / broken.name).state == RECORD_MISSING
