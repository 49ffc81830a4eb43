"""Secrets are referred to by name and never written."""

import base64
import random
import time
from pathlib import Path

import pytest
from suite.messages import containing, problem_of, refuses

from runbook.core.errors import ParamsError
from runbook.params import is_reference, load, resolve_secret, secrets
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams
from runbook.params.secrets import mask, mask_value

TOKENS = [
    "hf_" + "Ab3d" * 8,
    "AKIA" + "ABCDEFGH12345678",
    "ghp_" + "x" * 36,
    "github_pat_" + "y" * 30,
    "glpat-" + "z" * 20,
    "sk-" + "q" * 40,
    "-----BEGIN RSA PRIVATE KEY-----",
    "https://hooks.slack.com/services/" + "T0B0" * 4,
    "https://discord.com/api/webhooks/1234/" + "aB3" * 6,
    "https://api.telegram.org/bot1234:" + "aB3" * 6 + "/sendMessage",
    "sig=" + "A1%2B" * 10,
    "xoxe-" + "1aB" * 10,
    "npm_" + "aB3d" * 9,
    "dckr_pat_" + "aB3d" * 6,
    "dapi" + "0123456789abcdef" * 2,
    "hvs." + "aB3d" * 6,
    "ya29." + "aB3d" * 6,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
]


