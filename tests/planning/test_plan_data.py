"""The token files that a run reads, and what the plan says about them in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.core.units import show_bytes, show_count
from runbook.params.schema.entries import Dataset, Model
from runbook.plan_file.token_index import index_bytes
from runbook.planning import Check, make_plan
from runbook.planning.data_plan import (
    TextFiles,
    held_out_split,
    plan_data,
    split_shares,
)
from runbook.planning.data_rules import check_tokenizer_files
from runbook.planning.messages import PlanningMessage

from .conftest import CORPUS, build


def files(count: int, **values: Any) -> Dataset:
    names = [{"path": f"train/part_{number}.jsonl.zst"} for number in range(count)]
    return CORPUS.model_copy(
        update={"files": Dataset.model_validate({**_plain(), "files": names}).files, **values}
    )


def _plain() -> dict[str, Any]:
    return {"title": "x", "kind": "local", "licence": "x", "source": "x"}


def test_one_prefix_lies_in_the_run_folder() -> None:
    plan = plan_data(build())
    assert plan.prefix == "data/corpus_text_document"
    assert (plan.train, plan.validation, plan.test) == (("data/corpus_text_document",), (), ())


def test_prefix_is_what_the_data_phase_writes_at_the_sites_place() -> None:
    plan = plan_data(
        build({"data": {"text_key": "content"}}, site={"paths": {"data": "/scratch/tokens/"}})
    )
    assert plan.prefix == "/scratch/tokens/corpus/corpus_text_document"


def test_ready_token_files_are_read_where_data_folder_says() -> None:
    ready = {"title": "x", "kind": "tokenized", "licence": "x", "source": "x", "folder": "t"}
    site = {"paths": {"data": "/scratch/tokens/"}}

    def train(folder: str) -> tuple[str, ...]:
        run = {"data": {"dataset": "tokenized", "folder": folder}}
        return plan_data(build(run, site=site, dataset=Dataset(**ready))).train

    assert train("/data/my-gpt_text_document") == ("/data/my-gpt_text_document",)
    # The names in a folder are only known on the machine: 02-data links them into the run folder.
    assert train("/data/texts") == ("data/tokenized_text_document",)
    assert train("") == ("/scratch/tokens/tokenized/tokenized_text_document",)


def test_estimates_count_ends_of_documents_and_both_files() -> None:
    plan = plan_data(build())
    assert plan.estimated_tokens == 500_100
    assert plan.estimated_bytes == 2 * 500_100 + index_bytes(100, 101)
    assert plan.tokens_from == PlanningMessage.TOKENS_OF_CATALOGUE.fill(
        counted="GPT-2 tokens", ends=100
    )
    assert plan_data(build({"data": {"append_eod": False}})).estimated_tokens == 500_000


def test_wide_vocabularies_take_four_bytes_a_token() -> None:
    model = Model(
        label="wide",
        layers=4,
        hidden=128,
        heads=4,
        sequence_length=128,
        vocabulary=128_256,
        source="x",
    )
    assert plan_data(build(model=model)).estimated_bytes == 4 * 500_100 + index_bytes(100, 101)


def test_tokens_are_guessed_from_text_only_where_they_were_not_counted() -> None:
    plan = plan_data(build(dataset=CORPUS.model_copy(update={"tokens": 0})))
    assert plan.estimated_tokens == 500_100
    assert plan.tokens_from == PlanningMessage.TOKENS_OF_TEXT.fill(
        text_bytes=2_000_000, bytes_per_token=4.0
    )
    unknown = plan_data(build(dataset=CORPUS.model_copy(update={"tokens": 0, "text_bytes": 0})))
    assert (unknown.estimated_tokens, unknown.estimated_bytes) == (0, 0)
    assert unknown.tokens_from == PlanningMessage.TOKENS_NOT_KNOWN.fill()


def test_mock_data_has_no_files_and_no_rules(verdicts: Callable[..., dict[str, Check]]) -> None:
    mock = Dataset.model_validate({**_plain(), "kind": "mock"})
    spec = make_plan(build(dataset=mock)).as_dict()["phases"]["04-training"]["data"]
    assert spec == {
        "mock": True,
        "train": [],
        "validation": [],
        "test": [],
        "split": "949,50,1",
        "cache": "data/cache",
    }
    assert not [name for name in verdicts(dataset=mock) if "text" in name or "vocabulary" in name]


# facts/seed-systems.md 2.6: what the Azure script does with CHUNKS=15. It trains on nothing if
# holding out files would leave none
SIMULATED = [
    (74, 15, 44),
    (72, 15, 42),
    (50, 15, 20),
    (30, 15, 0),
    (29, 15, 0),
    (20, 15, 0),
    (15, 15, 0),
    (5, 1, 3),
]


@pytest.mark.parametrize(("count", "held_out", "train"), SIMULATED)
def test_held_out_split_trains_on_the_rest_or_on_nothing(
    count: int, held_out: int, train: int
) -> None:
    parts = held_out_split([f"file{number}" for number in range(count)], held_out)
    assert [len(part) for part in parts] == ([train, held_out, held_out] if train else [0, 0, 0])


def test_held_out_files_are_the_highest_numbers() -> None:
    """Sort files by number. Sorted as text, 7, 8 and 9 come after 69 and would be held out."""
    _, validation, test = held_out_split([f"chunk_{number}" for number in range(74)], 2)
    assert (validation, test) == (["chunk_72", "chunk_73"], ["chunk_70", "chunk_71"])


def test_a_superscript_in_a_name_is_no_number() -> None:
    assert held_out_split(["a1²2", "a1²10", "a1²9"], 1) == (["a1²2"], ["a1²10"], ["a1²9"])


@given(st.sets(st.integers(0, 200), min_size=1, max_size=80), st.integers(1, 30))
def test_no_file_is_both_trained_on_and_held_out(numbers: set[int], held_out: int) -> None:
    names = [f"part{number}" for number in numbers]
    train, validation, test = held_out_split(names, held_out)
    assert not (
        set(train) & set(validation) or set(train) & set(test) or set(validation) & set(test)
    )
    assert len(train) + len(validation) + len(test) in (0, len(names))


def test_held_out_files_reach_the_trainer_as_prefixes() -> None:
    spec = make_plan(build({"data": {"held_out": 1}}, dataset=files(4))).as_dict()["phases"][
        "04-training"
    ]["data"]
    assert [entry["prefix"] for entry in spec["train"]] == [
        "data/part_0_text_document",
        "data/part_1_text_document",
    ]
    assert spec["validation"] == [{"weight": 1.0, "prefix": "data/part_3_text_document"}]
    assert spec["test"] == [{"weight": 1.0, "prefix": "data/part_2_text_document"}]


REFUSALS = [
    (
        {"data": {"held_out": 15}},
        {"dataset": files(30)},
        "held-out files: data.held_out=15 for validation and the same number for test, of 30 "
        "files. Rule: more files than 2 x data.held_out, so that some are left for training. "
        "Lower data.held_out to at most 14, or 0 to split inside each file.",
    ),
    (
        {"data": {"split": "1000,0,0"}},
        {},
        "data split: data.split=1000,0,0: 100.0% train, 0.0% validation. Rule: there is text for training, and for "
        "validation if evaluation is on. Give data.split shares above 0, such as 949,50,1, or set "
        "training.eval_interval to 0.",
    ),
    (
        {},
        {"site": {"paths": {"merges": "/stage/vocab.json"}}},
        "merges are not the vocabulary: vocabulary gpt2/vocab.json, merges /stage/vocab.json. "
        "Rule: two files: vocab.json maps tokens to ids, merges.txt lists the pairs; a vocabulary "
        "contains no pairs, so it cannot be read as merges. Name the merges.txt that belongs to "
        "the vocabulary.",
    ),
    (
        {"data": {"tokenizer": "/stage/merges.txt"}},
        {},
        "merges are not the vocabulary: data.tokenizer=/stage/merges.txt. Rule: the tokenizer is "
        "one file: tokenizer.json or a SentencePiece model. Set data.tokenizer to gpt2, which "
        "includes vocabulary and merges, or to a tokenizer.json.",
    ),
    (
        {},
        {
            "model": Model(
                label="x",
                layers=4,
                hidden=128,
                heads=4,
                sequence_length=128,
                vocabulary=1000,
                source="x",
            )
        },
        "vocabulary holds all tokens: vocabulary of 1000, GPT-2 token ids up to 50256. Rule: "
        "every token id is smaller than the model's vocabulary. Give the model a vocabulary of "
        "50257, or set data.tokenizer to one that fits the model.",
    ),
]


@pytest.mark.parametrize(
    ("sections", "others", "text"), REFUSALS, ids=[row[2].partition(":")[0] for row in REFUSALS]
)
def test_a_broken_rule_says_values_rule_and_remedy(
    refusal: Callable[..., str], sections: dict[str, Any], others: dict[str, Any], text: str
) -> None:
    assert text in refusal(sections, **others)


def test_too_few_held_out_files_to_count_stay_unknown(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    check = verdicts({"data": {"held_out": 15}})["held-out files"]
    remedy = PlanningMessage.HELD_OUT_NOT_COUNTED.fill()
    assert (check.verdict, check.remedy) == ("unknown", remedy)


def test_repeated_text_is_told_and_not_refused(verdicts: Callable[..., dict[str, Check]]) -> None:
    check = verdicts({"training": {"iterations": 1000}})["04-training: text read once"]
    assert check.value == PlanningMessage.TOKENS_READ.fill(
        tokens="1.02 M", available="475 K", epochs=2.16
    )
    assert check.rule == PlanningMessage.READ_ONCE_RULE.fill()
    assert check.remedy == PlanningMessage.TAKE_MORE_TEXT.fill()
    assert check.verdict == "warn"
    unknown = verdicts(dataset=CORPUS.model_copy(update={"tokens": 0, "text_bytes": 0}))[
        "04-training: text read once"
    ]
    assert unknown.verdict == "unknown"


@pytest.mark.parametrize(
    ("text_bytes", "files", "epochs", "verdict"),
    [
        (4_096_000, "text", 1.0, "unknown"),
        (600_000, "text", 6.83, "warn"),
        (4_096_000 * 3, "text, some compressed", 0.33, "unknown"),
    ],
)
def test_uncounted_text_is_estimated_from_the_size_of_its_files(text_bytes, files, epochs, verdict):
    file_bytes = min(text_bytes, 4_096_000)
    settings = build(
        {"training": {"iterations": 1000}},
        dataset=CORPUS.model_copy(update={"tokens": 0, "text_bytes": 0}),
    )
    text_files = {"corpus": TextFiles(file_bytes, text_bytes)}
    checks = {check.name: check for check in make_plan(settings, text_files=text_files).checks}
    check = checks["04-training: text read once"]
    read = PlanningMessage.TOKENS_READ.fill(
        tokens="1.02 M", available=show_count(text_bytes / 4), epochs=epochs
    )
    assert check.value == PlanningMessage.ESTIMATED_FROM_FILES.fill(
        value=read, size=show_bytes(file_bytes), files=files
    )
    remedy = PlanningMessage.TAKE_MORE_TEXT.fill() if verdict == "warn" else ""
    assert (check.verdict, check.remedy) == (verdict, remedy)


def test_azure_merges_default_is_caught() -> None:
    """The Azure script sets MERGE_FILE to the path of vocab.json."""
    assert check_tokenizer_files("/stage/vocab.json", "/stage/vocab.json").verdict == "fail"
    assert check_tokenizer_files("/stage/merges.txt", "/stage/vocab.json").verdict == "fail"
    assert check_tokenizer_files("/stage/vocab.json", "/stage/merges.txt").verdict == "pass"


def test_split_of_nothing_has_no_shares() -> None:
    assert split_shares("0,0,0") == (0.0, 0.0, 0.0)
