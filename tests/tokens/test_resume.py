"""If a run is interrupted anywhere and started again, the result is the same, and finished work is
not repeated.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from suite.messages import containing, refuses, says

from runbook.core.errors import DataError, HeldError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.bin_writer import Committer
from runbook.tokens.pipeline.parts_folder import PartsFolder, ShardMark, hold_prefix, hold_share
from runbook.tokens.pipeline.tokenize import prepare, prepare_share
from runbook.tokens.pipeline.tokenize_options import TokenFiles, TokenizeOptions
from runbook.tokens.pipeline.worker_pool import Pool
from runbook.tokens.sources.input_files import cut_shards
from runbook.tokens.verification import verify

from .reference import expected, json_lines, made

PROGRAM = Path(__file__).with_name("run_prepare.py")


def start(
    source: Path, prefix: Path, workers: int, shard_bytes: int, *more: int, kill_after: int = 0
) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        str(PROGRAM),
        str(source),
        str(prefix),
        str(workers),
        str(shard_bytes),
        *map(str, more),
    ]
    env = os.environ | {"KILL_AFTER": str(kill_after)}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def committed(prefix: Path) -> int:
    """Return the committed shards according to their markers.

    A shard at its place in the .bin may still wait for others.
    """
    marks = PartsFolder(TokenFiles(prefix))
    if not marks.folder.exists():
        return 0
    found = [marks.read(number) for number in range(len(list(marks.folder.glob("*.mark"))))]
    return sum(mark is not None and mark.is_committed for mark in found)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_random_moments_gives_the_same_bytes(
    tmp_path: Path, many_texts: list[str], workers: int
) -> None:
    texts = many_texts * 16
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    prefix = tmp_path / "out"
    chance = random.Random(workers)
    done_before = 0
    for _ in range(5):
        process = start(source, prefix, workers, 60_000, kill_after=chance.randint(1, 12))
        _, err = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, err
        assert committed(prefix) > done_before, "a finished shard was lost"
        done_before = committed(prefix)
    process = start(source, prefix, workers, 60_000)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert made(prefix) == expected(texts)
    assert int(out.split()[0]) >= done_before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.jsonl",
        "out.manifest.json",
        "out_text_document.bin",
        "out_text_document.idx",
    ]


class StopError(Exception):
    pass


@pytest.fixture
def half_done(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Return the source and prefix for work that was stopped when some shards were done."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(many_texts))
    original = Committer.step

    def step(self: Committer) -> bool:
        if self.committed == 8:
            raise StopError
        return original(self)

    monkeypatch.setattr(Committer, "step", step)
    with pytest.raises(StopError):
        prepare([source], tmp_path / "out", TokenizeOptions(workers=1, shard_bytes=20_000))
    monkeypatch.undo()
    return source, tmp_path / "out"


def again(source: Path, prefix: Path, **changed: object) -> int:
    """Run again, and return the number of shards that were reused."""
    options = {"workers": 1, "shard_bytes": 20_000, **changed}
    return prepare([source], prefix, TokenizeOptions(**options)).reused_shards


def test_second_run_does_only_what_is_missing(
    half_done: tuple[Path, Path], many_texts: list[str]
) -> None:
    assert again(*half_done) == 8
    assert made(half_done[1]) == expected(many_texts)


def test_other_number_of_workers_takes_over(
    half_done: tuple[Path, Path], many_texts: list[str]
) -> None:
    assert again(*half_done, workers=2) == 8
    assert made(half_done[1]) == expected(many_texts)


def test_other_options_begin_anew(half_done: tuple[Path, Path], many_texts: list[str]) -> None:
    assert again(*half_done, append_eod=False) == 0
    assert made(half_done[1]) == expected(many_texts, append_eod=False)


def test_other_input_begins_anew(half_done: tuple[Path, Path], many_texts: list[str]) -> None:
    source, prefix = half_done
    source.write_bytes(json_lines(many_texts[:-1]))
    assert again(source, prefix) == 0
    assert made(prefix) == expected(many_texts[:-1])


def test_bytes_damaged_after_their_mark_are_made_again(
    half_done: tuple[Path, Path], many_texts: list[str]
) -> None:
    part = TokenFiles(half_done[1]).bin_part
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert 0 < again(*half_done) < 8
    assert made(half_done[1]) == expected(many_texts)


def test_unfinished_bin_cut_short_is_made_again(
    half_done: tuple[Path, Path], many_texts: list[str]
) -> None:
    part = TokenFiles(half_done[1]).bin_part
    os.truncate(part, part.stat().st_size // 3)
    assert 0 < again(*half_done) < 8
    assert made(half_done[1]) == expected(many_texts)


def test_half_written_mark_is_no_mark(half_done: tuple[Path, Path], many_texts: list[str]) -> None:
    mark = PartsFolder(TokenFiles(half_done[1])).path(3, "mark")
    mark.write_bytes(mark.read_bytes()[:-4])
    assert again(*half_done) == 3
    assert made(half_done[1]) == expected(many_texts)


@pytest.mark.parametrize("renamed", [1, 2])
def test_ended_between_the_last_renames(
    tmp_path: Path,
    corpus_file: Path,
    many_texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    renamed: int,
) -> None:
    from runbook.tokens.pipeline import tokenize

    def rename(source: Path, target: Path, *, original: Any) -> None:
        if Path(target).name == ("out_text_document.bin" if renamed == 1 else "out.manifest.json"):
            raise StopError
        original(source, target)

    monkeypatch.setattr(os, "rename", partial(rename, original=os.rename))
    monkeypatch.setattr(os, "replace", partial(rename, original=os.replace))
    with pytest.raises(StopError):
        prepare([corpus_file], tmp_path / "out", TokenizeOptions(workers=1, shard_bytes=20_000))
    monkeypatch.undo()
    assert (tmp_path / "out_text_document.bin").exists() == (renamed == 2)
    manifest = tokenize.prepare(
        [corpus_file], tmp_path / "out", TokenizeOptions(workers=1, shard_bytes=20_000)
    )
    assert manifest.reused_shards == len(manifest.shards)
    assert made(tmp_path / "out") == expected(many_texts)


def test_finished_work_is_recognised(tmp_path: Path, corpus_file: Path) -> None:
    first = prepare([corpus_file], tmp_path / "out")
    before = (tmp_path / "out_text_document.bin").stat().st_mtime_ns
    seen: list[DataProgress] = []
    second = prepare([corpus_file], tmp_path / "out", progress=seen.append)
    assert second.reused and not first.reused
    assert second == first
    assert [each.stage for each in seen] == ["done"]
    assert (tmp_path / "out_text_document.bin").stat().st_mtime_ns == before
    (tmp_path / "out_text_document.idx").unlink()
    assert not prepare([corpus_file], tmp_path / "out").reused


@pytest.mark.parametrize("place", [0, 0.5, 0.999])
def test_another_text_of_the_same_size_and_date_is_tokenized_again(
    tmp_path: Path, corpus_file: Path, place
) -> None:
    prepare([corpus_file], tmp_path / "out")
    before = corpus_file.stat()
    content = bytearray(corpus_file.read_bytes())
    letter = next(
        at for at in range(int(place * len(content)), len(content)) if chr(content[at]) in "aou"
    )
    content[letter] = ord("y")
    corpus_file.write_bytes(content)
    os.utime(corpus_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not prepare([corpus_file], tmp_path / "out").reused
    assert prepare([corpus_file], tmp_path / "out").reused


def test_other_spelling_of_the_prefix_is_the_same(tmp_path: Path, corpus_file: Path) -> None:
    prepare([corpus_file], tmp_path / "out")
    assert prepare([corpus_file], tmp_path / "out_text_document").reused


def test_parts_of_shards_that_came_too_early_are_joined(
    tmp_path: Path, many_texts: list[str]
) -> None:
    """Small files wait as parts while a large compressed file is tokenized, so that work continues."""
    from backports import zstd

    folder = tmp_path / "in"
    folder.mkdir()
    big = many_texts * 25
    (folder / "0.jsonl.zst").write_bytes(zstd.compress(json_lines(big)))
    for number in range(1, 9):
        (folder / f"{number}.jsonl").write_bytes(
            json_lines(many_texts[number * 10 : number * 10 + 10])
        )
    manifest = prepare([folder], tmp_path / "out", TokenizeOptions(workers=2, shard_bytes=3000))
    later = [text for number in range(1, 9) for text in many_texts[number * 10 : number * 10 + 10]]
    assert made(tmp_path / "out") == expected(big + later)
    assert manifest.documents == len(big) + len(later)


def test_more_tokens_than_memory_keeps_go_to_a_file(
    tmp_path: Path, corpus_file: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runbook.tokens.pipeline import bin_writer

    monkeypatch.setattr(bin_writer, "MEMORY", 1000)
    prepare([corpus_file], tmp_path / "out", TokenizeOptions(workers=1, shard_bytes=50_000))
    assert made(tmp_path / "out") == expected(many_texts)


@pytest.mark.parametrize("memory", [1000, 64 << 20])
def test_the_bin_is_hashed_while_it_is_written(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """The bytes are not read again, and a file that is withdrawn leaves nothing in the checksum."""
    from runbook.tokens.pipeline import bin_writer

    monkeypatch.setattr(bin_writer, "MEMORY", memory)
    monkeypatch.setattr(bin_writer.Committer, "step", lambda _: False)
    folder = tmp_path / "in"
    folder.mkdir()
    good = json_lines(many_texts[:40])
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(good))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(good * 40)[:-20])
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(json_lines(many_texts[40:])))
    manifest = prepare([folder], tmp_path / "out", TokenizeOptions(workers=1, bad_records="skip"))
    tokens, _ = expected(many_texts)
    assert (manifest.skipped_files, made(tmp_path / "out")[0]) == (1, tokens)
    assert manifest.files["bin"]["sha256"] == hashlib.sha256(tokens).hexdigest()


def test_two_runs_on_one_prefix(tmp_path: Path, corpus_file: Path) -> None:
    with (
        hold_prefix(TokenFiles(tmp_path / "out")),
        refuses(
            HeldError,
            TokenMessage.PARTS_HELD,
            owner=containing(f"{os.getpid()} on"),
            holder_text=containing("is tokenizing to", "out"),
        ),
    ):
        prepare([corpus_file], tmp_path / "out")
    prepare([corpus_file], tmp_path / "out")


def test_lock_of_a_dead_process_is_no_obstacle(tmp_path: Path, corpus_file: Path) -> None:
    parts = TokenFiles(tmp_path / "out").parts
    parts.mkdir()
    (parts / "lock").write_text("1\n")
    prepare([corpus_file], tmp_path / "out")


def test_a_killed_worker_is_replaced(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed at the moment it gets a shard, so that the shard is lost however fast
    the machine is.
    """
    texts = many_texts * 4
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    killed: list[int] = []
    last: list[DataProgress] = []
    original = Pool._deal

    def deal(self: Pool, worker: Any) -> None:
        original(self, worker)
        if (
            worker.shard is not None
            and worker.shard.number in (1, 5)
            and worker.shard.number not in killed
        ):
            killed.append(worker.shard.number)
            worker.process.kill()

    monkeypatch.setattr(Pool, "_deal", deal)
    manifest = prepare(
        [source],
        tmp_path / "out",
        TokenizeOptions(workers=2, shard_bytes=100_000),
        progress=last.append,
    )
    assert sorted(killed) == [1, 5]
    assert last[-1].failures == len(killed)
    assert (manifest.documents, made(tmp_path / "out")) == (len(texts), expected(texts))
    assert children() == []


