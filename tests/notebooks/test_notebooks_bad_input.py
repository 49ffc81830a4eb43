"""Unreadable text and a full disk lead to a clear error, which is recorded, and no data is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from suite.messages import containing, says
from toy_project import BIN, Toy, json_of

from runbook.core.messages import CoreMessage
from runbook.phases.messages import PhaseMessage
from runbook.records.manifest import verify_run
from runbook.tokens.messages import TokenMessage

pytestmark = pytest.mark.notebooks

ONE = ("--from", "data", "--to", "data")
GOOD = b'{"text": "' + b"The first time. " * 100 + b'"}\n'
EMPTY = b'{"text": ""}\n'
NOT_UTF8 = b'{"text": "caf\xe9"}\n'


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Write a text folder with good records, an empty record, and one that is not UTF-8."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(GOOD + EMPTY + NOT_UTF8 + GOOD)
    return folder


def test_text_that_is_not_utf_8_stops_the_phase_and_is_left_out_where_asked(
    toy: Toy, text, tmp_path
):
    folder = tmp_path / "runs" / "local"
    # There is too little text for a validation share.
    given = ("--set", f"data.folder={text}", "--set", "training.eval_interval=0")
    stopped = toy.run(tmp_path / "runs", *ONE, *given)
    assert stopped.code == 1
    assert says(stopped.text, PhaseMessage.PHASE_ENDED, phase="02-data", state="failed")
    problem = TokenMessage.RECORD_LEFT_OUT.of(
        path=text / "a.jsonl",
        place=TokenMessage.PLACE_IN_LINES.of(line=3, byte=len(GOOD + EMPTY)),
        reason=TokenMessage.INVALID_UTF8.of(),
    )
    failure = containing("DataError: ", TokenMessage.BAD_RECORD.of(problem=problem))
    assert says(stopped.text, PhaseMessage.PHASE_FAILED, message=failure)
    assert "Traceback" not in stopped.text
    twin = json_of(folder / "records" / "02-data.json")
    assert (twin["state"], twin["verdict"]) == ("failed", "fail")
    assert twin["reason"].startswith(f"DataError: {text}/a.jsonl, line 3")
    assert not list((folder / "data").glob("*.bin"))
    assert not (folder / "steps" / "02-data--tokenize.json").exists()
    words = (*given, "--set", "data.bad_records=skip")
    skipped = toy.run(tmp_path / "runs", *ONE, *words, "--redo", "data")
    assert skipped.code == 0, skipped
    assert says(
        skipped.text, PhaseMessage.VALUE_REPLACED, key="data.bad_records", old="stop", new="skip"
    )
    twin = json_of(folder / "records" / "02-data.json")
    assert (twin["state"], twin["verdict"]) == ("done", "warn")
    results = {key: twin["results"][key] for key in ("documents", "skipped_records", "empty")}
    assert results == {"documents": 3, "skipped_records": 1, "empty": 1}
    assert [check["value"] for check in twin["checks"] if check["name"] == "bad input"] == [
        PhaseMessage.BAD_INPUT.fill(records="1 record", files="0 files")
    ]
    assert verify_run(folder) == []


def test_a_file_that_cannot_be_written_whole_is_told_and_the_next_run_goes_on(
    toy: Toy, campaign, tmp_path
):
    """Limit file sizes to 3 MB, to imitate a full disk. The corpus tokens take 6.7 MB."""
    runs = tmp_path / "runs"
    command = f"ulimit -f 3000; exec {BIN}/runbook run local --from data --to data --runs {runs}"
    full = toy.call("bash", "-c", command)
    assert full.code == 1
    assert says(full.text, PhaseMessage.PHASE_ENDED, phase="02-data", state="failed")
    full_disk = TokenMessage.WRITE_FAILED.of(
        reason=TokenMessage.FILE_LIMIT_REACHED.fill(), folder=f"{runs}/local/data"
    )
    assert says(full.text, PhaseMessage.PHASE_FAILED, message=containing("DataError: ", full_disk))
    assert "Traceback" not in full.text
    folder = runs / "local"
    twin = json_of(folder / "records" / "02-data.json")
    assert twin["state"] == "failed"
    assert not (folder / "data" / "corpus_text_document.bin").exists()
    assert not (folder / "steps" / "02-data.json").exists()
    finished = toy.run(runs, *ONE)
    assert finished.code == 0, finished
    for name in ("corpus_text_document.bin", "corpus_text_document.idx"):
        assert (folder / "data" / name).read_bytes() == (
            campaign.folder / "data" / name
        ).read_bytes()
    assert verify_run(folder) == []


def test_a_folder_that_cannot_hold_even_the_plan_is_told_and_left_as_it_was(toy: Toy, tmp_path):
    runs = tmp_path / "runs"
    command = f"ulimit -f 1; exec {BIN}/runbook run local --from data --to data --runs {runs}"
    full = toy.call("bash", "-c", command)
    assert full.code == 1
    assert full.text.startswith("Error: ")
    too_large = os.strerror(errno.EFBIG)
    assert any(
        says(full.text, CoreMessage.NOT_WRITTEN, path=containing(name), reason=too_large)
        for name in ("plan.json", "run.yaml")
    ), full
    assert "Traceback" not in full.text
    assert [
        path.name for path in (runs / "local").iterdir() if path.name not in ("run.yaml",)
    ] == []
