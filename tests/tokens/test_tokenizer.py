"""Tokens are exactly those that GPT-2 uses, other tokenizers come from a file, and an encoder that
disagrees with its judge is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.messages import assert_about, containing, refuses

from runbook.core.errors import DataError
from runbook.tokens import tokenizer as tokenizer_module
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.shard import SAMPLE_CHARACTERS
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions
from runbook.tokens.sources import input_files
from runbook.tokens.tokenizer import (
    END_OF_TEXT,
    GPT2_FOLDER,
    PROBES,
    Fastokens,
    HuggingFace,
    compare,
    load_tokenizer,
)

from .reference import EDGE_TEXTS, encoded, json_lines, made


def encode(text: str, *, special_tokens: bool = False) -> list[int]:
    return load_tokenizer(special_tokens=special_tokens).encode(text)


def test_known_ids() -> None:
    assert encode("Hello world") == [15496, 995]
    assert encode(" and the quick brown fox\n\n  1234") == [
        290,
        262,
        2068,
        7586,
        21831,
        628,
        220,
        1105,
        2682,
    ]
    assert encode("") == []
    assert encode("<|endoftext|>", special_tokens=True) == [50256]
    assert encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]


def test_decode_gives_the_text_back() -> None:
    for text in PROBES:
        assert load_tokenizer().decode(encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.booleans())
def test_any_text_equals_the_reference(text: str, special_tokens: bool) -> None:
    assert encode(text, special_tokens=special_tokens) == encoded(text, special_tokens)


WITHOUT_SURROGATES = st.characters(exclude_categories=["Cs"])
TEXT_PARTS = st.one_of(
    st.sampled_from(
        [END_OF_TEXT, "<|endof", "text|>", "<|endoftext|", "<", ">", " ", "\n", "é", "a"]
    ),
    st.text(WITHOUT_SURROGATES, max_size=20),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(TEXT_PARTS, max_size=4).map("".join), min_size=2, max_size=6))
def test_joined_texts_have_the_ids_of_separate_ones(texts: list[str]) -> None:
    encoder = load_tokenizer().encoder
    assert isinstance(encoder, Fastokens)
    joined = encoder.encode_joined(texts, END_OF_TEXT, 50256, np.dtype("<u2"))
    if any(not text or END_OF_TEXT in text for text in texts):
        assert joined is None
        return

    assert joined is not None
    assert [joined.ids_of(number) for number in range(len(texts))] == [
        encoded(text, False) for text in texts
    ]
    assert joined.ids[np.cumsum(joined.lengths) - 1].tolist() == [50256] * len(texts)
    assert joined.text_bytes == len("".join(texts).encode())


def test_joined_texts_with_other_ids_are_caught_in_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Fastokens.encode_joined

    def encode_other(self: Fastokens, texts: list[str], *others: object) -> object:
        return right(self, [text.replace("fox", "fux") for text in texts], *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Fastokens, "encode_joined", encode_other)
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["a fox", "a fox"]))
    with refuses(DataError, TokenMessage.ENCODERS_DISAGREE, text="a fox", theirs=[64, 21831]):
        prepare([source], tmp_path / "out", TokenizeOptions(workers=1))
    assert not (tmp_path / "out_text_document.bin").exists()


@pytest.fixture(scope="module")
def openai() -> tiktoken.Encoding:
    """Build the OpenAI encoder with the shipped vocabulary. It needs no network."""
    plain = [
        *range(33, 127),
        *range(161, 173),
        *range(174, 256),
    ]  # the others are written as characters from U+0100 upwards
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
    vocabulary = json.loads((tokenizer_module.GPT2_FOLDER / "vocab.json").read_text())
    special = {tokenizer_module.END_OF_TEXT: vocabulary.pop(tokenizer_module.END_OF_TEXT)}
    ranks = {bytes(letters[each] for each in token): number for token, number in vocabulary.items()}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def test_tiktoken_agrees_on_edge_texts_and_on_the_shipped_corpus(openai: tiktoken.Encoding) -> None:
    for text in [*PROBES, *EDGE_TEXTS]:
        assert encode(text) == openai.encode_ordinary(text)
        assert encode(text, special_tokens=True) == openai.encode(text, allowed_special="all")
    corpus = tokenizer_module.GPT2_FOLDER.parent / "corpus" / "corpus-3-of-5.jsonl.zst"
    texts = [json.loads(line)["text"] for line in zstd.decompress(corpus.read_bytes()).splitlines()]
    ids, offsets = load_tokenizer().encoder.encode_batch(texts)
    for number, expected in enumerate(openai.encode_ordinary_batch(texts)):
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_equals_tiktoken(openai: tiktoken.Encoding, text: str) -> None:
    assert encode(text) == openai.encode_ordinary(text)


def test_the_judge_is_loaded_once() -> None:
    assert load_tokenizer().judge is load_tokenizer(encoder="tokenizers").judge
    assert load_tokenizer().judge is not load_tokenizer(special_tokens=True).judge


def test_pieces_show_each_token() -> None:
    assert load_tokenizer().pieces(encode("Hello world, Zoë")) == [
        "Hello",
        " world",
        ",",
        " Zo",
        "ë",
    ]
    text = "plain text\n  here"
    assert "".join(load_tokenizer().pieces(encode(text))) == text
    assert load_tokenizer().pieces([50256]) == ["<|endoftext|>"]


def test_part_of_a_character_is_shown_as_one_that_is_missing() -> None:
    assert load_tokenizer().pieces(encode("\U0001f600")) == ["\ufffd", "\ufffd"]


def test_ids_of_the_padding_are_shown_not_refused() -> None:
    """An untrained model may sample ids of the padding, because the padded size is 50,304."""
    assert load_tokenizer().decode([15496, 50300, 995]) == "Hello<id 50300> world"
    assert load_tokenizer().pieces([50257, -1]) == ["<id 50257>", "<id -1>"]


def test_a_changed_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vocab.json", "merges.txt"):
        content = (tokenizer_module.GPT2_FOLDER / name).read_bytes()
        (tmp_path / name).write_bytes(content.replace(b"hello", b"hallo"))
    monkeypatch.setattr(tokenizer_module, "GPT2_FOLDER", tmp_path)
    tokenizer_module._gpt2.cache_clear()
    with refuses(
        DataError,
        TokenMessage.TOKENIZER_CHANGED,
        gpt2_folder=containing("vocab.json"),
        expected=containing("1961"),
    ):
        load_tokenizer("gpt2")


@pytest.fixture
def own_tokenizer(tmp_path: Path) -> Path:
    """Train a byte-level tokenizer with 400 tokens and its own end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat", "a quick brown fox"] * 20, trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_any_tokenizer_json(tmp_path: Path, own_tokenizer: Path) -> None:
    source = tmp_path / "in.jsonl"
    cat = "the cat"
    fox = "the fox 😀"
    source.write_bytes(json_lines([cat, "", fox]))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(tokenizer=str(own_tokenizer)))
    tokenizer = load_tokenizer(str(own_tokenizer))
    tokens = np.frombuffer(made(tmp_path / "out")[0], dtype="<u2").tolist()
    assert tokens == [*tokenizer.encode(cat), 0, *tokenizer.encode(fox), 0]
    assert tokenizer.decode(tokens) == f"{cat}</s>{fox}</s>"
    assert manifest.tokenizer["end_of_document"] == 0
    assert list(manifest.tokenizer["sha256"]) == ["tokenizer.json"]
    assert load_tokenizer(str(own_tokenizer.parent)).vocabulary == tokenizer.vocabulary


