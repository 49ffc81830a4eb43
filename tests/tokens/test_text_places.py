"""The text for a run is fetched to the site folder for data or to data.folder, or used where it is."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import says

from runbook import params
from runbook.params.schema.entries import Dataset, FileGroup, SourceFile, TextShare
from runbook.phases.messages import PhaseMessage
from runbook.phases.p02_data import phase as data
from runbook.phases.token_inputs import text_home
from runbook.planning import make_plan
from runbook.planning.data_plan import text_place
from runbook.planning.messages import PlanningMessage
from runbook.tokens.sources.dataset_files import dataset_files, has_every_file
from runbook.tokens.sources.download import download

from .reference import json_lines
from .server import Behaviour, serving

CLONE = Path(__file__).parents[2]
KNOWN = {"title": "Mine", "kind": "download", "folder": "texts", "licence": "ours", "source": "me"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def azure(*words: str) -> params.Settings:
    return params.load("azure-175b", set_words=words, project=CLONE)


def test_text_is_fetched_to_the_stage_beside_its_token_files(tmp_path: Path) -> None:
    settings = azure(f"jobs.stage={tmp_path}")
    (text,) = settings.texts
    assert text_home(settings, text) == tmp_path / "data" / "slimpajama"
    assert make_plan(settings).data.train[0].startswith(f"{tmp_path}/data/slimpajama/")


def test_text_of_an_earlier_download_into_the_project_is_read_there(tmp_path: Path) -> None:
    dataset = Dataset(**KNOWN, url="https://example.org", files=[SourceFile(path="a.jsonl")])
    settings = azure(f"jobs.stage={tmp_path / 'stage'}")
    settings = SimpleNamespace(site=settings.site, project=tmp_path)  # type: ignore[assignment]
    text = TextShare("mine", 1.0, dataset)
    fresh = tmp_path / "stage" / "data" / "mine"
    assert text_home(settings, text) == fresh
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_bytes(json_lines(["one"]))
    assert text_home(settings, text) == tmp_path / "texts"
    fresh.mkdir(parents=True)
    (fresh / "train_text_document.bin").write_bytes(b"tokens lie there too")
    assert text_home(settings, text) == tmp_path / "texts"
    (fresh / "a.jsonl").write_bytes(json_lines(["one"]))
    assert text_home(settings, text) == fresh


def test_a_folder_of_the_run_or_of_somebodys_own_is_left_alone() -> None:
    settings = azure("jobs.stage=/stage")
    own = Dataset(**KNOWN | {"folder": "/scratch/texts"}, url="https://example.org")
    assert text_place(settings, TextShare("mine", 1.0, own)) == "/scratch/texts"
    assert text_place(settings, TextShare("mine", 1.0, own, "/mine")) == "/mine"
    local = Dataset(**KNOWN | {"kind": "local"})
    assert text_place(settings, TextShare("mine", 1.0, local)) == "texts"


def test_the_text_counts_on_the_volume_that_it_goes_to() -> None:
    (volume,) = [
        check
        for check in make_plan(azure("jobs.stage=/stage")).checks
        if check.name == "volume shared"
    ]
    text = PlanningMessage.VOLUME_TEXT.fill(name="slimpajama")
    assert says(volume.value, PlanningMessage.VOLUME_PART, size="834 GiB", kind=text)
    elsewhere = make_plan(azure("jobs.stage=/stage", "data.folder=/elsewhere"))
    assert not [check for check in elsewhere.checks if text in check.value]


def fetch(text: TextShare, project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    settings = SimpleNamespace(site=SimpleNamespace(paths={}), project=project)
    data._fetch_text(SimpleNamespace(settings=settings, hold=lambda what: nullcontext()), text)  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_what_is_missing_in_data_folder_is_downloaded_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a.jsonl", "b.jsonl"]
    home = tmp_path / "mine"
    with serving(Behaviour(files={f"/{name}": json_lines([name]) for name in names})) as server:
        files = [SourceFile(path=name) for name in names]
        dataset = Dataset(**KNOWN, url=server.address, files=files)
        text = TextShare("mine", 1.0, dataset, str(home))
        fetched = {"files": "2 files", "folder": home}
        assert says(fetch(text, tmp_path, capsys), PhaseMessage.FETCHED_NOW, **fetched, fetched=2)
        (home / "b.jsonl").unlink()
        assert says(fetch(text, tmp_path, capsys), PhaseMessage.FETCHED_NOW, **fetched, fetched=1)
        asked = len(server.requests)
        assert says(fetch(text, tmp_path, capsys), PhaseMessage.HAS_EVERY_FILE, home=home)
        assert len(server.requests) == asked, "nobody is asked: a node may have no network"


def test_other_text_in_data_folder_is_read_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.jsonl").write_bytes(json_lines(["mine"]))
    dataset = Dataset(**KNOWN, url="http://127.0.0.1:9", files=[SourceFile(path="a.jsonl")])
    said = fetch(TextShare("mine", 1.0, dataset, str(tmp_path)), tmp_path, capsys)
    assert says(said, PhaseMessage.HAS_OTHER_FILES, home=tmp_path, name="mine")


def test_files_under_the_names_of_the_documents_own_script_are_taken(tmp_path: Path) -> None:
    """download_slimpajama.py writes example_train_chunk1_shard0.jsonl.zst, all into a single
    folder.
    """
    parts = [
        FileGroup(
            path=f"train/chunk{chunk}/example_train_{{number}}.jsonl",
            last=11,
            also=f"example_train_chunk{chunk}_shard{{number}}.jsonl",
        )
        for chunk in (1, 10)
    ]
    groups = [FileGroup(path="train_chunk_{number}.jsonl", last=1)]
    text = {
        f"/train/chunk{chunk}/example_train_{number}.jsonl": json_lines([f"{chunk}-{number}"])
        for chunk in (1, 10)
        for number in range(12)
    }
    with serving(Behaviour(files=text)) as server:
        dataset = Dataset(
            **KNOWN,
            url=server.address,
            parts=parts,
            groups=groups,
            parts_together=12,
            parts_order="names",
        )
        home = tmp_path / "texts"
        home.mkdir()
        for number in range(12):
            flat = home / f"example_train_chunk1_shard{number}.jsonl"
            flat.write_bytes(json_lines([f"1-{number}"]))
        assert not has_every_file(home, dataset)
        summary = download(dataset, project=tmp_path)
        assert (summary.files, summary.fetched) == (24, 12), "those of chunk 1 were there"
        assert has_every_file(home, dataset)
    files = [path.relative_to(home).as_posix() for path in dataset_files(dataset, project=tmp_path)]
    assert files[:3] == [f"train/chunk10/example_train_{number}.jsonl" for number in (0, 1, 10)]
    assert files[12:15] == [f"example_train_chunk1_shard{number}.jsonl" for number in (0, 1, 10)]
    assert files[-1] == "example_train_chunk1_shard9.jsonl"
