"""`runbook data`: what it prints for a person, and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from suite.messages import containing, says

from runbook.cli.data import data
from runbook.cli.messages import CliMessage
from runbook.core.errors import DataError, ParamsError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.verification import TokenCheck

from .reference import json_lines
from .server import Behaviour, serving


def call(*words: object) -> Result:
    return CliRunner().invoke(data, [str(word) for word in words])


def test_tokenize_verify_show(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world", "", "a second one"]))
    made = call("tokenize", source, "--out", tmp_path / "out", "--workers", 1)
    assert made.exit_code == 0
    assert says(
        made.stdout,
        CliMessage.TOKENIZED,
        done=containing(CliMessage.TOKENIZED_NOW.fill(duration="")),
        documents=3,
        tokens=7,
        files="out_text_document.bin (14 B), out_text_document.idx (90 B)",
    )
    facts = re.findall(r"\b(files|shards) (\d+) of (\d+)", made.stderr)
    assert {("files", "1", "1"), ("shards", "1", "1")} <= set(facts)
    again = call("tokenize", source, "--out", tmp_path / "out")
    done = CliMessage.TOKENIZED_BEFORE.fill()
    assert says(again.stdout, CliMessage.TOKENIZED, done=done, documents=3, tokens=7)
    verified = call("verify", tmp_path / "out")
    passed = CliMessage.CHECKS_PASSED.fill(number=14)
    assert (verified.exit_code, verified.stdout.splitlines()[-1]) == (0, passed)
    shown = call("show", tmp_path / "out", "--document", 0)
    heading = CliMessage.DOCUMENT.fill(number=0, tokens=3, cut_note="")
    assert f"{heading}\nHello| world|<|endoftext|>" in shown.stdout


@pytest.mark.parametrize("ending", ["_text_document", "_text_document.bin", ".idx"])
def test_the_name_of_one_of_the_files_means_their_prefix(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    name = f"{tmp_path / 'out'}{ending}"
    assert call("tokenize", source, "--out", name, "--workers", 1).exit_code == 0
    files = {path.name for path in tmp_path.glob("out*") if path.is_file()}
    assert files == {"out_text_document.bin", "out_text_document.idx", "out.manifest.json"}
    assert call("verify", name).exit_code == 0
    assert "Hello" in call("show", name).stdout


def test_text_under_another_key_is_answered_with_the_option(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"content": "Hello world"}\n')
    refused = call("tokenize", source, "--out", tmp_path / "out")
    assert "its keys: 'content' (--text-key or data.text_key" in str(refused.exception)
    made = call("tokenize", source, "--out", tmp_path / "out", "--text-key", "content")
    assert made.exit_code == 0


def test_help_cuts_no_sentence() -> None:
    commands = call("--help").stdout.partition("Commands:")[2]
    assert set(re.findall(r"^  (\w+)", commands, re.M)) == set(data.commands)
    assert "..." not in commands


def test_failed_check_is_exit_1(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    call("tokenize", source, "--out", tmp_path / "out")
    (tmp_path / "out_text_document.bin").write_bytes(b"\x01\x02" * 3)
    verified = call("verify", tmp_path / "out")
    assert verified.exit_code == 1
    names = ", ".join([TokenCheck.END_OF_DOCUMENT, TokenCheck.BIN_CHECKSUM])
    values = {"number_of_failed": 2, "number": 14, "names": names}
    assert says(verified.stderr, CliMessage.CHECKS_FAILED, **values)


def test_left_out_records_are_told(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"oops\n" + json_lines(["fine"]))
    stopped = call("tokenize", source, "--out", tmp_path / "out")
    assert isinstance(stopped.exception, DataError)
    assert stopped.exception.exit_code == 1
    skipped = call("tokenize", source, "--out", tmp_path / "out", "--bad-records", "skip")
    assert skipped.exit_code == 0
    assert says(skipped.stderr, CliMessage.LEFT_OUT, records=1, files=0)
    place = TokenMessage.PLACE_IN_LINES.fill(line=1, byte=0)
    reason = containing(TokenMessage.INVALID_JSON.fill(error=""))
    values = {"path": source, "place": place, "reason": reason}
    assert says(skipped.stderr, TokenMessage.RECORD_LEFT_OUT, **values)


def test_wrong_usage_is_exit_2(tmp_path: Path) -> None:
    assert call("tokenize", "--out", tmp_path / "out").exit_code == 2
    wrong = call("tokenize", "x", "--out", "y", "--bad-records", "ignore")
    assert wrong.exit_code == 2
    for word in ("--bad-records", "ignore", "stop", "skip", "quarantine"):
        assert word in wrong.stderr


@pytest.mark.parametrize("out", ["", ".", "..", "/", "somewhere/"])
def test_a_folder_is_no_prefix(tmp_path: Path, out: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    wrong = call("tokenize", source, "--out", out)
    assert wrong.exit_code == 2
    folder = out.rstrip("/") or "."
    values = {"value": out, "folder": folder}
    assert says(wrong.stderr, CliMessage.FOLDER_NOT_A_PREFIX, **values)


@pytest.mark.parametrize("command", ["verify", "show"])
def test_a_folder_of_token_files_is_answered_with_their_prefixes(
    tmp_path: Path, command: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    folder = tmp_path / "tokens"
    assert call("tokenize", source, "--out", folder / "corpus").exit_code == 0
    wrong = call(command, folder)
    prefixes = folder / "corpus_text_document"
    assert wrong.exit_code == 2
    assert says(wrong.stderr, CliMessage.FOLDER_OF_PREFIXES, folder=folder, prefixes=prefixes)
    assert call(command, prefixes).exit_code == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    assert says(call(command, empty).stderr, CliMessage.FOLDER_WITHOUT_TOKENS, folder=empty)


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
        downloaded = {"files": 1, "size": "16 B", "folder": tmp_path / "texts"}
        once = containing(CliMessage.FETCHED.fill(number=1, duration=""))
        assert says(fetched.stdout, CliMessage.DOWNLOADED, **downloaded, fetched=once)
        again = call("download", "mine").stdout
        nothing = CliMessage.ALL_WERE_THERE.fill()
        assert says(again, CliMessage.DOWNLOADED, **downloaded, fetched=nothing)
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
        passed = CliMessage.CHECKS_PASSED.fill(number=6)
        assert (fetched.exit_code, fetched.stdout.splitlines()[-1]) == (0, passed)
    with serving(Behaviour(files=pair | {f"/{names[0]}": b"odd"})) as server:
        broken = call("download", "mine", "--folder", "other", "--url", server.address)
        assert broken.exit_code == 1
        assert says(broken.stderr, CliMessage.CHECKS_FAILED, names=TokenCheck.HEADER)


def test_shares_of_an_array_job(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["Hello world"]))
    first = call("tokenize", source, "--out", tmp_path / "out", "--share", "0/2")
    text = CliMessage.SHARE_MADE.fill(share="0/2", made=1, total=1, before="")
    assert first.stdout == f"{text}\n"
    joined = call("tokenize", source, "--out", tmp_path / "out")
    assert says(joined.stdout, CliMessage.TOKENIZED_NOW)
    wrong = call("tokenize", source, "--out", tmp_path / "out", "--share", "1")
    assert wrong.exit_code == 2
    assert says(wrong.stderr, CliMessage.NOT_A_SHARE, share="1")
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