def test_named_end_of_document(own_tokenizer: Path) -> None:
    tokenizer = load_tokenizer(str(own_tokenizer))
    assert tokenizer.end_of_document("the") == tokenizer.judge.token_id("the")
    with refuses(
        DataError, TokenMessage.NO_END_OF_DOCUMENT, complaint="has no token '<eod>'", special="</s>"
    ):
        tokenizer.end_of_document("<eod>")


def test_tokenizer_without_end_of_document(tmp_path: Path, own_tokenizer: Path) -> None:
    content = own_tokenizer.read_text().replace("</s>", "<s>")
    own_tokenizer.write_text(content)
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["the cat"]))
    with refuses(
        DataError,
        TokenMessage.NO_END_OF_DOCUMENT,
        complaint=containing("has none of <|endoftext|>,"),
    ):
        prepare([source], tmp_path / "out", TokenizeOptions(tokenizer=str(own_tokenizer)))
    prepare(
        [source], tmp_path / "out", TokenizeOptions(tokenizer=str(own_tokenizer), append_eod=False)
    )


def test_more_than_65_500_tokens_take_four_bytes(tmp_path: Path, own_tokenizer: Path) -> None:
    content = json.loads(own_tokenizer.read_text())
    vocabulary = content["model"]["vocab"]
    for number in range(len(vocabulary), 65_500):
        vocabulary[f"unused{number}"] = number
    own_tokenizer.write_text(json.dumps(content))
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["the cat"]))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(tokenizer=str(own_tokenizer)))
    assert manifest.dtype == "int32"
    tokens, idx = made(tmp_path / "out")
    assert idx[17] == 4
    assert np.frombuffer(tokens, dtype="<i4").tolist() == [
        *load_tokenizer(str(own_tokenizer)).encode("the cat"),
        0,
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "nothing.json",
            None,
            TokenMessage.NO_SUCH_TOKENIZER.of(reason="No such file or directory"),
        ),
        ("broken.json", "{", TokenMessage.TOKENIZER_NOT_JSON.of()),
        (
            "vocab.json",
            '{"a": 0, "Ġthe": 1}',
            TokenMessage.NOT_A_TOKENIZER_JSON.of(
                hint=containing("It looks like GPT-2's vocab.json")
            ),
        ),
        (
            "vocabulary_of_gpt2.json",
            (GPT2_FOLDER / "vocab.json").read_text(),
            TokenMessage.NOT_A_TOKENIZER_JSON.of(
                hint=containing("It looks like GPT-2's vocab.json")
            ),
        ),
        ("other.json", '{"model": {"type": "Unheard"}}', TokenMessage.TOKENIZER_REFUSED.of()),
    ],
)
def test_unusable_tokenizer(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with refuses(DataError, message):
        load_tokenizer(str(path))


def test_sentencepiece(tmp_path: Path) -> None:
    path = tmp_path / "t.model"
    path.write_bytes(b"not a model")
    try:
        import sentencepiece  # noqa: F401
    except ImportError:
        with refuses(DataError, TokenMessage.SENTENCEPIECE_MISSING, model=path):
            load_tokenizer(str(path))
    else:
        with refuses(DataError, TokenMessage.NOT_SENTENCEPIECE):
            load_tokenizer(str(path))


class Wrong:
    """An encoder with an error in one word, or in a newly assigned character, like a real one
    (facts/data.md 2).
    """

    name = "wrong 1.0"

    def __init__(self, right: HuggingFace) -> None:
        self.right = right

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return self.right.encode_batch(
            [text.replace("fox", "fux").replace("\u1ac8", "x") for text in texts]
        )


def test_encoder_that_differs_is_caught_in_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer("gpt2")
    assert isinstance(tokenizer.judge, HuggingFace)
    monkeypatch.setattr(tokenizer, "encoder", Wrong(tokenizer.judge))
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["a fox"]))
    with pytest.raises(DataError) as caught:
        prepare([source], tmp_path / "out", TokenizeOptions(workers=1))
    assert_about(
        caught.value,
        TokenMessage.ENCODERS_DISAGREE,
        fast_name=Wrong.name,
        judge_name=tokenizer.judge.name,
        text="a fox",
        where=f"in shard 0: {source}",
        ours=[64, 277, 2821],
        theirs=[64, 21831],
    )
    assert not (tmp_path / "out_text_document.bin").exists()


def test_samples_do_not_show_beginnings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer("gpt2")
    assert isinstance(tokenizer.judge, HuggingFace)
    monkeypatch.setattr(tokenizer, "encoder", Wrong(tokenizer.judge))
    monkeypatch.setattr(input_files, "SMALL_SHARD", 5_000)
    source = tmp_path / "in.jsonl"
    beginning = "a dog " * (2 * SAMPLE_CHARACTERS // 6)
    source.write_bytes(json_lines([beginning + "a fox " * 1_000] * 4))
    with refuses(DataError, TokenMessage.ENCODERS_DISAGREE, text=containing("fox")):
        prepare([source], tmp_path / "out", TokenizeOptions(workers=1))


def test_probes_hold_what_they_are_for() -> None:
    judge = load_tokenizer("gpt2").judge
    assert isinstance(judge, HuggingFace)
    assert len(PROBES) >= 60
    with refuses(DataError, TokenMessage.ENCODERS_DISAGREE, where="the built-in edge texts"):
        compare(Wrong(judge), judge, [*PROBES], "the built-in edge texts")
