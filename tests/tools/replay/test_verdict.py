"""Why a repeated step gives different numbers: a pure comparison of two recordings."""

import dataclasses
from types import SimpleNamespace

import pytest
from suite.messages import says

from runbook.plan_file.replay_file import (
    Circumstances,
    ComputedPlace,
    MarkKey,
    RecordedStep,
    compare_steps,
    first_difference,
    layer_marks,
    packed,
    read_steps,
)
from runbook.results.history import Step
from runbook.tools.replay.again import ReplayJob
from runbook.tools.replay.messages import ReplayMessage
from runbook.tools.replay.verdict import Verdict, compare

HERE = Circumstances(
    versions={"torch": "2.13.0"}, code="abc", machines=["Xeon"] * 2, hosts=["n1", "n2"]
)
KEYS = [
    MarkKey("forward", 1, "attention"),
    MarkKey("forward", 1, "feed-forward"),
    MarkKey("backward", 1, "attention"),
    MarkKey("gradient", 1, "attention"),
]


def recorded(*wrong, data=("d1", "d2"), circumstances=HERE):
    """Return a step of two ranks. `wrong` has the rank and number of the fingerprints that differ
    from the usual ones.
    """
    marks = [dict.fromkeys(KEYS, b"good") for _ in range(2)]
    for rank, number in wrong:
        marks[rank][KEYS[number]] = b"bad!"
    return RecordedStep(4, data, marks, circumstances)


def steps(*losses):
    return {number: Step(number, 1.0, loss=loss) for number, loss in enumerate(losses, start=1)}


def compared(before, now, loss=2.0):
    same = (3.0, 2.8, 2.6)
    return compare(steps(*same, 2.0), steps(*same, loss), {4: before}, {4: now}, begin=0, step=4)


def test_equal_recordings_are_the_same():
    comparison = compared(recorded(), recorded())
    assert (comparison.verdict, comparison.first_step, comparison.num_compared) == ("same", 0, 1)


def test_a_step_with_other_gradients_and_the_same_loss_is_not_told_by_its_loss():
    text = compared(recorded(), recorded((1, 0))).as_text()
    assert says(text, ReplayMessage.FIRST_STEP_WITH_SAME_LOSS, step=4, loss=2.0)
    text = compared(recorded(), recorded((1, 0)), loss=2.5).as_text()
    assert says(text, ReplayMessage.FIRST_STEP, step=4, loss=2.0, again=2.5)


def other(**values):
    return dataclasses.replace(HERE, **values)


@pytest.mark.parametrize(
    ("now", "verdict", "change"),
    [
        (recorded((1, 0)), Verdict.HARDWARE, ""),
        (recorded((1, 0), data=("d1", "dx")), Verdict.DATA, ""),
        (
            recorded((1, 0), circumstances=other(versions={"torch": "2.14.0"})),
            Verdict.PROGRAM,
            "torch",
        ),
        (recorded((1, 0), circumstances=other(code="xyz")), Verdict.PROGRAM, "code"),
        (recorded((1, 0), circumstances=other(machines=["Xeon", "EPYC"])), Verdict.MACHINE, "EPYC"),
    ],
)
def test_a_difference_is_explained_by_what_changed(now, verdict, change):
    comparison = compared(recorded(), now)
    assert comparison.verdict is verdict
    assert change in " ".join(comparison.changes)
    assert (comparison.difference.rank, comparison.host) == (1, "n2")


def test_a_node_with_another_installation_explains_a_difference():
    before = recorded((1, 0), circumstances=other(programs=["p1", "p2"]))
    comparison = compared(before, recorded(circumstances=other(programs=["p1", "p1"])))
    assert comparison.verdict is Verdict.PROGRAM
    odd_rank = ReplayMessage.OTHER_PROGRAM_OF_RANK.fill(rank=1, host="n2")
    assert odd_rank in comparison.changes
    assert odd_rank in comparison.as_text()
    same = other(programs=["p1", "p1"])
    assert compared(recorded((1, 0), circumstances=same), recorded()).verdict is Verdict.HARDWARE


def test_the_first_rank_is_the_one_that_computes_first():
    # Rank 0 gets rank 1's wrong numbers through the sum after its attention.
    difference = compare_steps(recorded(), recorded((0, 1), (1, 0), (1, 1), (0, 2)))
    assert (difference.rank, difference.block, difference.ranks) == (1, "attention", (1,))


def test_a_loss_alone_says_the_step_and_neither_rank_nor_layer():
    comparison = compare(steps(3.0, 2.0), steps(3.0, 2.1), {}, {}, begin=0, step=2)
    assert (comparison.first_step, comparison.difference) == (2, None)
    first = ReplayMessage.FIRST_STEP.fill(step=2, loss=2.0, again=2.1)
    assert ReplayMessage.WITHOUT_FINGERPRINTS.fill(first=first) in comparison.as_text()