def children() -> list[int]:
    import multiprocessing

    return [child.pid for child in multiprocessing.active_children() if child.pid]


def test_a_shard_that_kills_every_worker_is_named(tmp_path: Path, corpus_file: Path) -> None:
    def progress(now: DataProgress) -> None:
        for child in children():
            os.kill(child, signal.SIGKILL)

    with refuses(
        DataError, TokenMessage.WORKERS_DIED, attempts=3, when="starting", how="killed by signal 9"
    ):
        prepare(
            [corpus_file],
            tmp_path / "out",
            TokenizeOptions(workers=2, shard_bytes=100_000),
            progress=progress,
        )


def test_no_worker_outlives_a_killed_run(tmp_path: Path, many_texts: list[str]) -> None:
    import psutil

    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(many_texts * 40))
    process = start(source, tmp_path / "out", 2, 100_000)
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while not family and time.monotonic() < deadline:
        family = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.01)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert family and not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("workers", [1, 2])
def test_disk_full_keeps_what_is_done(tmp_path: Path, many_texts: list[str], workers: int) -> None:
    """RLIMIT_FSIZE simulates a full disk: writing fails in the middle of the .bin."""
    texts = many_texts * 4
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    prefix = tmp_path / "out"
    process = start(source, prefix, workers, 60_000, 300_000)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert err.startswith("DataError: ")
    reason = TokenMessage.FILE_LIMIT_REACHED.fill()
    assert says(err, TokenMessage.WRITE_FAILED, reason=reason, folder=tmp_path)
    assert not TokenFiles(prefix).manifest.exists() and not TokenFiles(prefix).bin.exists()
    assert committed(prefix) >= 3
    assert again(source, prefix, workers=workers, shard_bytes=60_000) >= 3
    assert made(prefix) == expected(texts)
    assert {check.name for check in verify(prefix) if check.verdict != "pass"} <= {
        "duplicates"
    }  # in generated texts


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_of_an_array_share_the_work(
    tmp_path: Path, corpus_file: Path, many_texts: list[str], workers: int
) -> None:
    """Run three jobs and lose one, then two jobs, and then one that joins the shards."""
    options = TokenizeOptions(workers=workers, shard_bytes=20_000)
    prefix = tmp_path / "out"
    total = len(cut_shards([corpus_file], 20_000))
    first = [prepare_share([corpus_file], prefix, (index, 3), options) for index in (0, 2)]
    assert [made for made, _ in first] == [len(range(index, total, 3)) for index in (0, 2)]
    second = [prepare_share([corpus_file], prefix, (index, 2), options) for index in (1, 0)]
    assert sum(made for made, _ in [*first, *second]) == total
    assert prepare_share([corpus_file], prefix, (0, 1), options) == (0, total)
    assert not TokenFiles(prefix).bin.exists()
    manifest = prepare([corpus_file], prefix, options)
    assert manifest.reused_shards == total
    assert made(prefix) == expected(many_texts)


