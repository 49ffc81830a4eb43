from __future__ import annotations

import json
import math
from pathlib import Path

from suite.messages import containing, refuses

from runbook.core.errors import RecordError
from runbook.results.history import parse_metrics, read_events, read_metrics, read_validation
from runbook.results.messages import ResultMessage


def test_later_segment_wins_and_repeats_are_counted(make):
    records = [make.step(n) for n in range(1, 6)] + [
        make.step(n, segment=1, loss=5.0) for n in range(4, 8)
    ]
    history = make.history(records)
    assert [one.iteration for one in history.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [one.segment for one in history.steps] == [0, 0, 0, 1, 1, 1, 1]
    assert [one.iteration for one in history.repeated] == [4, 5]
    assert history.restarts == (4,)
    assert history.num_segments == 2


def test_gap_between_segments_is_named(make):
    history = make.history([make.step(1), make.step(2), make.step(5, segment=1)])
    assert history.absent_up_to(5) == (3, 4)


def test_line_cut_off_by_a_kill_is_counted_and_the_rest_is_read(make):
    whole = json.dumps(make.step(1))
    history = parse_metrics([whole, whole[:50]])
    assert len(history.steps) == 1
    assert history.unread_lines == 1


def test_other_json_is_unread_not_a_step(make):
    assert parse_metrics(["[]", "3", '{"loss": 1}']).unread_lines == 3


def test_missing_and_nan_losses_are_no_losses(make):
    history = make.history(
        [make.step(1), make.step(2, loss=None, skipped=1), make.step(3, loss=float("nan"), nan=1)]
    )
    assert [iteration for iteration, _ in history.losses] == [1]


def test_missing_metrics_say_what_to_do(tmp_path: Path):
    with refuses(
        RecordError,
        ResultMessage.NO_METRICS,
        path=containing("metrics.jsonl"),
        remedy=containing("the training job writes it"),
    ):
        read_metrics(tmp_path / "metrics.jsonl")


def test_empty_metrics_are_no_history(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iter')
    with refuses(RecordError, ResultMessage.NO_WHOLE_RECORD, unread_lines=1):
        read_metrics(path)


def test_validation_keeps_the_last_of_an_iteration(tmp_path: Path):
    path = tmp_path / "validation.jsonl"
    line = {
        "iteration": 50,
        "loss": 6.0,
        "perplexity": 403.4,
        "samples": 32,
        "seconds": 2.0,
        "time": 1.0,
    }
    path.write_text(
        "\n".join(json.dumps(line | {"loss": loss}) for loss in (6.0, 5.5)) + '\n{"half'
    )
    assert [one.loss for one in read_validation(path)] == [5.5]
    assert read_validation(tmp_path / "absent.jsonl") == ()


def test_an_evaluation_that_gave_no_number_has_a_loss_that_is_none(tmp_path):
    path = tmp_path / "validation.jsonl"
    path.write_text(
        '{"iteration": 4, "loss": null, "perplexity": null, "samples": 8, "seconds": 1.0}\n'
    )
    (one,) = read_validation(path)
    assert math.isnan(one.loss) and math.isnan(one.perplexity)


def test_events_of_one_phase(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"event": "started", "phase": "03-smoke-test"}\n{"event": "started", "phase": "04-training"}\n'
    )
    assert [event.phase for event in read_events(path, "04-training")] == ["04-training"]


def test_events_of_a_training_that_was_set_aside_do_not_count(tmp_path: Path):
    def names_after(*names: str) -> list[str]:
        lines = [json.dumps({"event": name, "phase": "04-training"}) for name in names]
        (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return [event.name for event in read_events(tmp_path / "events.jsonl", "04-training")]

    assert names_after("begun", "saved", "stopped", "begun", "started", "saved") == [
        "begun",
        "started",
        "saved",
    ]
    assert names_after("saved", "stopped") == ["saved", "stopped"]
    assert names_after() == []
