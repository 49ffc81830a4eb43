"""A slow, independent implementation that writes the same bytes: json, tokenizers and struct, one
document at a time.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

GPT2 = Path(__file__).parents[2] / "runbook" / "tokens" / "gpt2"
EOD = 50256

EDGE_TEXTS = [
    "An ordinary document.\nWith two lines.",
    "",
    "   ",
    "\n\n\n",
    "emoji \U0001f600\U0001f469\u200d\U0001f467 and flags \U0001f1eb\U0001f1f7",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \ud55c\uad6d\uc5b4",
    "NUL \x00 inside\x00",
    "spells <|endoftext|> out<|endoftext|>",
    "",
    "",
    "line separators \u2028 and \u2029 and \x85 inside",
    "tabs\tand\r\ncarriage returns\r",
    "caf\u00e9 cafe\u0301 \ufb01 \u0130",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "x" * 5000,
    " leading and trailing ",
    "0123456789" * 50,
    "<|endoftext|>",
    "the end",
    "",
]


@cache
def judge(special_tokens: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.encode_special_tokens = not special_tokens
    return tokenizer


@cache
def encoded(text: str, special_tokens: bool) -> list[int]:
    return judge(special_tokens).encode(text, add_special_tokens=False).ids


def expected(
    texts: list[str], *, append_eod: bool = True, special_tokens: bool = False
) -> tuple[bytes, bytes]:
    """Return the .bin and the .idx that Megatron's preprocess_data.py writes for these texts
    (facts/data.md 5 and 6).
    """
    tokens = b""
    lengths: list[int] = []
    pointers: list[int] = []
    document_index = [0]
    for text in texts:
        ids = encoded(text, special_tokens)
        if ids and append_eod:
            ids = [*ids, EOD]
        if ids:
            pointers.append(len(tokens))
            lengths.append(len(ids))
            tokens += struct.pack(f"<{len(ids)}H", *ids)
        document_index.append(len(lengths))
    idx = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(document_index))
    idx += struct.pack(f"<{len(lengths)}i", *lengths)
    idx += struct.pack(f"<{len(pointers)}q", *pointers)
    idx += struct.pack(f"<{len(document_index)}q", *document_index)
    return tokens, idx


def json_lines(texts: list[str], **meta: object) -> bytes:
    return b"".join(json.dumps({"text": text, **meta}).encode() + b"\n" for text in texts)


def made(prefix: Path) -> tuple[bytes, bytes]:
    base = prefix.with_name(prefix.name + "_text_document")
    return base.with_name(base.name + ".bin").read_bytes(), base.with_name(
        base.name + ".idx"
    ).read_bytes()
