"""Which token files a run reads, what they will hold, and how often it reads them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from runbook.params.dataset import Dataset, Text
from runbook.plan.blend import Part, check_part_epochs, check_parts, weighted
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Chosen
from runbook.units import show_count

BYTES_OF_TEXT_PER_TOKEN = 4.0
"""Rough size of a GPT-2 token in English prose (measured: 4.13 for books, 3.13 for technical text)."""

GPT2_END_OF_DOCUMENT = 50256
"""Highest token id of the GPT-2 tokenizer."""

MOCK = "mock"
TOKENIZED = "tokenized"
"""A dataset of .bin/.idx pairs that were made elsewhere: each is read as it is."""


@dataclass(frozen=True)
class DataPlan:
    """Prefixes of the .bin/.idx files (relative to plan.json, without suffix) and what they will hold."""

    dataset: str
    mock: bool
    prefix: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    split: str
    held_out: int
    num_files: int
    """Input files; 0: not known before the folder is read."""
    estimated_tokens: int
    """End-of-document tokens included; 0: not known."""
    tokens_from: str
    estimated_bytes: int
    """Of the .bin and .idx files together; 0: not known."""
    parts: tuple[Part, ...] = ()
    """The texts of a blend; empty where there is one text."""

    @property
    def train_share(self) -> float:
        """Part of all tokens that is trained on, where files are of one size."""
        if self.parts:
            trained = sum(part.estimated_tokens * part.train_share for part in self.parts)
            return trained / self.estimated_tokens if self.estimated_tokens else 0.0
        return _train_share(self.num_files, self.held_out, self.split)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; without `parts` where there is one text, as it was before there were blends."""
        content = {**asdict(self), "train_share": self.train_share}
        if not self.parts:
            del content["parts"]
        return content

    def weighted(self, use: str) -> list[tuple[float, str]]:
        """Weight and prefix of each file of a use (train, validation, test); a text's files share its weight."""
        if not self.parts:
            return [(1.0, prefix) for prefix in getattr(self, use)]
        return weighted(self.parts, use)


def plan_data(chosen: Chosen) -> DataPlan:
    """Prefixes and estimates from what the catalogue knows of the texts."""
    data = chosen.run.data
    mock = chosen.dataset.kind == MOCK
    parts = tuple(_part(chosen, text) for text in chosen.texts)
    known = all(part.estimated_tokens for part in parts)
    sources = [part.tokens_from if len(parts) == 1 else f"{part.dataset}: {part.tokens_from}" for part in parts]
    return DataPlan(
        dataset=data.dataset,
        mock=mock,
        prefix=next(part.prefix for part in parts if part.dataset == data.dataset),
        train=() if mock else tuple(prefix for part in parts for prefix in part.train),
        validation=() if mock else tuple(prefix for part in parts for prefix in part.validation),
        test=() if mock else tuple(prefix for part in parts for prefix in part.test),
        split=data.split,
        held_out=data.held_out,
        num_files=sum(part.num_files for part in parts),
        estimated_tokens=sum(part.estimated_tokens for part in parts) if known and not mock else 0,
        tokens_from="mock data: random tokens, as many as asked for" if mock else "; ".join(sources),
        estimated_bytes=sum(part.estimated_bytes for part in parts) if known and not mock else 0,
        parts=parts if len(parts) > 1 else (),
    )


def _part(chosen: Chosen, text: Text) -> Part:
    data, dataset = chosen.run.data, text.dataset
    base = data_folder(chosen, text.name)
    prefix = f"{base}/{text.name}_text_document"
    train, validation, test = [prefix], list[str](), list[str]()
    if dataset.kind == TOKENIZED and dataset.paths:
        train = [f"{base}/{path.removesuffix('.bin')}" for path in dataset.paths]
    if data.held_out:
        stems = [PurePosixPath(path).name.split(".")[0] for path in dataset.paths]
        ready = dataset.kind == TOKENIZED
        prefixes = train if ready and dataset.paths else [f"{base}/{stem}_text_document" for stem in stems]
        train, validation, test = held_out_split(prefixes, data.held_out)
    tokens, tokens_from = _tokens(chosen, dataset)
    width = 2 if chosen.model.vocabulary < 65500 else 4
    return Part(
        dataset=text.name,
        weight=text.weight,
        prefix=prefix,
        train=tuple(train),
        validation=tuple(validation),
        test=tuple(test),
        num_files=len(dataset.paths),
        estimated_tokens=tokens,
        estimated_bytes=tokens * width + index_bytes(dataset.documents) if tokens else 0,
        tokens_from=tokens_from,
        train_share=_train_share(len(dataset.paths), data.held_out, data.split),
    )


