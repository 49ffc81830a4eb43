"""Downloads from a server on 127.0.0.1 that refuses requests, truncates files and lies. Every file
is complete and checked, or reported as missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from time import monotonic, time

import pytest
from backports import zstd
from suite.messages import containing, refuses, says

from runbook.core.errors import DataError, HeldError
from runbook.params.catalogues import read_datasets
from runbook.params.schema.entries import Dataset, FileGroup, SourceFile
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.parts_folder import flocked
from runbook.tokens.sources.dataset_files import expected_files
from runbook.tokens.sources.download import DownloadSummary, download

from .server import Behaviour, hub_tree, serving

DOWNLOAD = "runbook.tokens.sources.download."
NAMES = [f"part_{number}.jsonl.zst" for number in range(6)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {
        "FIRST_WAIT_SECONDS": 0.01,
        "LONGEST_WAIT_SECONDS": 0.05,
        "BUSY_SECONDS": 5.0,
        "SILENCE_SECONDS": 0.4,
    }
    for name, value in {"ATTEMPTS": 4, **quick}.items():
        monkeypatch.setattr(DOWNLOAD + name, value)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def content(number: int) -> bytes:
    return zstd.compress(random.Random(number).randbytes(30_000 + number))


@pytest.fixture
def server() -> Iterator[Behaviour]:
    with serving(
        Behaviour(files={f"/data/{name}": content(number) for number, name in enumerate(NAMES)})
    ) as behaviour:
        yield behaviour


def dataset(server: Behaviour, *, sums: bool = True, **changed: object) -> Dataset:
    files = [
        SourceFile(
            path=name,
            bytes=len(content(number)),
            sha256=hashlib.sha256(content(number)).hexdigest(),
        )
        if sums
        else SourceFile(path=name)
        for number, name in enumerate(NAMES)
    ]
    known = {
        "title": "Tests",
        "kind": "download",
        "folder": "texts",
        "licence": "ours",
        "source": "here",
    }
    return Dataset(**(known | {"files": files, "url": f"{server.address}/data"} | changed))


def fetch(
    server: Behaviour, project: Path, *, sums: bool = True, **more: object
) -> DownloadSummary:
    return download(dataset(server, sums=sums), project=project, workers=3, **more)


def assert_whole(project: Path) -> None:
    found = {
        path.name: path.read_bytes()
        for path in (project / "texts").iterdir()
        if path.name != ".download.lock"
    }
    assert found == {name: content(number) for number, name in enumerate(NAMES)}


@pytest.mark.parametrize("sums", [True, False])
def test_everything_arrives_and_a_second_call_fetches_nothing(
    server: Behaviour, tmp_path: Path, sums: bool
) -> None:
    seen: list[DataProgress] = []
    first = fetch(server, tmp_path, sums=sums, progress=seen.append)
    assert_whole(tmp_path)
    assert (first.files, first.fetched, len(server.requests)) == (6, 6, 6)
    assert first.bytes == sum(len(content(number)) for number in range(6))
    assert (seen[-1].stage, seen[-1].files, seen[-1].bytes) == ("done", 6, first.bytes)
    asked = len(server.requests)
    assert fetch(server, tmp_path, sums=sums).fetched == 0
    assert len(server.requests) == asked


def test_storm_of_429_and_5xx_is_weathered(server: Behaviour, tmp_path: Path) -> None:
    """Let each file fail three times, one less than the limit, with refusals in between."""
    server.answers_of_each_file = [
        (429, {"Retry-After": "0"}),
        (503, {}),
        (500, {}),
        (429, {"Retry-After": "0"}),
        (502, {}),
    ]
    fetch(server, tmp_path)
    assert_whole(tmp_path)
    assert len(server.requests) == 6 * (5 + 1)


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "1"}, {"Retry-After": "date"}, {"RateLimit": '"resolvers";r=0;t=0'}],
    ids=["seconds", "date", "RateLimit"],
)
def test_429_is_obeyed_by_all_threads(
    server: Behaviour, tmp_path: Path, headers: dict[str, str]
) -> None:
    began = monotonic()
    if headers.get("Retry-After") == "date":
        headers = {
            "Retry-After": formatdate(time() + 2, usegmt=True)
        }  # in whole seconds, so one to two seconds from now
    server.answers = [(429, headers)]
    fetch(server, tmp_path)
    assert monotonic() - began >= 0.95
    assert_whole(tmp_path)


def test_endless_429_is_given_up_in_the_end(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DOWNLOAD + "BUSY_SECONDS", 0.5)
    monkeypatch.setattr(DOWNLOAD + "SILENCE_SECONDS", 60.0)
    server.answers = [(429, {"Retry-After": "1"})] * 1000
    with refuses(
        DataError,
        TokenMessage.FILES_MISSING,
        number_of_faults=6,
        number_of_files=6,
        reasons=containing("the server still answers 429 after", "s of waiting"),
    ):
        fetch(server, tmp_path)


@pytest.mark.parametrize("sums", [True, False])
def test_every_connection_cut_at_80_percent(server: Behaviour, tmp_path: Path, sums: bool) -> None:
    server.cut_at = 0.8
    fetch(server, tmp_path, sums=sums)
    assert_whole(tmp_path)
    sent = len([1 for _, headers in server.requests if "Range" in headers])
    assert sent > 6, "cut files were fetched from the start again"


def test_cut_connections_without_ranges_are_given_up(server: Behaviour, tmp_path: Path) -> None:
    server.cut_at = 0.8
    server.ranges = False
    server.tags = False
    with refuses(
        DataError,
        TokenMessage.FILES_MISSING,
        reasons=containing(
            "the connection was interrupted after", "of", "bytes (4 attempts in a row"
        ),
    ):
        fetch(server, tmp_path)
    server.cut_at = 1.0
    fetch(server, tmp_path)
    assert_whole(tmp_path)


def test_wrong_checksum_is_never_kept(server: Behaviour, tmp_path: Path) -> None:
    right = server.files["/data/part_2.jsonl.zst"]
    server.files["/data/part_2.jsonl.zst"] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(DataError) as caught:
        fetch(server, tmp_path)
    assert str(caught.value).startswith(
        f"1 of 6 files are missing in {tmp_path / 'texts'}:\n  part_2.jsonl.zst: sha256 "
    )
    assert str(caught.value).endswith(
        ", twice\nThe received data is kept. Run the same command again to fetch only the missing files."
    )
    assert sorted(path.name for path in (tmp_path / "texts").glob("part*")) == [
        name for name in NAMES if "_2" not in name
    ]
    server.files["/data/part_2.jsonl.zst"] = right
    assert fetch(server, tmp_path).fetched == 1
    assert_whole(tmp_path)


def test_missing_files_are_named(server: Behaviour, tmp_path: Path) -> None:
    del server.files["/data/part_1.jsonl.zst"], server.files["/data/part_4.jsonl.zst"]
    with pytest.raises(DataError) as caught:
        fetch(server, tmp_path)
    assert says(
        str(caught.value), TokenMessage.FILES_MISSING, number_of_faults=2, number_of_files=6
    )
    not_found = TokenMessage.HTTP_STATUS.fill(status=404, reason="Not Found")
    faults = [
        TokenMessage.FILE_FAULT.fill(file=f"part_{number}.jsonl.zst", fault=not_found)
        for number in (1, 4)
    ]
    assert caught.value.values["reasons"] == "\n  ".join(faults)


def test_error_page_instead_of_a_file(server: Behaviour, tmp_path: Path) -> None:
    server.files["/data/part_0.jsonl.zst"] = b"<html>Too many requests</html>"
    with refuses(
        DataError,
        TokenMessage.FILES_MISSING,
        reasons=containing(
            "part_0", "it begins with b'<html>' and is not a .zst file (an error page?), twice"
        ),
    ):
        fetch(server, tmp_path, sums=False)


def test_silent_server(server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DOWNLOAD + "ATTEMPTS", 1)
    monkeypatch.setattr(DOWNLOAD + "SILENCE_SECONDS", 0.1)
    server.silent = True
    with refuses(DataError, TokenMessage.FILES_MISSING, reasons=containing("timed out")):
        fetch(server, tmp_path)


@pytest.mark.parametrize("kept", [10, 20_000, 10**6])
def test_part_of_an_earlier_run_is_used_or_dropped(
    server: Behaviour, tmp_path: Path, kept: int
) -> None:
    """Leave a part that a kill truncated, one that is complete, or one that is too long."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / f"{NAMES[0]}.part").write_bytes((content(0) + b"x" * 10**6)[:kept])
    fetch(server, tmp_path)
    assert_whole(tmp_path)