def test_jobs_at_the_same_time(tmp_path: Path, corpus_file: Path, many_texts: list[str]) -> None:
    options = TokenizeOptions(workers=1, shard_bytes=20_000)
    prefix = tmp_path / "out"

    def another(_: DataProgress) -> None:
        with refuses(
            HeldError,
            TokenMessage.PARTS_HELD,
            owner=containing("on"),
            holder_text=containing("is tokenizing to"),
        ):
            prepare_share([corpus_file], prefix, (0, 2), options)
        with refuses(
            HeldError, TokenMessage.PARTS_HELD, holder_text=containing("is tokenizing to")
        ):
            prepare([corpus_file], prefix, options)
        if not PartsFolder(TokenFiles(prefix)).path(1, "mark").exists():
            prepare_share([corpus_file], prefix, (1, 2), options)

    prepare_share([corpus_file], prefix, (0, 2), options, progress=another)
    prepare([corpus_file], prefix, options)
    assert made(prefix) == expected(many_texts)


@pytest.mark.parametrize("share", [None, (0, 1)], ids=["everything", "a share"])
def test_work_interrupted_before_its_first_shard_leaves_nothing(
    tmp_path: Path, corpus_file: Path, share: tuple[int, int] | None
) -> None:
    prefix = tmp_path / "out/corpus"
    options = TokenizeOptions(workers=1, shard_bytes=20_000)

    def interrupt(_: DataProgress) -> None:
        assert TokenFiles(prefix).parts.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        if share is None:
            prepare([corpus_file], prefix, options, progress=interrupt)
        else:
            prepare_share([corpus_file], prefix, share, options, progress=interrupt)

    assert list(prefix.parent.iterdir()) == []


