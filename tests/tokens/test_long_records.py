"""A record longer than the limit is refused or left out, depending on the policy for bad records,
and is never held in memory.
"""

import json
import subprocess
import sys

import pytest

from runbook.core.errors import DataError
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.sources.input_files import BLOCK

SHORT = json.dumps({"text": "a short text"}).encode() + b"\n"
LONG = json.dumps({"text": "long " * (BLOCK // 4)}).encode() + b"\n"


def options(limit, policy="skip", **others):
    return TokenizeOptions(max_record_bytes=limit, bad_records=policy, workers=1, **others)


@pytest.mark.parametrize("limit", [100, 1000, len(LONG) - 2])
@pytest.mark.parametrize("shard_bytes", [40_000, 64_000_000])
def test_lines_around_a_long_one_are_read_wherever_the_file_is_cut(tmp_path, limit, shard_bytes):
    source = tmp_path / "text.jsonl"
    source.write_bytes(SHORT + LONG + SHORT * 3 + LONG + SHORT * 2 + LONG[:-1])
    manifest = prepare([source], tmp_path / "out", options(limit, shard_bytes=shard_bytes))
    assert (manifest.documents, manifest.skipped_records, manifest.records) == (6, 3, 9)
    assert len(LONG) > BLOCK


def test_a_record_of_the_limit_itself_is_read(tmp_path):
    source = tmp_path / "text.jsonl"
    source.write_bytes(SHORT + LONG)
    assert prepare([source], tmp_path / "out", options(len(LONG), "stop")).documents == 2


def test_by_default_the_work_stops_at_it_and_names_both_options(tmp_path):
    source = tmp_path / "text.jsonl"
    source.write_bytes(SHORT + LONG)
    with pytest.raises(DataError) as error:
        prepare([source], tmp_path / "out", options(1000, "stop"))
    for word in (f"{len(LONG):,} bytes", "1,000", "data.max_record_bytes", "--max-record-bytes"):
        assert word in str(error.value)


def test_the_quarantine_holds_its_beginning_only(tmp_path):
    source = tmp_path / "text.jsonl"
    source.write_bytes(SHORT + LONG)
    prepare([source], tmp_path / "out", options(1000, "quarantine"))
    assert (tmp_path / "out.quarantine").stat().st_size < 2000


@pytest.mark.parametrize("name", ["text.txt", "text.parquet"])
def test_other_kinds_of_files_have_the_limit_too(tmp_path, name):
    source = tmp_path / name
    (tmp_path / "short.jsonl").write_bytes(SHORT)
    if name.endswith("parquet"):
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.table({"text": ["x" * 2000]}), source)
    else:
        source.write_text("x" * 2000)
    inputs = [source, tmp_path / "short.jsonl"]
    assert prepare(inputs, tmp_path / "out", options(1000)).skipped_records == 1


def test_the_default_limit_is_in_no_manifest_so_that_older_ones_stay_valid():
    assert "max_record_bytes" not in TokenizeOptions().choices()
    assert TokenizeOptions(max_record_bytes=5).choices()["max_record_bytes"] == 5


def test_a_line_of_gigabytes_in_a_small_file_takes_no_memory(tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    source = tmp_path / "bomb.jsonl.zst"
    with zstd.open(source, "wb") as file:
        file.write(b'{"text": "')
        for _ in range(64):
            file.write(b"a" * (16 << 20))
        file.write(b'"}\n' + SHORT)
    assert source.stat().st_size < 200_000
    code = (
        "import sys\n"
        "from runbook.tokens.sources.documents import Parser, read_documents\n"
        "from runbook.tokens.sources.input_files import find_inputs, Segment\n"
        "from pathlib import Path\n"
        "path = Path(sys.argv[1]); state = path.stat()\n"
        "segment = Segment(str(path), 0, state.st_size, state.st_size, state.st_mtime_ns)\n"
        "batches = list(read_documents(segment, Parser('text', '', 64 << 20)))\n"
        "print(sum(len(batch.texts) for batch in batches), sum(len(batch.bad) for batch in batches))\n"
        # Not ru_maxrss, because a child begins with the peak of the process that started it.
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(source)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said[:2] == ["1", "1"]
    assert int(said[2]) < 400_000, "KiB; the line has 1 GiB"