def test_whole_part_of_unknown_size_is_recognised(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / f"{NAMES[0]}.part").write_bytes(content(0))
    tag = f'"{hashlib.sha256(content(0)).hexdigest()[:16]}"'
    (tmp_path / "texts" / f"{NAMES[0]}.part.tag").write_text(tag)
    fetch(server, tmp_path, sums=False)
    assert_whole(tmp_path)
    assert [headers["Range"] for path, headers in server.requests if "Range" in headers] == [
        f"bytes={len(content(0))}-"
    ]


def test_part_of_a_file_that_changed_at_the_source(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / f"{NAMES[0]}.part").write_bytes(b"old content")
    (tmp_path / "texts" / f"{NAMES[0]}.part.tag").write_text('"another tag"')
    fetch(server, tmp_path, sums=False)
    assert_whole(tmp_path)


def test_token_is_sent_and_not_passed_on(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    with serving(Behaviour(redirect=server.address)) as front:
        wanted = dataset(front, token="env:MY_TOKEN")
        download(wanted, project=tmp_path)
    assert {headers.get("Authorization") for _, headers in front.requests} == {"Bearer hush"}
    assert {headers.get("Authorization") for _, headers in server.requests} == {None}
    assert_whole(tmp_path)


def test_refused_without_token(server: Behaviour, tmp_path: Path) -> None:
    server.answers = [(401, {})] * 6
    with refuses(
        DataError,
        TokenMessage.FILES_MISSING,
        reasons=containing("HTTP 401 Unauthorized; is a token needed (HF_TOKEN)?"),
    ):
        fetch(server, tmp_path)


def test_disk_too_small(server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with refuses(
        DataError,
        TokenMessage.NO_ROOM_FOR_DOWNLOAD,
        needed=containing("KiB"),
        number_of_missing=6,
        folder=containing("texts"),
        free="100 B",
    ):
        fetch(server, tmp_path)
    assert fetch(server, tmp_path, check_space=False).fetched == 6


def test_two_downloads_at_once(server: Behaviour, tmp_path: Path) -> None:
    lock = flocked(tmp_path / "texts" / ".download.lock", fcntl.LOCK_EX, "is the first")
    with (
        lock,
        refuses(
            HeldError,
            TokenMessage.PARTS_HELD,
            owner=containing(f"{os.getpid()} on"),
            holder_text=containing("is downloading to", "texts"),
        ),
    ):
        fetch(server, tmp_path)


def test_list_that_leaves_the_folder(server: Behaviour, tmp_path: Path) -> None:
    wanted = dataset(server, files=[SourceFile(path="../outside.txt")])
    with refuses(DataError, TokenMessage.LISTED_FILE_OUTSIDE, name="../outside.txt"):
        download(wanted, project=tmp_path)
    assert not (tmp_path / "outside.txt").exists()


def hub(server: Behaviour, files: dict[str, bytes]) -> None:
    """Make the server answer as the Hub does, in two pages."""
    names = list(files)
    half = len(names) // 2
    tree = "/api/datasets/owner/name/tree/main/train?recursive=true"
    server.files[tree] = hub_tree({name: files[name] for name in names[:half]})
    server.next_pages[tree] = f"{tree}&cursor=2"
    server.files[f"{tree}&cursor=2"] = hub_tree({name: files[name] for name in names[half:]})
    for name in names:
        server.files[f"/datasets/owner/name/resolve/main/{name}"] = files[name]


def test_hub_gives_sizes_and_checksums(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runbook.tokens.sources.dataset_files import remote_files
    from runbook.tokens.sources.download import Fetcher

    monkeypatch.setenv("HF_ENDPOINT", server.address)
    files = {f"train/x_{number}.jsonl.zst": content(number) for number in range(4)}
    hub(server, files)
    group = FileGroup(path="train/x_{number}.jsonl.zst", last=3)
    wanted = dataset(server, files=[], groups=[group], url="hf://datasets/owner/name")
    listed = remote_files(wanted, Fetcher(tmp_path).get)
    assert [file.sha256 for file in listed] == [
        hashlib.sha256(data).hexdigest() for data in files.values()
    ]
    result = download(wanted, project=tmp_path)
    assert (result.files, result.bytes) == (4, sum(map(len, files.values())))
    more = dataset(
        server,
        files=[],
        groups=[group.model_copy(update={"last": 5})],
        url="hf://datasets/owner/name",
    )
    with refuses(
        DataError,
        TokenMessage.FILES_NOT_AT_SOURCE,
        number_of_missing=2,
        number_of_promised=6,
        first_missing="train/x_4.jsonl.zst, train/x_5.jsonl.zst",
    ):
        download(more, project=tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_real_huggingface_hub_sees_the_same(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query the same server with the Hugging Face client. The list, the addresses and the bytes
    are the same."""
    from huggingface_hub import HfApi, hf_hub_download, hf_hub_url

    from runbook.tokens.sources.dataset_files import remote_files
    from runbook.tokens.sources.download import Fetcher

    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.commit = "0" * 40
    files = {f"train/x_{number}.jsonl.zst": content(number) for number in range(3)}
    tree = "/api/datasets/owner/name/tree/main"
    for path in (
        f"{tree}?recursive=true",
        f"{tree}?recursive=true&expand=false",
        f"{tree}?recursive=True&expand=False",
    ):
        server.files[path] = hub_tree(files)
    for name, data in files.items():
        server.files[f"/datasets/owner/name/resolve/main/{name}"] = data
        server.files[f"/datasets/owner/name/resolve/{server.commit}/{name}"] = data
    wanted = dataset(server, files=[], url="hf://datasets/owner/name", pattern="*.jsonl.zst")
    ours = remote_files(wanted, Fetcher(tmp_path).get)
    api = HfApi(endpoint=server.address)
    theirs = [
        each
        for each in api.list_repo_tree("owner/name", repo_type="dataset", recursive=True)
        if hasattr(each, "lfs")
    ]
    assert [(file.path, file.bytes, file.sha256) for file in ours] == [
        (each.path, each.size, each.lfs.sha256) for each in theirs
    ]
    assert [file.url for file in ours] == [
        hf_hub_url("owner/name", each.path, repo_type="dataset", endpoint=server.address)
        for each in theirs
    ]
    download(wanted, project=tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    for file in ours:
        path = hf_hub_download(
            "owner/name",
            file.path,
            repo_type="dataset",
            endpoint=server.address,
            cache_dir=str(tmp_path / "cache"),
        )
        assert Path(path).read_bytes() == (tmp_path / "texts" / file.path).read_bytes()


def test_no_hub_at_the_address(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.address + "/")
    server.files["/api/datasets/owner/name/tree/main?recursive=true"] = b"<html>login</html>"
    with refuses(DataError, TokenMessage.NOT_A_LIST_OF_FILES, body=b"<html>login</html>"):
        download(dataset(server, files=[], url="hf://datasets/owner/name"), project=tmp_path)


def test_slimpajama_has_its_59166_files() -> None:
    """Check how many files the ten chunks have (facts/seed-systems.md 2.3).

    The plan joins up to 800 of them into each of its 74 files.
    """
    entry = read_datasets(Path(__file__).parents[2]).get("slimpajama")
    files = expected_files(entry)
    assert len(files) == 59_166 == len({file.path for file in files})
    assert "train/chunk10/example_train_5911.jsonl.zst" in {file.path for file in files}
    assert len(entry.paths) == 74 == -(-len(files) // entry.parts_together)


def test_a_model_repository_is_a_source_too(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Download files from the only folder in a model repository, as oscar-1GB does."""
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.files["/api/models/owner/name/tree/main?recursive=true"] = hub_tree(
        {NAMES[0]: content(0)}
    )
    server.files[f"/owner/name/resolve/main/{NAMES[0]}"] = content(0)
    wanted = dataset(server, files=[], url="hf://owner/name", pattern="*.zst")
    assert download(wanted, project=tmp_path).fetched == 1
    assert (tmp_path / "texts" / NAMES[0]).read_bytes() == content(0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"url": ""}, TokenMessage.DATASET_WITHOUT_URL.of()),
        ({"url": "", "kind": "corpus"}, TokenMessage.NOTHING_TO_DOWNLOAD.of()),
        ({"url": "ftp://x/y"}, TokenMessage.NOT_AN_ADDRESS.of(url="ftp://x/y")),
        ({"files": []}, TokenMessage.DATASET_WITHOUT_FILES.of()),
        ({"groups": [FileGroup(path="a", last=3)]}, TokenMessage.GROUP_NOT_POSSIBLE.of()),
    ],
)
def test_catalogue_entries_that_cannot_work(
    server: Behaviour, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    with refuses(DataError, message):
        download(dataset(server, **changed), project=tmp_path)