def _train_share(num_files: int, held_out: int, split: str) -> float:
    if held_out:
        return max(0, num_files - 2 * held_out) / num_files if num_files else 0.0
    return split_shares(split)[0]


def data_folder(chosen: Chosen, name: str) -> str:
    """`data` in the run's folder, or the site's place for data, one folder a dataset there."""
    base = chosen.site.paths.get("data", "")
    return f"{base.rstrip('/')}/{name}" if base else "data"


def index_bytes(num_documents: int) -> int:
    """Size of an .idx file: header, then length, offset and document number of each.

    >>> index_bytes(0), index_bytes(1000)
    (42, 20042)
    """
    return 34 + (4 + 8) * num_documents + 8 * (num_documents + 1)


def held_out_split(prefixes: list[str], held_out: int) -> tuple[list[str], list[str], list[str]]:
    """Train, validation and test files: the last `held_out` validate, those before them test, the rest trains.

    Files are ordered by the numbers in their names, so that file 10 comes after file 9. With too few files all lists
    are empty: no file is ever both trained on and held out.

    >>> held_out_split([f"part{n}" for n in (1, 2, 10, 9, 3)], 1)
    (['part1', 'part2', 'part3'], ['part10'], ['part9'])
    >>> held_out_split(["a", "b"], 1)
    ([], [], [])
    """
    if held_out < 1 or len(prefixes) <= 2 * held_out:
        return [], [], []
    ordered = sorted(prefixes, key=_natural)
    return ordered[: -2 * held_out], ordered[-held_out:], ordered[-2 * held_out : -held_out]


def split_shares(split: str) -> tuple[float, float, float]:
    """Shares of train, validation and test, summing to 1; all 0 where the words are all 0.

    >>> split_shares("949,50,1")
    (0.949, 0.05, 0.001)
    """
    parts = [float(part) for part in split.split(",")]
    whole = sum(parts)
    first, second, third = (part / whole if whole else 0.0 for part in parts)
    return first, second, third


def check_data(chosen: Chosen, plan: DataPlan) -> list[Check]:
    """Rules about files that do not depend on how long a run is."""
    if plan.mock:
        return []
    files = _held_out(plan) if plan.held_out else _split(chosen, plan)
    return [files, *check_parts(plan.parts), _tokenizer_files(chosen), *_vocabulary(chosen)]


def check_epochs(phase: str, tokens: int, plan: DataPlan) -> list[Check]:
    """Whether a run of this many tokens reads its text more than once."""
    if plan.mock:
        return []
    name, rule = f"{phase}: text read once", "a run reads its training text at most once"
    if plan.parts:
        return [check_part_epochs(name, rule, tokens, plan.parts)]
    available = plan.estimated_tokens * plan.train_share
    if not available:
        return [Check(name, "unknown", f"{tokens:,} tokens wanted; the text's own count is not known", rule)]
    epochs = tokens / available
    return [
        judge(
            name,
            epochs <= 1,
            f"{show_count(tokens)} tokens wanted, {show_count(available)} there to train on: read {epochs:.2f} times",
            rule,
            "Take more text, or fewer iterations; repeating it a few times does little harm.",
            otherwise="warn",
        )
    ]


