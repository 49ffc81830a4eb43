"""The plan as tables, which a person reads before making a decision."""

from __future__ import annotations

import pytest
from suite.messages import says

from runbook.core.table import UNKNOWN
from runbook.planning import Plan, make_plan
from runbook.planning.cost.flops import CONVENTIONS
from runbook.planning.messages import PlanningMessage
from runbook.planning.plan_tables import (
    CHECKPOINT_INTERVAL,
    FIRST_LOSS,
    PARAMETERS_ON_RANK,
    Table,
    batch_sum,
    checks_table,
    devices_sum,
    duration_sum,
    flops_table,
    layout_table,
    memory_table,
    parameters_of,
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
    assert batch_sum(smoke) == PlanningMessage.BATCH_PRODUCT.fill(
        micro=1, replicas="2 replicas", steps="2 steps", sequences=4, tokens=4096
    )
    assert duration_sum(smoke) == PlanningMessage.LENGTH_PRODUCT.fill(
        iterations=12, sequences=4, samples=48, tokens="49.2 K"
    )
    product = PlanningMessage.DEVICES_BY_KIND.fill(tensor=1, pipeline=1, context="", data=2)
    assert devices_sum(smoke) == PlanningMessage.DEVICES_PRODUCT.fill(
        product=product, devices=2, chunks="", zero_stage=1
    )


def test_devices_name_what_is_used() -> None:
    sections = {
        "parallel": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2, "context": 2},
        "training": {"framework": "megatron-lm", "micro_batch": 1},
        "jobs": {"training": {"nodes": 1}, "smoke": {"nodes": 1}},
    }
    spec = make_plan(build(sections, device="H100-SXM")).phases["04-training"]
    context = PlanningMessage.CONTEXT_DEVICES.fill(context=2)
    assert devices_sum(spec) == PlanningMessage.DEVICES_PRODUCT.fill(
        product=PlanningMessage.DEVICES_BY_KIND.fill(tensor=2, pipeline=2, context=context, data=1),
        devices=8,
        chunks=PlanningMessage.CHUNKS_OF_STAGE.fill(chunks=2),
        zero_stage=1,
    )
    assert batch_sum(spec) == PlanningMessage.BATCH_PRODUCT.fill(
        micro=1, replicas="1 replica", steps="8 steps", sequences=8, tokens=1024
    )


def test_sizes_show_counts_labels_and_the_first_loss(plan: Plan) -> None:
    table = sizes_table(plan)
    rows = by_what(table)
    assert rows[parameters_of("whole model")] == ("64,633,856", "7,248,640")
    first_loss = PlanningMessage.FIRST_LOSS.fill(loss=10.82, vocabulary=50257)
    assert rows[FIRST_LOSS] == (first_loss, first_loss)
    padded = PlanningMessage.PADDED_VOCABULARY.fill(vocabulary=50257, padded=50304)
    assert rows["vocabulary"][0] == padded
    notes = "\n".join(table.notes)
    assert says(notes, PlanningMessage.LABEL, label="375M", rounded="64.6 M", parameters=64_633_856)


def test_the_fullest_stage_is_shown_for_pipelines() -> None:
    sections = {"parallel": {"pipeline": 2}}
    rows = by_what(sizes_table(make_plan(build(sections), TWO_CORES)))
    stage = PlanningMessage.FULLEST_STAGE.fill(stages=2)
    assert rows[PARAMETERS_ON_RANK][1] == f"6,851,840{stage}"


def test_layout_shows_when_the_peak_is_reached(plan: Plan) -> None:
    rows = by_what(layout_table(plan))
    course = PlanningMessage.RATE_COURSE.fill(schedule="cosine", minimum=6e-5, samples=4800)
    rate = PlanningMessage.RATE_PEAK.fill(peak=0.0006, step=3, course=course)
    assert rows["learning rate"][0] == rate
    assert rows["model"][1] == PlanningMessage.MODEL_SHAPE.fill(
        name="tiny", layers=4, hidden=128, heads=4, sequence_length=128
    )


def test_what_is_not_known_is_said() -> None:
    unknown = make_plan(build(dataset=CORPUS.model_copy(update={"tokens": 0, "text_bytes": 0})))
    assert by_what(memory_table(unknown))["there is"] == ("not known", "not known")
    time = by_what(time_table(unknown))
    assert time["a step"] == ("not known", "not known")
    assert time["from"][0] == PlanningMessage.CORES_NOT_KNOWN.fill()
    size = PlanningMessage.DATA_SIZE.fill(
        names="corpus",
        tokens=f"tokens {UNKNOWN}",
        size=f"size {UNKNOWN}",
        source=PlanningMessage.TOKENS_NOT_KNOWN.fill(),
    )
    assert tuple(storage_table(unknown).notes) == (size,)


def test_time_storage_and_memory_are_in_readable_units(plan: Plan) -> None:
    assert by_what(time_table(plan))["a step"] == ("3.47 s", "0.18 s")
    assert by_what(storage_table(plan))["one checkpoint"] == (
        PlanningMessage.CHECKPOINT_SIZE.fill(size="863 MiB", bytes_per_parameter=14),
        PlanningMessage.CHECKPOINT_SIZE.fill(size="96.8 MiB", bytes_per_parameter=14),
    )
    at_end = PlanningMessage.SAVES_AT_END.fill()
    assert by_what(storage_table(plan))[CHECKPOINT_INTERVAL] == (at_end, "1000")
    limit = PlanningMessage.LIMIT_OF.fill(size="24.0 GiB", unit="node")
    assert by_what(memory_table(plan))["there is"] == (limit, limit)


def test_operations_name_their_convention(plan: Plan) -> None:
    rows = {row["convention"]: row for row in flops_table(plan).rows}
    own = rows[PlanningMessage.OWN_CONVENTION.fill(convention="megatron-full")]
    assert own["formula"] == CONVENTIONS["megatron-full"].formula
    assert own["smoke test"] == PlanningMessage.FLOPS_OF_TOKEN.fill(gflop=0.4565)
    recomputed = PlanningMessage.COUNTS_RECOMPUTED.fill()
    assert rows["megatron-deepspeed-f4"]["counts"] == recomputed


def test_places_of_smoke_test_and_training_differ_in_every_row(plan: Plan) -> None:
    assert all(row["smoke test"] != row["training"] for row in places_table(plan).rows)


def test_checks_are_counted(plan: Plan) -> None:
    table = checks_table(plan)
    verdicts = PlanningMessage.VERDICTS.fill(passed=len(table.rows), warned=0, unknown=0)
    assert tuple(table.notes) == (verdicts,)
