from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from log_lines import parse_lines
from suite.messages import assert_about, refuses, says

from runbook.cli.logs import logs
from runbook.cli.messages import CliMessage
from runbook.core.errors import DataError
from runbook.log_readers.messages import LogMessage
from runbook.log_readers.read import LogReader, parse_files
from runbook.tools.logs.exports import write_csv, write_json
from runbook.tools.logs.messages import SummaryMessage

SAMPLES = Path(__file__).parents[1] / "samples"


def line(iteration, loss=3.0, ms=500.0, norm=1.0):
    return (
        f" [2024-04-06 03:02:12] iteration {iteration:8d}/     100 | consumed samples: 9 |"
        f" elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-05 |"
        f" global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 |"
        f" grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def iterations(lines):
    return [(one.iteration, one.segment) for one in parse_lines(lines).records]


def test_going_back_starts_a_segment():
    text = [line(n, 3 - n / 100) for n in (1, 2, 3, 4, 5, 6)] + [
        line(n, 3 - n / 100, 501.0) for n in (2, 3, 7)
    ]
    assert iterations(text) == [
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 0),
        (5, 0),
        (6, 0),
        (2, 1),
        (3, 1),
        (7, 1),
    ]


def test_same_step_with_other_numbers_is_a_restart():
    assert iterations([line(5, 2.0), line(5, 2.1)]) == [(5, 0), (5, 1)]


def test_resume_at_the_next_step_is_a_segment_where_the_log_says_so():
    restarted = [line(1), "done with setup ...", line(2)]
    assert iterations(restarted) == [(1, 0), (2, 1)]


def test_copies_by_other_ranks_count_once_even_when_late():
    text = [f"{rank}: {line(n, 3 - n / 100)}" for n in (1, 2, 3) for rank in (0, 1)]
    text[2], text[3] = text[3], text[2]
    log = parse_lines(text)
    assert [one.iteration for one in log.records] == [1, 2, 3]
    note = LogMessage.COPIES_DROPPED.fill()
    assert log.notes == [LogMessage.COUNTED.fill(count=3, note=note)]


def test_late_copy_by_another_rank_is_dropped():
    assert iterations(
        [f"0: {line(1)}", f"0: {line(2, 2.9)}", f"1: {line(1)}", f"1: {line(2, 2.9)}"]
    ) == [
        (1, 0),
        (2, 0),
    ]


def test_files_of_two_ranks_are_one_run(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"{rank}.log").write_text("\n".join(line(n, 3 - n / 100) for n in range(1, 30)))
    log = parse_files([tmp_path / "0.log", tmp_path / "1.log"])
    assert len(log.records) == 29
    assert log.segments == 1


def test_files_of_two_starts_are_two_segments_and_a_cut_file_goes_on(tmp_path):
    (tmp_path / "a").write_text("\n".join(line(n, 3 - n / 100) for n in (1, 2, 3)))
    (tmp_path / "b").write_text("\n".join(line(n, 2.9 - n / 100) for n in (3, 4)))
    (tmp_path / "c").write_text("\n".join(line(n, 2.9 - n / 100) for n in (5, 6)))
    log = parse_files([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert [(one.iteration, one.segment, one.file) for one in log.records] == [
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
        (3, 1, 1),
        (4, 1, 1),
        (5, 1, 2),
        (6, 1, 2),
    ]
    assert log.source(log.records[4]) == f"{tmp_path / 'b'}:2"


def test_gzip_zstd_and_plain_are_the_same(tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    data = (SAMPLES / "megatron-core.log").read_bytes()
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data))
    (tmp_path / "xz").write_bytes(lzma.compress(data))
    (tmp_path / "bzip2").write_bytes(bz2.compress(data))
    (tmp_path / "zstd").write_bytes(zstd.compress(data))
    want = parse_files([tmp_path / "plain"])
    for name in ("packed", "zstd", "xz", "bzip2"):
        assert parse_files([tmp_path / name]).records == want.records


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_pipe_is_read_like_a_file(tmp_path, pack):
    """A shell gives one for `runbook logs <(zcat log.gz)`."""
    data = (SAMPLES / "megatron-core.log").read_bytes()[:20_000]
    (tmp_path / "log").write_bytes(data)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stream:
        stream.write(pack(data))
    piped = parse_files([Path(f"/dev/fd/{reader}")])
    os.close(reader)
    assert piped.records
    assert piped.records == parse_files([tmp_path / "log"]).records


@pytest.mark.parametrize("pack", ["gzip", "zstd", "xz"])
def test_cut_off_archive_gives_what_came_before_and_says_so(tmp_path, pack):
    compress = {"gzip": gzip.compress, "xz": lzma.compress}.get(pack)
    compress = compress or pytest.importorskip("backports.zstd").compress
    data = "\n".join(line(n, 3 - n / 1000, 500 + n * 7 % 13) for n in range(1, 3000)).encode()
    packed = compress(data)
    (tmp_path / "log").write_bytes(packed[: len(packed) // 2])
    log = parse_files([tmp_path / "log"])
    assert 100 < len(log.records) < 2999
    assert says(log.notes[-1], LogMessage.LOG_CUT_OFF, path=tmp_path / "log")


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"", "is empty"),
        (b"\x93NUMPY\x01\x00v\x00" * 50, "is binary data, not a log: nothing was read from it"),
    ],
)
def test_what_is_no_log_is_told(tmp_path, content, note):
    path = tmp_path / "log"
    path.write_bytes(content)
    log = parse_files([path])
    assert (log.format, log.records, log.unread_lines) == ("unknown", [], 0)
    assert log.notes == [f"{path} {note}"]


