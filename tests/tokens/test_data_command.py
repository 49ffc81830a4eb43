"""`runbook data`: what a person sees, and the exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runbook.cli.data import data
from runbook.core.errors import DataError, ParamsError

from .reference import json_lines
from .server import Behaviour, serving


def call(*words: object) -> Result:
    return CliRunner().invoke(data, [str(word) for word in words])


def test_tokenize_verify_show(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world", "", "a second one"]))
    made = call("tokenize", source, "--out", tmp_path / "out", "--workers", 1)
    assert made.exit_code == 0
    assert made.stdout.startswith("done in ")
    assert (
        ": 3 documents, 7 tokens -> out_text_document.bin (14 B), out_text_document.idx (90 B)"
        in made.stdout
    )
    assert "files 1 of 1, shards 1 of 1, " in made.stderr
    again = call("tokenize", source, "--out", tmp_path / "out")
    assert again.stdout.startswith("done before, nothing to do: 3 documents")
    verified = call("verify", tmp_path / "out")
    assert (verified.exit_code, verified.stdout.splitlines()[-1]) == (0, "14 checks, none failed")
    shown = call("show", tmp_path / "out", "--document", 0)
    assert "document 0: 3 tokens\nHello| world|<|endoftext|>" in shown.stdout


def test_failed_check_is_exit_1(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    call("tokenize", source, "--out", tmp_path / "out")
    (tmp_path / "out_text_document.bin").write_bytes(b"\x01\x02" * 3)
    verified = call("verify", tmp_path / "out")
    assert verified.exit_code == 1
    assert "checks failed: end of document, sha256 of .bin" in verified.stderr


def test_left_out_records_are_told(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"oops\n" + json_lines(["fine"]))
    stopped = call("tokenize", source, "--out", tmp_path / "out")
    assert isinstance(stopped.exception, DataError)
    assert stopped.exception.exit_code == 1
    skipped = call("tokenize", source, "--out", tmp_path / "out", "--bad-records", "skip")
    assert skipped.exit_code == 0
    assert (
        f"left out: 1 records, 0 files\n  {source}, line 1, byte 0: invalid JSON" in skipped.stderr
    )


def test_wrong_usage_is_exit_2(tmp_path: Path) -> None:
    assert call("tokenize", "--out", tmp_path / "out").exit_code == 2
    wrong = call("tokenize", "x", "--out", "y", "--bad-records", "ignore")
    assert wrong.exit_code == 2
    assert "'ignore' is not one of 'stop', 'skip', 'quarantine'" in wrong.stderr


@pytest.mark.parametrize("out", ["", ".", "..", "/", "somewhere/"])
def test_a_folder_is_no_prefix(tmp_path: Path, out: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    wrong = call("tokenize", source, "--out", out)
    assert wrong.exit_code == 2
    assert "is a folder; add a name, such as" in wrong.stderr


def test_download_of_a_dataset_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "params").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "params" / "models.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with serving(Behaviour(files={"/a.jsonl": json_lines(["one"])})) as server:
        keys = {
            "title": "Mine",
            "kind": "download",
            "folder": "texts",
            "licence": "ours",
            "source": "here",
        }
        entry = (
            "mine:\n"
            + "".join(f"  {key}: {value}\n" for key, value in keys.items())
            + f"  url: {server.address}\n"
        )
        (tmp_path / "params" / "datasets.yaml").write_text(
            entry + "  files:\n    - path: a.jsonl\n"
        )
        fetched = call("download", "mine")
        assert (fetched.exit_code, fetched.exception) == (0, None)
        assert f"1 files, 16 B in {tmp_path / 'texts'}: 1 fetched in" in fetched.stdout
        assert "all were there; none is missing" in call("download", "mine").stdout
    with serving(Behaviour(files={"/mirror/a.jsonl": json_lines(["two"])})) as server:
        mirrored = call(
            "download", "mine", "--folder", "other", "--url", f"{server.address}/mirror"
        )
        assert (mirrored.exit_code, mirrored.exception) == (0, None)
        assert (tmp_path / "other" / "a.jsonl").read_bytes() == json_lines(["two"])
    unknown = call("download", "mien")
    assert isinstance(unknown.exception, ParamsError)
    assert "mine" in str(unknown.exception)


def test_token_files_are_verified_when_they_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    call("tokenize", source, "--out", tmp_path / "made" / "a")
    for folder in ("params", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "params" / "models.yaml").write_text("{}")
    keys = {
        "title": "Mine",
        "kind": "tokenized",
        "folder": "tokens",
        "licence": "ours",
        "source": "here",
    }
    names = ["a_text_document.bin", "a_text_document.idx"]
    entry = "mine:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items())
    entry += "  files:\n" + "".join(f"    - path: {name}\n" for name in names)
    (tmp_path / "params" / "datasets.yaml").write_text(entry)
    monkeypatch.chdir(tmp_path)
    pair = {f"/{name}": (tmp_path / "made" / name).read_bytes() for name in names}
    with serving(Behaviour(files=pair)) as server:
        fetched = call("download", "mine", "--url", server.address)
        assert (fetched.exit_code, fetched.stdout.splitlines()[-1]) == (0, "6 checks, none failed")
    with serving(Behaviour(files=pair | {f"/{names[0]}": b"odd"})) as server:
        broken = call("download", "mine", "--folder", "other", "--url", server.address)
        assert broken.exit_code == 1
        assert "checks failed: header" in broken.stderr


def test_shares_of_an_array_job(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    first = call("tokenize", source, "--out", tmp_path / "out", "--share", "0/2")
    assert first.stdout == "share 0/2: 1 of 1 shards made; run without --share to join them\n"
    assert "done in" in call("tokenize", source, "--out", tmp_path / "out").stdout
    wrong = call("tokenize", source, "--out", tmp_path / "out", "--share", "1")
    assert wrong.exit_code == 2
    assert "'1' is not I/N, such as 0/32" in wrong.stderr
    for share in ("\u00b2/3", "-1/2", "0/2/3", "a/b"):
        assert (
            call("tokenize", source, "--out", tmp_path / "out", f"--share={share}").exit_code == 2
        )


def test_importing_the_package_imports_nothing_heavy() -> None:
    """A worker starts, and `runbook data --help` answers, without numpy, torch, pydantic or the encoders."""
    heavy = {"numpy", "torch", "pydantic", "tokenizers", "fastokens", "msgspec", "pyarrow"}
    program = "import sys, runbook.tokens, runbook.tokens.pipeline.worker_pool, runbook.cli.data; "
    program += f"print({heavy!r} & set(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "set()"
