"""Several texts in one training run: what the plan reads, how it weights them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from suite.messages import containing, says

from runbook.core.errors import PlanError
from runbook.params.schema.entries import Dataset, TextShare
from runbook.plan_file.schema import Source
from runbook.planning import make_plan
from runbook.planning.data_plan import plan_data
from runbook.planning.messages import PlanningMessage
from runbook.planning.token_preparation import data_work

from .conftest import CORPUS, TWO_CORES, build


def dataset(count: int = 0, **values: Any) -> Dataset:
    stem = values.pop("stem", "part")
    names = [{"path": f"{stem}_{number}.jsonl"} for number in range(count)]
    return Dataset.model_validate({**CORPUS.model_dump(), "files": names, **values})


def blended(*texts: TextShare, **sections: Any) -> Any:
    return replace(build(sections), blend=texts)


TWO = (
    TextShare("corpus", 3.0, CORPUS),
    TextShare("mine", 1.0, dataset(tokens=100_000, documents=0, text_bytes=400_000)),
)


def test_the_trainer_is_told_each_text_with_its_weight() -> None:
    plan = make_plan(blended(*TWO), TWO_CORES).as_dict()
    for spec in plan["phases"].values():
        assert spec["data"]["train"] == [
            {"weight": 3.0, "prefix": "data/corpus_text_document"},
            {"weight": 1.0, "prefix": "data/mine_text_document"},
        ]
        assert (spec["data"]["validation"], spec["data"]["split"]) == ([], "949,50,1")
    assert plan["data"]["estimated_tokens"] == 500_100 + 100_000
    assert [part["dataset"] for part in plan["data"]["parts"]] == ["corpus", "mine"]


def test_another_weight_is_another_training() -> None:
    def fingerprint(*texts: TextShare) -> str:
        return str(
            make_plan(blended(*texts), TWO_CORES).as_dict()["phases"]["04-training"]["fingerprint"]
        )

    assert fingerprint(*TWO) != fingerprint(TWO[0], replace(TWO[1], weight=2.0))


def test_a_single_text_is_planned_as_it_was_before_there_were_blends() -> None:
    assert "parts" not in make_plan(build(), TWO_CORES).as_dict()["data"]


def test_files_of_a_text_share_its_weight_and_each_text_holds_its_own_files_out() -> None:
    texts = (
        TextShare("corpus", 3.0, dataset(5, stem="a")),
        TextShare("mine", 1.0, dataset(4, stem="b")),
    )
    plan = plan_data(blended(*texts, data={"held_out": 1}))
    assert plan.weighted("train") == (
        *(Source(1.0, f"data/a_{number}_text_document", "corpus") for number in range(3)),
        *(Source(0.5, f"data/b_{number}_text_document", "mine") for number in range(2)),
    )
    for use, a, b in (("validation", 4, 3), ("test", 3, 2)):
        files = Source(3.0, f"data/a_{a}_text_document"), Source(1.0, f"data/b_{b}_text_document")
        assert plan.weighted(use) == files


def test_sites_with_a_place_for_data_have_a_folder_for_each_text() -> None:
    settings = replace(build(site={"paths": {"data": "/scratch"}}), blend=TWO)
    assert plan_data(settings).train == (
        "/scratch/corpus/corpus_text_document",
        "/scratch/mine/mine_text_document",
    )


def test_too_few_files_of_one_text_and_one_file_in_two_texts_are_refused() -> None:
    few = blended(
        TextShare("corpus", 1.0, dataset(5, stem="a")),
        TextShare("mine", 1.0, dataset(2, stem="b")),
        data={"held_out": 1},
    )
    with pytest.raises(PlanError) as caught:
        make_plan(few, TWO_CORES)
    assert says(
        str(caught.value), PlanningMessage.HELD_OUT_FILES, held_out=1, files="2 files of mine"
    )
    twice = blended(
        TextShare("corpus", 1.0, dataset(5)),
        TextShare("mine", 1.0, dataset(5)),
        data={"held_out": 1},
    )
    with pytest.raises(PlanError) as caught:
        make_plan(twice, TWO_CORES)
    files = containing("data/part_0_text_document")
    assert says(str(caught.value), PlanningMessage.FILES_TWICE, files=files)


@pytest.mark.parametrize(("iterations", "verdict"), [(100, "pass"), (500, "warn")])
def test_the_text_that_is_read_most_often_for_its_size_counts(
    iterations: int, verdict: str
) -> None:
    checks = {
        check.name: check
        for check in make_plan(blended(*TWO, training={"iterations": iterations})).checks
    }
    check = checks["04-training: text read once"]
    assert check.verdict == verdict
    for text in ("corpus", "mine"):
        assert says(check.value, PlanningMessage.TEXT_READ, text=text)
    shares = PlanningMessage.SAMPLES_BY_TEXT.fill(shares="corpus 75.0%, mine 25.0%")
    assert checks["data blend"].value == shares


def test_a_text_of_unknown_size_leaves_the_sums_unknown() -> None:
    texts = (TWO[0], TextShare("mine", 1.0, dataset(tokens=0, text_bytes=0)))
    settings = blended(*texts)
    plan = plan_data(settings)
    assert (plan.estimated_tokens, plan.estimated_bytes, plan.train_share) == (0, 0, 0.0)
    assert data_work(settings, plan)[0].core_hours is None
    assert data_work(blended(*TWO), plan_data(blended(*TWO)))[0].core_hours is not None