@pytest.fixture
def half_bad(tmp_path: Path) -> Path:
    """Return a text with two shards. The second has a bad record."""
    good = json_lines(["a document of some words"] * 3000)
    source = tmp_path / "in.jsonl"
    source.write_bytes(good + good + b"bad\n")
    return source


def test_a_refused_share_leaves_nothing(tmp_path: Path, half_bad: Path) -> None:
    options = TokenizeOptions(workers=1, shard_bytes=130_000)
    with refuses(DataError, TokenMessage.BAD_RECORD):
        prepare_share([half_bad], tmp_path / "out", (1, 2), options)
    assert list(tmp_path.iterdir()) == [half_bad]


def test_a_refused_share_keeps_the_work_of_other_jobs(tmp_path: Path, half_bad: Path) -> None:
    options = TokenizeOptions(workers=1, shard_bytes=130_000)
    prefix = tmp_path / "out"
    files = TokenFiles(prefix)
    # Another job has begun, and has no finished shard.
    with hold_share(files, "share-0-of-2"):
        with refuses(DataError, TokenMessage.BAD_RECORD):
            prepare_share([half_bad], prefix, (1, 2), options)
        assert files.parts.exists()

    assert prepare_share([half_bad], prefix, (0, 2), options) == (1, 1)
    with refuses(DataError, TokenMessage.BAD_RECORD):
        prepare_share([half_bad], prefix, (1, 2), options)
    assert prepare_share([half_bad], prefix, (0, 2), options) == (0, 1)