def check_tokenizer_files(vocabulary: str, merges: str) -> Check:
    """The merges file is not the vocabulary file, which one of the documents' scripts mixes up."""
    same = PurePosixPath(vocabulary) == PurePosixPath(merges)
    mixed = "vocab" in PurePosixPath(merges).name or "merges" in PurePosixPath(vocabulary).name
    return judge(
        "merges are not the vocabulary",
        not (same or mixed),
        f"vocabulary {vocabulary}, merges {merges}",
        "two files: vocab.json maps tokens to ids, merges.txt lists the pairs; a vocabulary read as merges leaves none",
        "Name the merges.txt that belongs to the vocabulary.",
    )


def _tokens(chosen: Chosen, dataset: Dataset) -> tuple[int, str]:
    data = chosen.run.data
    ends = dataset.documents if data.append_eod else 0
    if dataset.tokens:
        counted = "GPT-2 tokens" if data.tokenizer == "gpt2" else "GPT-2 tokens, another tokenizer is used"
        return dataset.tokens + ends, f"the catalogue's count of {counted}, and {ends:,} ends of documents"
    if dataset.text_bytes:
        tokens = round(dataset.text_bytes / BYTES_OF_TEXT_PER_TOKEN)
        return tokens + ends, f"{dataset.text_bytes:,} bytes of text at {BYTES_OF_TEXT_PER_TOKEN:g} bytes a token"
    return 0, "not known before the text is read"


def _held_out(plan: DataPlan) -> Check:
    name, rule = "held-out files", "more files than 2 x data.held_out, so that something is left to train on"
    counts = [(part.num_files, part.dataset) for part in plan.parts] or [(plan.num_files, plan.dataset)]
    fewest, dataset = min(counts)
    if not fewest:
        value = f"data.held_out={plan.held_out}; how many files {dataset} has is not known yet"
        return Check(name, "unknown", value, rule, "02-data counts them and applies the rule.")
    files = f"{fewest} files" + (f" of {dataset}" if plan.parts else "")
    return judge(
        name,
        fewest > 2 * plan.held_out,
        f"data.held_out={plan.held_out} for validation and as many for test, of {files}",
        rule,
        f"Lower data.held_out to at most {max(0, (fewest - 1) // 2)}, or 0 to split inside each file.",
    )


def _split(chosen: Chosen, plan: DataPlan) -> Check:
    train, validation, _ = split_shares(plan.split)
    evaluates = chosen.run.training.eval_interval > 0 and chosen.run.training.eval_iterations > 0
    return judge(
        "data split",
        train > 0 and (validation > 0 or not evaluates),
        f"data.split={plan.split}: {train:.1%} train, {validation:.1%} validation",
        "there is text to train on, and to validate with where evaluation is on",
        "Give data.split shares above 0, such as 949,50,1, or set training.eval_interval to 0.",
    )


def _tokenizer_files(chosen: Chosen) -> Check:
    paths = chosen.site.paths
    tokenizer = chosen.run.data.tokenizer
    if tokenizer != "gpt2":
        wrong = PurePosixPath(tokenizer).name in ("merges.txt", "vocab.json", "vocab.bpe")
        return judge(
            "merges are not the vocabulary",
            not wrong,
            f"data.tokenizer={tokenizer}",
            "a tokenizer of one file: tokenizer.json or a SentencePiece model",
            "Set data.tokenizer to gpt2, which brings vocabulary and merges, or to a tokenizer.json.",
        )
    return check_tokenizer_files(paths.get("vocab", "gpt2/vocab.json"), paths.get("merges", "gpt2/merges.txt"))


def _vocabulary(chosen: Chosen) -> list[Check]:
    if chosen.run.data.tokenizer != "gpt2":
        return []
    smallest = min(chosen.model.vocabulary, chosen.smoke_model.vocabulary)
    return [
        judge(
            "vocabulary holds all tokens",
            smallest > GPT2_END_OF_DOCUMENT,
            f"vocabulary of {smallest}, GPT-2 token ids up to {GPT2_END_OF_DOCUMENT}",
            "every token id is smaller than the model's vocabulary",
            f"Give the model a vocabulary of {GPT2_END_OF_DOCUMENT + 1}, or choose the tokenizer that fits it.",
        )
    ]


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name)]