def test_missing_file_and_folder_say_what_to_give(tmp_path):
    absent = tmp_path / "absent"
    with refuses(DataError, LogMessage.LOG_MISSING, path=absent):
        parse_files([absent])
    with refuses(DataError, LogMessage.LOG_IS_A_FOLDER, path=tmp_path):
        parse_files([tmp_path])


def test_windows_line_ends_and_utf16_are_read(tmp_path):
    text = "\r\n".join(line(n, 3 - n / 100) for n in (1, 2))
    (tmp_path / "dos").write_bytes(text.encode())
    (tmp_path / "utf16").write_bytes(text.encode("utf-16"))
    for name in ("dos", "utf16"):
        assert [(one.iteration, one.line) for one in parse_files([tmp_path / name]).records] == [
            (1, 1),
            (2, 2),
        ]


def test_line_without_end_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "endless"
    with path.open("w") as stream:
        for _ in range(40):
            stream.write("x" * (1 << 20))
        stream.write("\n" + line(1))
    tracemalloc.start()
    log = parse_files([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.iteration for one in log.records] == [1]
    assert peak < 200 << 20


def test_quick_way_and_long_way_agree():
    text = [line(n, 3 - n / 100, 500 + n, 1 + n / 10) for n in range(1, 40)]
    quick = parse_lines(text).records
    slow = [parse_lines([one]).records[0] for one in text]
    assert [
        (a.iteration, a.loss, a.seconds, a.grad_norm, a.learning_rate, a.loss_scale, a.skipped)
        for a in quick
    ] == [
        (b.iteration, b.loss, b.seconds, b.grad_norm, b.learning_rate, b.loss_scale, b.skipped)
        for b in slow
    ]


def test_lines_may_come_piece_by_piece():
    reader = LogReader()
    reader.next_file("live")
    for n in (1, 2, 3):
        reader.feed([line(n, 3 - n / 100)])
    assert [one.line for one in reader.finish().records] == [1, 2, 3]


def test_json_is_one_object_with_the_keys_promised(tmp_path):
    with (tmp_path / "out").open("w") as stream:
        write_json(parse_files([SAMPLES / "bigscience.log"]), stream)
    found = json.loads((tmp_path / "out").read_text())
    assert list(found) == [
        "format",
        "files",
        "records",
        "validation",
        "notes",
        "unread_lines",
        "failures",
        "cause",
        "look_next",
        "first_error",
        "effects",
        "alarms",
    ]
    assert list(found["records"][0]) == [
        "iteration",
        "loss",
        "grad_norm",
        "learning_rate",
        "loss_scale",
        "seconds",
        "samples_per_second",
        "tokens_per_second",
        "tflops",
        "tflops_convention",
        "skipped",
        "nan",
        "segment",
        "states",
        "source",
    ]
    assert found["records"][-1]["states"] == ["cut_line"]
    assert found["records"][-1]["samples_per_second"] is None
    assert found["records"][0]["source"].endswith("bigscience.log:1")


def test_csv_has_empty_cells_for_what_is_not_said(tmp_path):
    with (tmp_path / "out").open("w") as stream:
        write_csv(parse_files([SAMPLES / "llmc-main.log"]), stream)
    head, first, _ = (tmp_path / "out").read_text().splitlines()
    assert head.startswith("iteration,loss,grad_norm,learning_rate,loss_scale,seconds")
    assert first.startswith("0,11.0191,15.37,1e-06,,,,,,,,,0,,")


def test_command_prints_json_and_tells_failure_by_its_exit_code(tmp_path):
    runner = CliRunner()
    done = runner.invoke(logs, [str(SAMPLES / "nanogpt.log"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["format"]) == (0, "nanogpt")
    (tmp_path / "empty.log").write_text("")
    failed = runner.invoke(logs, [str(tmp_path / "empty.log"), "--json"])
    assert json.loads(failed.stdout)["records"] == []
    empty = tmp_path / "empty.log"
    assert isinstance(failed.exception, DataError)
    assert_about(
        failed.exception,
        CliMessage.NO_RECORD_IN_LOGS,
        targets=empty,
        reason=LogMessage.LOG_EMPTY.fill(path=empty),
    )


def test_command_summary_names_states_sources_and_failures():
    text = CliRunner().invoke(logs, [str(SAMPLES / "megatron-v2.log")]).stdout
    assert says(
        text, SummaryMessage.RECORDS, format="megatron-lm", num_records=4, segments="1 segment"
    )
    assert says(text, SummaryMessage.STATE, count=1, state="all_skipped")
    assert "megatron-v2.log:5)" in text
    assert says(
        text,
        SummaryMessage.FAILURE,
        label="CAUSE",
        name="time limit",
        count=1,
        line=13,
        place="",
    )


def test_command_refuses_two_outputs():
    result = CliRunner().invoke(logs, [str(SAMPLES / "llmc.log"), "--json", "--csv"])
    assert result.exit_code == 2
    assert says(result.output, CliMessage.ONE_LOG_OUTPUT)
