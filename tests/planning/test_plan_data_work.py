"""Bytes and hours for the data phase with both methods, compared with what the documents state."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.params.schema.entries import Dataset
from runbook.planning.data_plan import plan_data
from runbook.planning.token_preparation import PreparationCost, data_work

from .conftest import TWO_CORES, build

SLIMPAJAMA: dict[str, Any] = {
    "title": "SlimPajama",
    "kind": "download",
    "licence": "various",
    "source": "test",
    "download_bytes": 895_000_000_000,
    "record_bytes": 2_500_000_000_000,
    "tokens": 590_000_000_000,
}


def ways(
    dataset: dict[str, Any], sections: dict[str, Any] | None = None, **others: Any
) -> tuple[PreparationCost, ...]:
    settings = build(sections, dataset=Dataset(**dataset), **others)
    return data_work(settings, plan_data(settings), TWO_CORES)


def test_slimpajama_takes_seven_terabytes_the_documents_way_and_two_in_one_pass() -> None:
    ours, theirs = ways(SLIMPAJAMA)
    assert theirs.disk_bytes == pytest.approx(7.1e12, rel=0.02)
    assert ours.disk_bytes == pytest.approx(2.1e12, rel=0.02)
    assert ours.written_bytes == pytest.approx(1.2e12, rel=0.02)
    assert (ours.core_hours, theirs.core_hours) == (
        pytest.approx(5.34, rel=0.01),
        pytest.approx(239, rel=0.01),
    )
    assert ours.hours == pytest.approx(5.34 / 2, rel=0.01)


def test_repairing_the_text_takes_forty_times_as_long_as_its_tokens() -> None:
    ours, theirs = ways(SLIMPAJAMA, {"data": {"fix_text": "ftfy"}})
    assert ours.core_hours == pytest.approx(5.34 + 2.5e12 / 3.5e6 / 3600, rel=0.01)
    assert theirs.core_hours == pytest.approx(239 + 2.5e12 / 3.5e6 / 3600, rel=0.01)
    assert ours.disk_bytes == ways(SLIMPAJAMA)[0].disk_bytes


def test_storage_bounds_the_hours_where_its_speed_is_known() -> None:
    assert ways(SLIMPAJAMA)[0].storage_hours is None
    tiers = {"write_bandwidth": {"slow": 1.0, "fast": 10.0}}
    ours, theirs = ways(SLIMPAJAMA, site=tiers)
    assert ours.storage_hours == pytest.approx((0.895e12 + 1.18e12) / 10e9 / 3600, rel=0.01)
    assert (theirs.storage_hours or 0) > 4 * (ours.storage_hours or 0)


def test_a_text_of_unknown_size_leaves_every_figure_empty() -> None:
    unknown = {
        key: value for key, value in SLIMPAJAMA.items() if key not in ("tokens", "record_bytes")
    }
    for way in ways(unknown):
        assert {
            way.read_bytes,
            way.written_bytes,
            way.core_hours,
            way.hours,
            way.storage_hours,
        } == {None}


@pytest.mark.parametrize("kind", ["mock", "tokenized"])
def test_where_no_text_is_tokenized_there_is_no_work(kind: str) -> None:
    assert ways({**SLIMPAJAMA, "kind": kind}) == ()