def test_marks_of_other_outputs_are_not_compared():
    """An older version recorded more outputs, so its fingerprints differ even for a correct step."""
    now = recorded((1, 0), circumstances=other(watched={"forward": ["linear_proj"]}))
    assert compare_steps(recorded(), now) is None
    last = len(KEYS) - 1
    wrong_gradient = dataclasses.replace(now, marks=recorded((1, 0), (1, last)).marks)
    difference = compare_steps(recorded(), wrong_gradient)
    assert (difference.rank, difference.part) == (1, "gradient")


def test_backward_differences_begin_at_the_last_layer():
    good = {ComputedPlace("backward", layer, "mlp.linear_fc1"): 1 for layer in (3, 2, 1)}
    bad = {**good, ComputedPlace("backward", 2, "mlp.linear_fc1"): 2}
    bad[ComputedPlace("backward", 1, "mlp.linear_fc1")] = 2
    assert first_difference(good, good) is None
    _, place = first_difference(good, bad)
    assert place.layer == 2


def test_a_tolerance_lets_rounding_pass():
    place = ComputedPlace("forward", 1, "mlp.linear_fc1")
    assert first_difference({place: 1.0}, {place: 1.001}, tolerance=1e-2) is None
    assert first_difference({place: 1.0}, {place: 1.1}, tolerance=1e-2) is not None
    nan = float("nan")
    assert first_difference({place: nan}, {place: nan}, tolerance=1e-2) is None
    assert first_difference({place: nan}, {place: 1.0}, tolerance=1e-2) is not None


def test_lines_are_read_back_and_a_step_trained_twice_counts_once():
    marks = layer_marks({ComputedPlace("forward", 1, "mlp.linear_fc1"): 5})
    (key,) = marks
    header = {"versions": {}, "code": "a", "places": [[list(key)]], "places_of_rank": [0]}
    lines = [header]
    lines += [{"iteration": 2, "data": [data], "marks": [packed(marks.values())]} for data in "ab"]
    read = read_steps(lines)
    assert read[2].data == ["b"]
    assert read[2].marks == [marks]


def test_without_records_nothing_is_accused():
    same = (3.0, 2.8, 2.6)
    comparison = compare(steps(*same, 2.0), steps(*same, 2.1), {}, {}, begin=0, step=4)
    assert (comparison.verdict, comparison.first_step) == (Verdict.UNKNOWN, 4)


def test_a_replay_of_another_training_is_none(tmp_path):
    """Replaying a smoke test step, or the run before --redo, does not count as done."""

    def job(phase, fingerprint):
        return ReplayJob(tmp_path, SimpleNamespace(phase=phase, fingerprint=fingerprint), 4, 0)

    done = job("04-training", "a")
    done.folder.mkdir(parents=True)
    (done.folder / "metrics.jsonl").write_text('{"iteration": 4, "loss": 1.0, "seconds": 1.0}\n')
    assert not done.is_done
    done.training_mark.write_text(f"{done.training}\n")
    assert done.is_done
    assert not job("03-smoke-test", "a").is_done
    assert not job("04-training", "b").is_done


def with_samples(step, *samples):
    return dataclasses.replace(step, samples=samples)


def test_samples_of_a_later_micro_batch_explain_a_difference_and_name_their_ranks():
    """The fingerprints cover the first micro-batch. The samples cover everything that a rank
    read."""
    before = with_samples(recorded(), "s1", "s2")
    comparison = compared(before, with_samples(recorded(), "s1", "sx"), loss=2.5)
    assert (comparison.verdict, comparison.difference) == (Verdict.DATA, None)
    assert comparison.ranks_of_other_samples == (1,)
    assert says(comparison.as_text(), ReplayMessage.OTHER_SAMPLES_LATER, ranks="1")


def test_records_without_samples_are_compared_by_the_tokens_of_the_first_micro_batch():
    now = with_samples(recorded(), "s1", "s2")
    assert compared(recorded(), now).verdict is Verdict.SAME
    changed = with_samples(recorded((1, 0), data=("d1", "dx")), "s1", "s2")
    assert compared(recorded(), changed).ranks_of_other_samples == (1,)


def test_hardware_is_not_accused_of_a_step_whose_tokens_were_not_recorded():
    run = steps(3.0, 2.8, 2.6, 2.0)
    replayed = steps(3.0, 2.8, 2.7, 2.1)
    records = {4: recorded()}
    comparison = compare(run, replayed, records, {4: recorded((0, 0))}, begin=0, step=4)
    assert (comparison.verdict, comparison.first_step) == (Verdict.UNKNOWN, 3)
    assert ReplayMessage.TOKENS_NOT_RECORDED.fill(step=3) in comparison.changes


def test_a_difference_outside_the_first_micro_batch_names_no_rank():
    comparison = compared(recorded(), recorded(), loss=2.5)
    assert (comparison.verdict, comparison.difference) == (Verdict.HARDWARE, None)
    assert comparison.has_fingerprints
    first = ReplayMessage.FIRST_STEP.fill(step=4, loss=2.0, again=2.5)
    assert says(comparison.as_text(), ReplayMessage.SAME_FIRST_MICRO_BATCH, first=first)
