"""Recorded content stays unchanged, or the change is detected: record, manifest, verification,
history.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import RECORD, write_run
from suite.messages import containing, refuses

from runbook.core.errors import RecordError
from runbook.core.files import write_text
from runbook.core.messages import CoreMessage
from runbook.phases import run_report
from runbook.phases.training_outputs import move_to_history as set_outputs_aside
from runbook.plan_file.sample_order_file import CHECKSUMS, CachedFile, checksums_text
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import (
    Finding,
    earlier_records,
    note_files,
    read_manifest,
    records_agree,
    set_aside,
    verify_run,
    write_manifest,
)
from runbook.records.messages import RecordMessage
from runbook.records.pages.front_page import FrontPage
from runbook.records.phase_record import (
    find_phase_record,
    phase_record_as_dict,
    phase_record_path,
    read_phase_record,
    write_phase_record,
)

RECORD_FILE = {
    "meaning": RecordMessage.PHASE_RECORD.fill(),
    "remedy": RecordMessage.EXECUTE_AGAIN.fill(),
}
MANIFEST_FILE = {
    "meaning": RecordMessage.MANIFEST.fill(),
    "remedy": RecordMessage.RESTORE_MANIFEST.fill(),
}


@pytest.fixture
def run_folder(tmp_path) -> Path:
    return write_run(tmp_path / "runs")


def test_a_record_survives_its_file(tmp_path):
    write_phase_record(RECORD, tmp_path / "record.json")
    assert read_phase_record(tmp_path / "record.json") == RECORD
    keys = list(json.loads((tmp_path / "record.json").read_text()))
    assert keys[:5] == ["schema", "run", "phase", "state", "verdict"]
    check = json.loads((tmp_path / "record.json").read_text())["checks"][0]
    assert list(check) == ["name", "verdict", "value", "rule"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"state": "finished"},
            "state: Input should be 'done', 'failed', 'interrupted', 'timeout' or 'kernel-died'",
        ),
        ({"surprise": 1}, "surprise: Unexpected keyword argument"),
        ({"schema": 2}, "schema: Input should be 1"),
        ({"results": []}, "results: Input should be an object"),
        ({"reason": None}, "reason: Input should be a valid string"),
        ({"checks": [{"name": "a"}]}, "checks: 0: verdict: Field required"),
    ],
)
def test_a_record_of_another_shape_is_refused_by_name(tmp_path, change, problem):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(phase_record_as_dict(RECORD) | change))
    with refuses(
        RecordError, CoreMessage.RECORD_UNREADABLE, path=path, problem=problem, **RECORD_FILE
    ):
        read_phase_record(path)


def test_a_record_that_is_cut_off_or_missing_is_refused(tmp_path):
    absent = tmp_path / "none.json"
    with refuses(RecordError, RecordMessage.NOT_EXECUTED_YET, path=absent):
        read_phase_record(absent)
    (tmp_path / "half.json").write_text(json.dumps(phase_record_as_dict(RECORD))[:100])
    half = tmp_path / "half.json"
    with refuses(RecordError, CoreMessage.RECORD_UNREADABLE, path=half, **RECORD_FILE):
        read_phase_record(half)
    assert find_phase_record(tmp_path, "02-data") is None


def test_a_record_that_cannot_be_written_leaves_the_old_one_whole(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")
    (tmp_path / f".record.json.{os.getpid()}.part").symlink_to("/dev/full")
    with refuses(RecordError, CoreMessage.NOT_WRITTEN, path=path, reason=os.strerror(errno.ENOSPC)):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_an_untouched_run_verifies(run_folder):
    assert verify_run(run_folder) == []


def test_one_flipped_bit_is_found_in_any_file(run_folder):
    for name in read_manifest(run_folder):
        path = run_folder / name
        before = path.read_bytes()
        times = path.stat()
        path.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        findings = verify_run(run_folder)
        assert [finding.file for finding in findings if finding.kind == "changed"] == [name]
        assert findings[0].expected.startswith("sha256 ")
        path.write_bytes(before)


def test_a_changed_order_of_the_text_is_found_in_its_cache(run_folder):
    cache = run_folder / "data" / "cache"
    cache.mkdir(parents=True)
    order = cache / "ab-train-shuffle_index.npy"
    order.write_bytes(b"0123")
    digest = hashlib.sha256(b"0123").hexdigest()
    built = {order.name: CachedFile(4, digest)}
    (cache / CHECKSUMS).write_text(checksums_text(built))
    assert verify_run(run_folder) == []
    order.write_bytes(b"3210")
    (finding,) = verify_run(run_folder)
    assert (finding.kind, finding.file) == ("changed", f"data/cache/{order.name}")
    assert finding.expected == f"sha256 {digest}"


def test_an_order_whose_checksum_was_changed_too_is_found_by_the_checkpoint(run_folder):
    cache = run_folder / "data" / "cache"
    cache.mkdir(parents=True)
    order = cache / "ab-train-shuffle_index.npy"
    order.write_bytes(b"3210")
    built = {order.name: CachedFile(4, hashlib.sha256(b"3210").hexdigest())}
    (cache / CHECKSUMS).write_text(checksums_text(built))
    digest = hashlib.sha256(b"0123").hexdigest()
    metadata = run_folder / "checkpoints" / "iter_0000010" / "metadata.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"data_cache": {order.name: digest}}))
    found = [finding for finding in verify_run(run_folder) if finding.kind == "changed"]
    assert [(finding.file, finding.expected) for finding in found] == [
        (f"data/cache/{order.name}", f"sha256 {digest}")
    ]


def size_text(num_bytes: int) -> str:
    return RecordMessage.BYTES.fill(size=num_bytes)


def test_what_is_added_lost_cut_or_unreadable_is_named(run_folder):
    (run_folder / "extra.txt").write_text("hello")
    (run_folder / "metrics.jsonl").write_text("")
    (run_folder / "plan.json").unlink()
    recorded = read_manifest(run_folder)["metrics.jsonl"].bytes
    no_such_file = RecordMessage.NO_SUCH_FILE.fill()
    no_file = RecordMessage.NO_FILE.fill()
    assert verify_run(run_folder) == [
        Finding("added", "extra.txt", no_such_file, size_text(5)),
        Finding("changed", "metrics.jsonl", size_text(recorded), size_text(0)),
        Finding("missing", "plan.json", size_text(3), no_file),
    ]
    (run_folder / "plan.json").mkdir()
    kinds = {finding.file: finding.kind for finding in verify_run(run_folder)}
    assert kinds["plan.json"] in ("changed", "unreadable")


def test_files_that_may_change_are_left_out(run_folder):
    for name in (
        "lock.json",
        "jobs/04-training-1/heartbeat",
        "data/cache/index.npy",
        "replay/step-3/metrics.jsonl",
        "checkpoints/iter_1.part/model.pt",
    ):
        (run_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run_folder / name).write_text("x")
    assert verify_run(run_folder) == []


def test_a_later_phase_does_not_bless_an_edited_record(run_folder):
    page = run_folder / "records" / "04-training.html"
    page.write_text(page.read_text().replace("3.618", "2.618"))
    (run_folder / "records" / "04-training.ipynb").unlink()
    (run_folder / "metrics.jsonl").write_text("{}\n")
    write_manifest(run_folder, "05-analysis")
    assert {(finding.kind, finding.file) for finding in verify_run(run_folder)} == {
        ("changed", "metrics.jsonl"),
        ("changed", "records/04-training.html"),
        ("missing", "records/04-training.ipynb"),
    }


TRAINED = {
    "metrics.jsonl": '{"loss": 3.6}\n',
    "samples.jsonl": '{"ids": [1]}\n',
    "events.jsonl": '{"event": "saved"}\n',
    "jobs/04-training/out": "iteration 1\n",
    "jobs/04-training/job.sh": "exit 0\n",
    "jobs/04-training/exit_code": "0\n",
    "checkpoints/iter_0000010/weights": "weights",
    "plan.json": "{}\n",
}


@pytest.fixture
def trained(run_folder) -> Path:
    """Create a run with all files that training writes, recorded when training ends."""
    for name, text in TRAINED.items():
        (run_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run_folder / name).write_text(text)
    (run_folder / "manifest.json").unlink()
    write_manifest(run_folder, "04-training")
    assert verify_run(run_folder) == []
    return run_folder


@pytest.mark.parametrize("change", ["edited", "longer", "deleted"])
def test_neither_a_report_nor_a_later_phase_blesses_what_was_changed_after_the_record(
    trained, change, monkeypatch
):
    monkeypatch.setattr(run_report, "read_front_page", lambda folder: FrontPage())
    for name, text in TRAINED.items():
        if change == "deleted":
            (trained / name).unlink()
        else:
            (trained / name).write_text(text[1:] + "x" if change == "edited" else text + "x")
    write_phase_record(
        replace(RECORD, phase="05-analysis"), phase_record_path(trained, "05-analysis")
    )  # the grown files now belong to a finished phase
    run_report.write_report(trained)
    write_manifest(trained, "05-analysis", [phase_record_path(trained, "05-analysis")])
    growing = {"events.jsonl"} if change == "longer" else set()  # later phases append to it
    assert {finding.file for finding in verify_run(trained)} == set(TRAINED) - growing


def test_a_report_names_the_files_that_were_changed_before_it_was_written(trained, monkeypatch):
    monkeypatch.setattr(run_report, "read_front_page", lambda folder: FrontPage())
    pages = [trained / "index.html", trained / "report.html"]
    run_report.write_checked_report(trained)
    assert not any(RecordMessage.FILES_CHANGED_LATER.fill() in page.read_text() for page in pages)
    metrics = trained / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("3.6", "2.6"))
    run_report.write_checked_report(trained)
    assert all("changed: metrics.jsonl" in page.read_text() for page in pages)
    metrics.unlink()
    assert run_report.changed_files(trained) == ["missing: metrics.jsonl"]


def test_what_jobs_append_to_may_grow_until_its_phase_is_done_but_its_beginning_stays(trained):
    path = phase_record_path(trained, "04-training")
    record = find_phase_record(trained, "04-training")
    write_phase_record(replace(record, state=ExecutionState.INTERRUPTED, verdict="unknown"), path)
    note_files(trained, [path])
    for name in ("metrics.jsonl", "events.jsonl", "jobs/04-training/out"):
        with (trained / name).open("a") as stream:
            stream.write("more\n")
    assert {finding.file for finding in verify_run(trained) if finding.kind == "changed"} == set()
    (trained / "samples.jsonl").write_text("another beginning, and longer\n")
    write_phase_record(record, path)
    write_manifest(trained, "04-training", [path])
    assert [finding.file for finding in verify_run(trained)] == ["samples.jsonl"]
    assert read_manifest(trained)["metrics.jsonl"].bytes == len(TRAINED["metrics.jsonl"]) + 5


def test_the_phase_that_writes_a_file_records_it_again_but_not_the_files_of_a_job_that_has_ended(
    trained,
):
    (trained / "checkpoints/iter_0000010/weights").unlink()
    (trained / "checkpoints/iter_0000020").mkdir()
    (trained / "checkpoints/iter_0000020/weights").write_text("newer")
    (trained / "jobs/04-training/job.sh").write_text("exit 1\n")
    write_manifest(trained, "04-training")
    assert [(finding.kind, finding.file) for finding in verify_run(trained)] == [
        ("changed", "jobs/04-training/job.sh")
    ]


def test_what_is_set_aside_for_a_new_training_keeps_the_sums_it_had(trained):
    (trained / "metrics.jsonl").write_text('{"loss": 2.6}\n')
    history = set_outputs_aside(
        trained, "04-training", [trained / "metrics.jsonl", trained / "checkpoints"]
    )
    (trained / "metrics.jsonl").write_text("of the new training\n")
    write_manifest(trained, "04-training")
    changed = f"{history.relative_to(trained)}/metrics.jsonl"
    assert [(finding.kind, finding.file) for finding in verify_run(trained)] == [
        ("changed", changed)
    ]


def test_records_that_contradict_each_other_are_found_even_with_a_fresh_manifest(run_folder):
    record = find_phase_record(run_folder, "04-training")
    path = phase_record_path(run_folder, "04-training")
    write_phase_record(replace(record, verdict="fail"), path)
    note_files(run_folder, [path])
    expected_value = RecordMessage.VALUE_OF_RECORD.fill(key="verdict", value="fail")
    in_record = RecordMessage.VALUE_ONLY.fill(key="verdict", value="pass")
    assert verify_run(run_folder) == [
        Finding("contradiction", f"records/04-training{suffix}", expected_value, in_record)
        for suffix in (".html", ".ipynb")
    ]
    (run_folder / "records" / "04-training.ipynb").write_text("[]")
    assert [finding.kind for finding in records_agree(run_folder)] == ["unreadable"]
    path.write_text("{}")
    assert [finding.kind for finding in records_agree(run_folder)] == ["unreadable"]


def test_a_run_without_manifest_and_one_with_a_broken_one(run_folder):
    (run_folder / "manifest.json").write_text('{"schema": 1, "files": {"a": 3}}')
    path = run_folder / "manifest.json"
    with refuses(RecordError, CoreMessage.RECORD_UNREADABLE, path=path, **MANIFEST_FILE):
        verify_run(run_folder)
    (run_folder / "manifest.json").unlink()
    assert [finding.kind for finding in verify_run(run_folder)] == ["missing"]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".ipynb", '{"metadata": {"runbook": ["state"]}}'),
        (".ipynb", "[" * 100_000),
        (".ipynb", '{"metadata": {"runbook": {"state": "done"}}}'),
        (".html", "<![CDATAx["),
        (".html", ""),
        (".json", "[" * 100_000),
    ],
)
def test_a_damaged_record_is_found_even_where_it_was_recorded_so(run_folder, suffix, text):
    path = run_folder / "records" / f"04-training{suffix}"
    path.write_text(text)
    note_files(run_folder, [path])
    findings = verify_run(run_folder)
    assert {finding.file for finding in findings} == {f"records/{path.name}"}
    assert {finding.kind for finding in findings} <= {"unreadable", "contradiction"}


@pytest.mark.parametrize(
    "entry", ['{"bytes": "3", "sha256": "0"}', '{"bytes": null, "sha256": "0"}', "[]", "{}"]
)
def test_a_manifest_with_a_damaged_entry_is_refused(run_folder, entry):
    (run_folder / "manifest.json").write_text(f'{{"schema": 1, "files": {{"plan.json": {entry}}}}}')
    path = run_folder / "manifest.json"
    with refuses(RecordError, CoreMessage.RECORD_UNREADABLE, path=path, **MANIFEST_FILE):
        verify_run(run_folder)


def test_a_folder_that_cannot_be_listed_is_neither_whole_nor_forgotten(trained, monkeypatch):
    scandir = os.scandir

    def broken(path):
        if str(path).endswith("checkpoints"):
            raise OSError(5, "Input/output error", str(path))
        return scandir(path)

    before = (trained / "manifest.json").read_text()
    monkeypatch.setattr(os, "scandir", broken)
    for judge in (verify_run, lambda folder: write_manifest(folder, "04-training")):
        with refuses(
            RecordError,
            RecordMessage.FOLDER_NOT_LISTED,
            filename=containing("checkpoints"),
            reason="Input/output error",
        ):
            judge(trained)
    assert (trained / "manifest.json").read_text() == before


def test_an_unchanged_file_is_not_read_again(run_folder):
    """A file with the same size and time keeps its checksum, because checkpoints are large."""
    before = read_manifest(run_folder)["metrics.jsonl"]
    path = run_folder / "metrics.jsonl"
    path.chmod(0o000)
    try:
        write_manifest(run_folder)
    finally:
        path.chmod(0o644)
    assert read_manifest(run_folder)["metrics.jsonl"] == before


def test_history_never_overwrites(run_folder):
    moved = set_aside(run_folder, "04-training")
    names = [
        "04-training-20251121T060000Z.ipynb",
        "04-training-20251121T060000Z.html",
        "04-training-20251121T060000Z.json",
    ]
    assert [path.name for path in moved] == names
    assert verify_run(run_folder) == []
    for path in moved:
        (run_folder / "records" / f"04-training{path.suffix}").write_bytes(path.read_bytes())
    again = set_aside(run_folder, "04-training")
    assert [path.stem for path in again] == ["04-training-20251121T060000Z-2"] * 3
    assert len(earlier_records(run_folder, "04-training")) == 6
    assert set_aside(run_folder, "04-training") == []


def test_a_notebook_that_is_just_being_written_stays_while_one_left_by_a_killed_papermill_does_not(
    run_folder,
):
    notebook = run_folder / "records" / "04-training.ipynb"
    notebook.write_text("{}")
    assert [
        path.suffix for path in set_aside(run_folder, "04-training", keep_newer_notebook=True)
    ] == [
        ".html",
        ".json",
    ]
    assert notebook.exists()
    assert [path.suffix for path in set_aside(run_folder, "04-training")] == [".ipynb"]


def test_a_broken_record_is_set_aside_under_the_time_of_its_file(run_folder):
    (run_folder / "records" / "04-training.json").write_text("{")
    moved = set_aside(run_folder, "04-training")
    assert len(moved) == 3
    assert all(path.exists() for path in moved)
