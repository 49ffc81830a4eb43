"""Done markers: what was finished, from which inputs, and whether it is unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import RecordError
from runbook.core.messages import CoreMessage
from runbook.records.done_marks import fingerprint, mark_path, read_mark
from runbook.records.messages import RecordMessage
from runbook.runs.step import StepState, step_status, write_mark


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"tokens")
    (tmp_path / "b.csv").write_text("x,y\n")
    write_mark(
        tmp_path,
        "02-data",
        1,
        "abc",
        [tmp_path / "data" / "a.bin", tmp_path / "b.csv"],
        verdict="pass",
    )
    return tmp_path


def test_a_fingerprint_depends_on_version_and_inputs_and_not_on_their_order():
    one = fingerprint(1, {"a": 1, "b": {"c": [1, 2], "d": None}})
    assert one == fingerprint(1, {"b": {"d": None, "c": [1, 2]}, "a": 1})
    others = [
        fingerprint(2, {"a": 1, "b": {"c": [1, 2], "d": None}}),
        fingerprint(1, {"a": 1, "b": {"c": [2, 1], "d": None}}),
        fingerprint(1, {"a": 1, "b": {"c": [1, 2]}}),
        fingerprint(1, {"a": "1", "b": {"c": [1, 2], "d": None}}),
    ]
    assert len({one, *others}) == 5
    assert len(one) == 16
    assert int(one, 16) >= 0


def test_what_was_made_is_done_until_something_changes(made: Path):
    assert step_status(made, "02-data", "abc").as_text() == ""
    assert step_status(made, "02-data", "abd").as_text() == StepState.INPUTS_CHANGED
    assert step_status(made, "03-smoke-test", "abc").as_text() == StepState.NOT_DONE
    mark = read_mark(made, "02-data")
    assert mark is not None
    assert [output.path for output in mark.outputs] == ["b.csv", "data/a.bin"]
    assert mark.facts == {"verdict": "pass"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "data/a.bin is missing"),
        (b"token", "data/a.bin has 5 bytes instead of 6"),
        (b"tokenz", "data/a.bin was changed after it was created"),
    ],
)
def test_a_lost_cut_or_changed_output_is_named(made: Path, content, told):
    (made / "data" / "a.bin").unlink()
    if content is not None:
        (made / "data" / "a.bin").write_bytes(content)
    assert step_status(made, "02-data", "abc").as_text() == told


DONE_MARK = {
    "meaning": RecordMessage.DONE_MARK.fill(),
    "remedy": RecordMessage.DELETE_MARK.fill(),
}


@pytest.mark.parametrize(
    "text", ["", "{", '{"step": "02-data"', "[]", "null", "7", '{"step": "02-data"}', '{"a": 1}']
)
def test_a_mark_cut_off_or_changed_by_hand_is_never_taken_for_done(made: Path, text):
    path = mark_path(made, "02-data")
    path.write_text(text)
    with refuses(RecordError, CoreMessage.RECORD_UNREADABLE, path=path, **DONE_MARK):
        step_status(made, "02-data", "abc")


def test_a_mark_that_is_not_text_is_refused_too(made: Path):
    path = mark_path(made, "02-data")
    path.write_bytes(b"\xff\xfe{}")
    with refuses(RecordError, CoreMessage.RECORD_UNREADABLE, path=path, **DONE_MARK):
        read_mark(made, "02-data")


def test_a_mark_cut_while_it_was_written_leaves_the_old_one(made: Path, monkeypatch):
    reason = "No space left on device"

    def no_space(*_):
        raise OSError(28, reason)

    before = mark_path(made, "02-data").read_bytes()
    monkeypatch.setattr("os.fsync", no_space)
    path = mark_path(made, "02-data")
    with refuses(RecordError, CoreMessage.NOT_WRITTEN, path=path, reason=reason):
        write_mark(made, "02-data", 1, "new", [made / "b.csv"])
    assert mark_path(made, "02-data").read_bytes() == before
    assert [path.name for path in (made / "steps").iterdir()] == ["02-data.json"]


def test_a_mark_over_a_file_that_is_not_there_is_not_written(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        write_mark(tmp_path, "02-data", 1, "abc", [tmp_path / "absent"])
    assert read_mark(tmp_path, "02-data") is None


def test_a_mark_reads_back_as_it_was_written(made: Path):
    mark = read_mark(made, "02-data")
    written = json.loads(mark_path(made, "02-data").read_text())
    assert mark is not None
    assert (written["step"], written["version"], written["fingerprint"]) == (
        mark.step,
        mark.version,
        "abc",
    )
    assert [output["sha256"] for output in written["outputs"]] == [
        output.sha256 for output in mark.outputs
    ]