AFTER_A_NAME = [
    ("WANDB_API_KEY=", "0123456789abcdef" * 2),
    ("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("--token ", "0a1b2c3d" * 4),
    ("https://ada:", "pass-word1@git.acme.io/x"),
]
"""Values that can be recognized as secrets only by their names."""


def looks_like_a_secret(error: BaseException, where: str) -> bool:
    """Return whether a secret was found at this place."""
    assert isinstance(error, InvalidParams)
    rules = {(problem.where, problem.rule.message) for problem in error.problems}
    return (where, ParamsMessage.LOOKS_LIKE_A_SECRET) in rules


@pytest.mark.parametrize(("name", "value"), AFTER_A_NAME)
@pytest.mark.parametrize("line", ["data: {{folder: {}}}", "# {}", "{}: 1", "extra: '{}'"])
def test_a_value_that_its_name_gives_away_is_refused_and_not_repeated(
    project: Path, write, name, value, line
):
    text = f"run: mine\nmodel: tiny\ntraining: {{iterations: 1}}\n{line.format(name + value)}\n"
    with pytest.raises(ParamsError) as error:
        load(write(text), project=project)
    assert looks_like_a_secret(error.value, "params/mine.yaml:4")
    assert value.partition("@")[0] not in str(error.value)


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("line", ["data: {{folder: {}}}", "# {}", "{}: 1", "extra: '{}'"])
def test_a_token_anywhere_in_a_run_file_is_refused_and_not_repeated(
    project: Path, write, token, line
):
    text = f"run: mine\nmodel: tiny\ntraining: {{iterations: 1}}\n{line.format(token)}\n"
    with pytest.raises(ParamsError) as error:
        load(write(text), project=project)
    assert looks_like_a_secret(error.value, "params/mine.yaml:4")
    assert token not in str(error.value)
    assert token[:8] not in str(error.value) or token.startswith("-----")


def test_the_address_of_a_webhook_is_named_and_not_written(project: Path):
    with pytest.raises(ParamsError) as error:
        load("toy", project=project, set_words=["training.alarm_webhook=chat.example.org/x"])
    rule = problem_of(error.value, "training.alarm_webhook").rule
    assert rule.message is ParamsMessage.BROKEN_RULE
    assert "env:NAME" in str(rule)
    settings = load("toy", project=project, set_words=["training.alarm_webhook=env:ALARM_ADDRESS"])
    assert settings.run.training.alarm_webhook == "env:ALARM_ADDRESS"


def test_site_files_and_catalogues_are_searched_too(project: Path):
    for name in ("sites/local.yaml", "models.yaml", "variants/toy.yaml"):
        path = project / "params" / name
        before = path.read_text()
        path.write_text(f"{before}# {TOKENS[0]}\n")
        with pytest.raises(ParamsError) as error:
            load("toy:wide", project=project)
        line = before.count("\n") + 1
        assert looks_like_a_secret(error.value, f"params/{name}:{line}")
        path.write_text(before)


def test_references_stay_references_in_every_record(project: Path, monkeypatch):
    monkeypatch.setenv("SECRET_FOLDER", "the-value")
    settings = load("toy", project=project, set_words=["data.folder=env:SECRET_FOLDER"])
    assert settings.run.data.folder == "env:SECRET_FOLDER"
    assert '  folder: "env:SECRET_FOLDER"\n' in settings.as_yaml()
    assert settings.parameters()["data.folder"]["value"] == "env:SECRET_FOLDER"
    assert "the-value" not in settings.as_yaml()


def test_ordinary_words_are_no_tokens():
    for word in (
        "hf_hub",
        "sk-learn",
        "AKIAN",
        "ghp_",
        "a path/hf_cache/x",
        "task-" + "a" * 30,
        "signature=short",
    ):
        assert mask(word) == word
    masked = mask(f"x {TOKENS[0]} y")
    assert masked.split(" ") == ["x", "hf_A...", "y"]


def test_a_private_key_is_masked_with_its_body_and_what_follows_stays():
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA==\n-----END OPENSSH PRIVATE KEY-----"
    masked = mask(f"{key}, then {key.partition('-----END')[0]}")
    assert masked.split(", then ") == ["----..."] * 2
    assert mask(" ".join(key.split())) == "----..."


def test_a_password_is_masked_after_its_name_and_numbers_of_tokens_stay():
    secrets = {
        "password: correct-horse, pwd='x y'": "password: ..., pwd='x y'",
        "https://ada:pass@git.acme.io/x": "https://ada:...@git.acme.io/x",
        "Authorization: Bearer abcdefgh12345678": "Authorization: Bearer ...",
    }
    assert {text: mask(text) for text in secrets} == secrets
    for text in (
        "tokens_per_second=123456.123456789012",
        "tokenizer: /data/gpt2-tokenizer-123456789.json",
        "token: env:HF_TOKEN",
        "consumed_tokens 12345678901234567890",
        "special_token=<|endoftext|>",
        "commit 5f18fbf5b191bccf18fbf5b191bccf18fbf5b191b token",
    ):
        assert mask(text) == text


def test_json_and_notebooks_are_masked_text_by_text():
    key = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"
    masked = mask_value({"a": [f"x {key}", 3, None], f"k {TOKENS[0]}": (True,)})
    assert masked == {"a": ["x ----...\n", 3, None], "k hf_A...": [True]}


def test_a_reference_is_resolved_from_environment_or_file(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("MY_TOKEN", " value \n")
    (tmp_path / "token").write_text("other\n")
    assert resolve_secret("env:MY_TOKEN") == "value"
    assert resolve_secret(f"file:{tmp_path / 'token'}") == "other"
    assert is_reference("env:MY_TOKEN")
    assert not is_reference("environment")
    assert not is_reference("env:not a name")
    assert not is_reference(3)


def test_what_cannot_be_resolved_names_the_reference_only(monkeypatch, tmp_path: Path):
    monkeypatch.delenv("NOT_SET", raising=False)
    with refuses(
        ParamsError,
        ParamsMessage.VARIABLE_NOT_SET,
        reference="env:NOT_SET",
        variable="NOT_SET",
    ):
        resolve_secret("env:NOT_SET")
    with refuses(
        ParamsError,
        ParamsMessage.SECRET_FILE_NOT_READABLE,
        reference=containing("gone"),
        reason="No such file or directory",
    ):
        resolve_secret(f"file:{tmp_path}/gone")
    (tmp_path / "empty").write_text("\n")
    empty = f"file:{tmp_path}/empty"
    with refuses(ParamsError, ParamsMessage.SECRET_FILE_EMPTY, reference=empty):
        resolve_secret(empty)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    binary = f"file:{tmp_path}/binary"
    with refuses(ParamsError, ParamsMessage.SECRET_FILE_NOT_TEXT, reference=binary):
        resolve_secret(binary)
    with refuses(ParamsError, ParamsMessage.NOT_A_SECRET_REFERENCE) as error:
        resolve_secret(TOKENS[0])
    assert TOKENS[0] not in str(error.value)


def test_every_shape_of_a_token_has_a_mark_by_which_it_is_looked_for():
    for token in TOKENS:
        assert any(mark in token for mark in secrets._TOKEN_MARKS), token
        assert mask(token) != token


class Recorded:
    """A pattern that finds nothing and records each search."""

    def __init__(self):
        self.num_searches = 0

    def sub(self, _, text):
        self.num_searches += 1
        return text


def test_a_picture_is_not_searched_for_each_pattern(monkeypatch):
    pattern = Recorded()
    monkeypatch.setattr(secrets, "_TOKEN", pattern)
    monkeypatch.setattr(secrets, "_NAMED", (pattern,))
    mask("password: hf_AbCdEfGhIjKlMnOpQrSt")
    assert pattern.num_searches == 2
    mask("iVBORw0KGgo" + "QUJD" * 1_000_000)
    assert pattern.num_searches == 2


def test_a_picture_that_looks_like_a_token_is_read_in_linear_time():
    def seconds_for(num_bytes):
        picture = base64.b64encode(random.Random(1).randbytes(num_bytes)).decode()
        started = time.process_time()
        assert mask(picture) == picture
        return time.process_time() - started

    # If the time grew with the square of the length, it would be 16 times as long.
    assert seconds_for(4_000_000) < 10 * seconds_for(1_000_000)
