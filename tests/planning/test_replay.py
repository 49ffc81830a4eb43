"""A replayed step, compared with closed forms for pipelines, and with planned times for counted
work.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from runbook.plan_file.rehearsed_work import Work
from runbook.plan_file.schema import Layout
from runbook.planning.cost.accelerators import ACCELERATORS
from runbook.planning.cost.counted_step import Replay, Seconds, StageTimes, stage_times
from runbook.planning.cost.iteration import DEFAULT, StepModel, StepSetup
from runbook.planning.sizes import shape_of
from runbook.results.figures.plan_figures import schedule_figure

from .conftest import build


def replay(
    stages: int,
    microbatches: int,
    chunks: int = 1,
    *,
    send: float = 0.0,
    slow: int = -1,
    hides_sends: bool = False,
) -> Replay:
    """Replay equal stages that take 1 s forward and 2 s backward per micro-batch.

    `slow` names a stage that takes twice as long.
    """
    times = [
        StageTimes(
            (Seconds(matrices=(2 if stage == slow else 1) / chunks),) * chunks,
            (Seconds(matrices=(4 if stage == slow else 2) / chunks),) * chunks,
            Seconds(),
            Seconds(),
        )
        for stage in range(stages)
    ]
    return Replay(microbatches, send, hides_sends, 0.0, 1.0, {}, tuple(times))


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks"),
    [(1, 4, 1), (4, 4, 1), (4, 9, 1), (16, 32, 1), (4, 8, 2), (8, 16, 3)],
)
def test_equal_stages_wait_as_the_closed_form_says(
    stages: int, microbatches: int, chunks: int
) -> None:
    found = replay(stages, microbatches, chunks)
    work = 3 * microbatches
    assert found.seconds == pytest.approx(work * (1 + (stages - 1) / (microbatches * chunks)))
    assert found.bubble_share == pytest.approx(1 - work / found.seconds)
    for parts in found.parts:
        assert sum(parts.values()) == pytest.approx(found.seconds)
        assert parts["matrices"] == pytest.approx(work)


def test_a_rounding_error_is_shown_as_zero() -> None:
    stage = StageTimes(
        (Seconds(matrices=1.0, communication=1e-18),), (Seconds(),), Seconds(), Seconds()
    )
    found = Replay(1, 0.0, False, 0.0, 1.0, {}, (stage,))
    assert found.table("counted").rows[0]["tensor ranks"] == "0"


def test_all_wait_for_the_slowest_stage() -> None:
    """Once the first gradient is back, the slowest stage works without a pause.

    Before that the pipeline fills, and afterwards it drains.
    """
    found = replay(4, 8, slow=1)
    busy = sorted((event.start, event.end) for event in found.events if event.stage == 1)
    assert all(later[0] == pytest.approx(earlier[1]) for earlier, later in pairwise(busy[3:]))
    # 1 s for the first input, 2 s idle until the first gradient is back, 2 s of the previous stage
    # at the end.
    assert found.seconds == pytest.approx(1 + 2 + 8 * 6 + 2)
    assert [round(parts["bubble"]) for parts in found.parts] == [29, 5, 29, 29]


def test_no_pass_begins_before_its_input_has_come() -> None:
    found = replay(4, 8, 2, send=0.25)
    passes = {
        event[1:4] + event[:1]: event for event in found.events if event.kind != "communication"
    }
    for (kind, chunk, microbatch, stage), event in passes.items():
        if kind == "forward" and stage:
            assert event.start >= passes[kind, chunk, microbatch, stage - 1].end + 0.25 - 1e-9
        if kind == "backward" and stage < 3:
            assert event.start >= passes[kind, chunk, microbatch, stage + 1].end + 0.25 - 1e-9
    # In each direction, every chunk but the last one sends its result for each micro-batch.
    assert sum(parts["pipeline"] for parts in found.parts) == pytest.approx(
        0.25 * 8 * (2 * 2 * 4 - 2)
    )


def test_a_stage_that_sends_beside_its_work_loses_only_the_time_on_the_way() -> None:
    waits = replay(4, 8, 2, send=0.25)
    goes_on = replay(4, 8, 2, send=0.25, hides_sends=True)
    assert replay(4, 8, 2).seconds < goes_on.seconds < waits.seconds
    assert all(parts["pipeline"] == 0 for parts in goes_on.parts)


def test_the_end_of_a_step_waits_for_all_gradients() -> None:
    equal = replay(2, 4)
    stages = [
        replace(times, once=Seconds(communication=2.0), optimizer=Seconds(memory=1.0))
        for times in equal.stages
    ]
    found = replace(equal, stages=tuple(stages), waiting_share=0.1)
    begins = {event.start for event in found.events if event.kind == "optimizer"}
    assert begins == {equal.seconds + 2.0}
    assert found.seconds == pytest.approx(1.1 * (equal.seconds + 3.0))
    assert found.parts[1]["data"] == 2.0


def setup(data: int = 1, global_batch: int = 64) -> StepSetup:
    shape = shape_of(build(model="175b").model, tensor=8, sequence_length=2048, own=True)
    return StepSetup(
        shape=shape,
        layout=Layout(tensor=8, pipeline=16, sequence=True).over(128 * data),
        micro_batch=1,
        global_batch=global_batch,
        device=ACCELERATORS["A100-SXM4-80GB"],
        precision="bf16",
    )


def test_counted_work_has_the_prices_of_the_plan() -> None:
    """The work planned for six GPT-3 layers, converted to time part by part, adds up to the planned
    time.
    """
    own = replace(DEFAULT, latency_microseconds=0.0)  # bytes are counted, not messages
    model = StepModel(setup(), own)
    tokens = 2048
    hidden = 12288
    planned = StepModel(setup(global_batch=1), own).step()
    layers = 6 * 72 * tokens * hidden**2 // 8
    sent = 8 * 6 * 2 * tokens * hidden
    amounts = {"matrix_flops": layers, "attention_flops": 6 * 14 * tokens**2 * hidden // 8}
    times = stage_times(
        0, [Work("backward", 0, amounts | {"tensor:allgather_base:alone": sent})], model
    )
    (backward,) = times.backward
    assert backward.attention == pytest.approx(planned.attention)
    assert backward.communication == pytest.approx(planned.tensor)
    assert backward.matrices == pytest.approx(layers / 312e12 / DEFAULT.sustained["A100"])
    # The plan adds the bytes of the matrices and idle processors.
    assert backward.matrices == pytest.approx(planned.matrices, rel=0.2)


def test_what_goes_on_beside_work_hides_behind_it_and_an_allreduce_is_sent_twice() -> None:
    model = StepModel(setup())

    def sent(kind: str) -> float:
        work = Work("backward", 0, {"matrix_flops": 10**14, f"tensor:{kind}": 10**9})
        return stage_times(0, [work], model).backward[0].communication

    assert sent("allreduce:alone") == pytest.approx(2 * sent("reduce_scatter:alone"))
    assert 0 < sent("allgather:overlapped") < sent("allgather:alone") / 10


def test_gradients_that_are_sent_beside_the_last_passes_hide_behind_them() -> None:
    passes = [
        Work("forward", 0, {"matrix_flops": 10**13}),
        Work("backward", 0, {"matrix_flops": 2 * 10**13}),
    ]
    alone, beside = (
        stage_times(
            0,
            [*passes, Work("once", 0, {f"data:reduce_scatter:{when}": 10**8})],
            StepModel(setup(data=8)),
        ).once
        for when in ("alone", "overlapped")
    )
    assert 0 < beside.communication < alone.communication / 10


def test_a_layer_takes_its_least_time_however_small() -> None:
    model = StepModel(setup())
    times = stage_times(0, [Work("forward", 0, {"matrix_flops": 1})], model)
    least = 6 * model.least_layer_seconds + model.least_microbatch_seconds
    assert times.forward[0].computing + times.backward[0].computing == pytest.approx(least)


@pytest.mark.parametrize(("microbatches", "panels"), [(8, 1), (64, 2)])
def test_the_schedule_has_a_lane_for_each_stage_and_shows_both_ends_of_a_long_step(
    microbatches: int, panels: int
) -> None:
    found = replay(8, microbatches, send=0.1)
    figure = schedule_figure(found)
    assert len(figure.axes) == panels
    assert [len(axes.get_yticks()) for axes in figure.axes] == [8] * panels
    assert figure.axes[0].get_xlim()[0] == 0
    assert figure.axes[-1].get_xlim()[1] == pytest.approx(found.seconds)
    assert f"{found.seconds:.4g} s replayed" in figure.legends[0].get_title().get_text()
