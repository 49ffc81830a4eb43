"""The plan as tables: what a person reads before deciding."""

from __future__ import annotations

import pytest

from runbook.planning import Plan, make_plan
from runbook.planning.plan_tables import (
    Table,
    batch_sum,
    checks_table,
    devices_sum,
    duration_sum,
    flops_table,
    layout_table,
    memory_table,
    places_table,
    sizes_table,
    storage_table,
    tables,
    time_table,
)

from .conftest import CORPUS, TWO_CORES, build


@pytest.fixture
def plan() -> dict:
    return make_plan(build(), TWO_CORES)


def by_what(table: Table) -> dict[str, tuple[str, str]]:
    return {row["what"]: (row["smoke test"], row["training"]) for row in table.rows}


def test_every_table_has_the_same_columns_in_all_rows(plan: Plan) -> None:
    found = tables(plan)
    titles = "In short|Sizes|Layout, batch and length|Memory|Operations by convention|Time|Storage|"
    titles += "Preparing the text|Saves, failures, jobs and energy|Places|Checks"
    assert [table.title for table in found] == titles.split("|")
    for table in found:
        assert len({tuple(row) for row in table.rows}) == 1
        assert all(isinstance(value, str) for row in table.rows for value in row.values())


def test_sums_are_written_out(plan: Plan) -> None:
    smoke = plan.phases["03-smoke-test"]
    assert batch_sum(smoke) == "1 micro x 2 replicas x 2 steps = 4 sequences = 4,096 tokens"
    assert duration_sum(smoke) == "12 iterations x 4 = 48 samples = 49.2 K tokens"
    assert devices_sum(smoke) == "1 tensor x 1 pipeline x 2 data replicas = 2, ZeRO 1"


def test_devices_name_what_is_used() -> None:
    sections = {
        "parallel": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2, "context": 2},
        "training": {"framework": "megatron-lm", "micro_batch": 1},
        "jobs": {"training": {"nodes": 1}, "smoke": {"nodes": 1}},
    }
    spec = make_plan(build(sections, device="H100-SXM")).phases["04-training"]
    assert devices_sum(spec) == (
        "2 tensor x 2 pipeline x 2 context x 1 data replicas = 8, 2 chunks a stage, ZeRO 1"
    )
    assert batch_sum(spec) == "1 micro x 1 replica x 8 steps = 8 sequences = 1,024 tokens"


def test_sizes_show_counts_labels_and_the_first_loss(plan: Plan) -> None:
    table = sizes_table(plan)
    rows = by_what(table)
    assert rows["parameters: whole model"] == ("64,633,856", "7,248,640")
    assert rows["first loss expected"] == ("10.82 = ln(50,257)", "10.82 = ln(50,257)")
    assert rows["vocabulary"][0] == "50,257, padded to 50,304"
    assert '"375M" is 64.6 M' in "\n".join(table.notes)


def test_the_fullest_stage_is_shown_for_pipelines() -> None:
    sections = {"parallel": {"pipeline": 2}}
    rows = by_what(sizes_table(make_plan(build(sections), TWO_CORES)))
    assert rows["parameters on a rank"][1] == "6,851,840 (the fullest of 2 stages)"


def test_layout_shows_when_the_peak_is_reached(plan: Plan) -> None:
    rows = by_what(layout_table(plan))
    assert (
        rows["learning rate"][0] == "peak 0.0006 by step 3, then cosine to 6e-05 over 4,800 samples"
    )
    assert rows["model"][1] == "tiny: 4 layers x 128 hidden, 4 heads, sequence 128"


def test_what_is_not_known_is_said() -> None:
    unknown = make_plan(build(dataset=CORPUS.model_copy(update={"tokens": 0, "text_bytes": 0})))
    assert by_what(memory_table(unknown))["there is"] == ("not known", "not known")
    time = by_what(time_table(unknown))
    assert time["a step"] == ("not known", "not known")
    assert time["from"][0] == "how many cores this machine has is not known"
    assert "\n".join(storage_table(unknown).notes) == (
        "Data corpus: tokens not known, size not known (not known before the text is read)."
    )


def test_time_storage_and_memory_are_in_readable_units(plan: Plan) -> None:
    assert by_what(time_table(plan))["a step"] == ("3.47 s", "0.18 s")
    assert by_what(storage_table(plan))["one checkpoint"] == (
        "863 MiB = 14 B a parameter",
        "96.8 MiB = 14 B a parameter",
    )
    assert by_what(storage_table(plan))["steps between checkpoints"] == ("only at the end", "1000")
    assert by_what(memory_table(plan))["there is"] == ("24.0 GiB a node", "24.0 GiB a node")


def test_operations_name_their_convention(plan: Plan) -> None:
    rows = {row["convention"]: row for row in flops_table(plan).rows}
    assert rows["megatron-full (ours)"]["formula"] == "72 B s l h^2 (1 + s/6h + V/12lh)"
    assert rows["megatron-full (ours)"]["smoke test"] == "0.4565 GFLOP a token"
    assert rows["megatron-deepspeed-f4"]["counts"] == "recomputed work too"


def test_places_of_smoke_test_and_training_differ_in_every_row(plan: Plan) -> None:
    assert all(row["smoke test"] != row["training"] for row in places_table(plan).rows)


def test_checks_are_counted(plan: Plan) -> None:
    table = checks_table(plan)
    assert "\n".join(table.notes) == f"{len(table.rows)} pass, 0 warn, 0 unknown"