def test_a_refused_share_removes_nothing_where_it_cannot_lock_the_folder(
    tmp_path: Path, half_bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job of the array may work in the folder. Lustre without flock returns ENOSYS."""

    def no_lock(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_lock)
    options = TokenizeOptions(workers=1, shard_bytes=130_000)
    with refuses(DataError, TokenMessage.BAD_RECORD):
        prepare_share([half_bad], tmp_path / "out", (1, 2), options)
    assert TokenFiles(tmp_path / "out").parts.exists()


def test_a_starting_job_waits_for_one_that_removes_the_folder(
    tmp_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wait, a refused job could stop an array job that starts at the same time."""
    prefix = tmp_path / "out"
    options = TokenizeOptions(workers=1, shard_bytes=20_000)
    with ExitStack() as removing:
        removing.enter_context(hold_prefix(TokenFiles(prefix)))
        monkeypatch.setattr("time.sleep", lambda _: removing.close())
        num_made, num_shards = prepare_share([corpus_file], prefix, (0, 1), options)

    assert num_made == num_shards


def test_damaged_part_is_made_again(
    tmp_path: Path, corpus_file: Path, many_texts: list[str]
) -> None:
    options = TokenizeOptions(workers=1, shard_bytes=20_000)
    prepare_share([corpus_file], tmp_path / "out", (0, 1), options)
    path = PartsFolder(TokenFiles(tmp_path / "out")).path(4, "tokens")
    path.write_bytes(bytes(path.stat().st_size))
    manifest = prepare([corpus_file], tmp_path / "out", options)
    assert manifest.reused_shards == len(manifest.shards) - 1
    assert made(tmp_path / "out") == expected(many_texts)


def test_share_outside_the_array(tmp_path: Path, corpus_file: Path) -> None:
    with refuses(DataError, TokenMessage.SHARE_OUT_OF_RANGE, index=4, count=4):
        prepare_share([corpus_file], tmp_path / "out", (4, 4))


def test_shards_that_are_written_and_not_committed_are_kept(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker continues with its next shard before the parent has hashed the last one, so a kill
    costs only the next shard.
    """
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(many_texts))
    prefix = tmp_path / "out"
    finished: list[int] = []
    original = Committer.finished

    def stop(self: Committer, mark: ShardMark) -> None:
        original(self, mark)
        finished.append(mark.shard)
        if len(finished) == 9:
            raise StopError

    monkeypatch.setattr(Committer, "finished", stop)
    monkeypatch.setattr(Committer, "step", lambda _: False)  # nothing is hashed
    monkeypatch.setattr(Committer, "has_work", True)
    with pytest.raises(StopError):
        prepare([source], prefix, TokenizeOptions(workers=2, shard_bytes=20_000))
    monkeypatch.undo()
    assert not any(
        mark.is_committed
        for number in finished
        if (mark := PartsFolder(TokenFiles(prefix)).read(number))
    )
    part = TokenFiles(prefix).bin_part
    content = bytearray(part.read_bytes())
    content[-3] ^= 1  # a byte of the last shard in the .bin
    part.write_bytes(content)
    # Of nine finished shards, at most one is damaged. Each of the two workers may have finished
    # another shard before it was stopped.
    assert 8 <= again(source, prefix) <= 11
    assert made(prefix) == expected(many_texts)


def test_a_place_after_a_file_that_changed_is_not_trusted(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped when both files are in the .bin but neither is hashed.

    Then the first file loses a document, and the tokens from the second file move.
    """
    folder = tmp_path / "in"
    prefix = tmp_path / "out"
    folder.mkdir()
    texts = [many_texts[:20], many_texts[20:60]]
    for number, part in enumerate(texts):
        (folder / f"{number}.jsonl").write_bytes(json_lines(part))
    options = TokenizeOptions(workers=2, shard_bytes=max(len(json_lines(part)) for part in texts))
    original = Committer.finished
    marks = []

    def stop(self: Committer, mark: ShardMark) -> None:
        original(self, mark)
        marks.append(mark)
        if len(self.waiting) == len(self.fingerprints):
            raise StopError

    monkeypatch.setattr(
        "runbook.tokens.pipeline.bin_writer.TURN_SHARE", 1000
    )  # so that no shard becomes a part
    with monkeypatch.context() as stopped:
        stopped.setattr(Committer, "finished", stop)
        stopped.setattr(Committer, "step", lambda _: False)
        stopped.setattr(Committer, "has_work", True)
        with pytest.raises(StopError):
            prepare([folder], prefix, options)
    assert not any(mark.waits or mark.is_committed for mark in marks)
    (folder / "0.jsonl").write_bytes(json_lines(texts[0][1:]))
    prepare([folder], prefix, options)
    assert made(prefix) == expected(texts[0][1:] + texts[1])


def test_a_worker_killed_in_the_middle_of_a_message_is_replaced(
    tmp_path: Path, many_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(many_texts))
    original = Pool._answer
    cut = []

    def answer(self: Pool, worker: Any, message: tuple[Any, ...]) -> None:
        if message[0] == "done" and not cut:
            cut.append(message)
            worker.process.kill()
            raise OSError("got end of file during message")  # what Connection.recv raises then
        original(self, worker, message)

    monkeypatch.setattr(Pool, "_answer", answer)
    prepare([source], tmp_path / "out", TokenizeOptions(workers=2, shard_bytes=100_000))
    assert cut and made(tmp_path / "out") == expected(many_texts)


def test_finished_work_is_no_reason_to_take_the_folder_of_another_run(
    tmp_path: Path, corpus_file: Path
) -> None:
    """Another run has begun, for example with other options, and has not yet removed the manifest."""
    files = TokenFiles(tmp_path / "out")
    prepare([corpus_file], files.prefix)
    with hold_prefix(files):
        assert prepare([corpus_file], files.prefix).reused
        assert files.parts.is_dir()
    assert prepare([corpus_file], files.prefix).reused
    assert not files.parts.exists()


def test_text_of_parts_that_other_jobs_made_is_not_this_call_s(
    tmp_path: Path, corpus_file: Path
) -> None:
    options = TokenizeOptions(workers=1, shard_bytes=50_000)
    prepare_share([corpus_file], tmp_path / "out", (0, 1), options)
    seen: list[DataProgress] = []
    manifest = prepare([corpus_file], tmp_path / "out", options, progress=seen.append)
    assert manifest.reused_shards == len(manifest.shards) > 1
    assert {moment.mb_per_second for moment in seen} == {0.0}
    assert manifest.rates["wall"] == 0.0


def test_work_that_another_start_finished_before_the_lock_is_not_done_again(
    tmp_path: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TokenFiles(tmp_path / "out")

    def hold_late(held: TokenFiles) -> AbstractContextManager[None]:
        monkeypatch.undo()
        assert not prepare([corpus_file], files.prefix).reused
        return hold_prefix(held)

    monkeypatch.setattr("runbook.tokens.pipeline.tokenize.hold_prefix", hold_late)
    assert prepare([corpus_file], files.prefix).reused
    assert not files.parts.exists()


def test_jobs_of_an_array_are_not_called_by_the_name_of_an_earlier_run(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path / "out")
    with hold_prefix(files):
        pass
    several = refuses(
        HeldError,
        TokenMessage.PARTS_HELD,
        owner="(one of several jobs)",
        holder_text=containing("is tokenizing"),
    )
    with hold_share(files, "share-0-of-2"), several, hold_prefix(files):
        pass
