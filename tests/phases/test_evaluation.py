"""06-evaluation: what is scored, the resulting scores, and that nothing is scored twice."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy
import pytest
from suite.messages import refuses
from toy_run import open_run, write_metrics

from runbook.core.errors import RecordError
from runbook.core.files import write_text
from runbook.core.locks import hold
from runbook.phases.messages import PhaseMessage
from runbook.phases.p06_evaluation import phase as evaluation
from runbook.phases.phase_steps import MEASURING, phase_step, train_step
from runbook.plan_file.phase_names import FULL
from runbook.results.history import (
    ALL_PAIRS,
    BITS_PER_BYTE,
    PHENOMENON,
    RIGHT_SHARE,
    TOKEN_PERPLEXITY,
    read_scores,
)
from runbook.runs.status import run_folder
from runbook.runs.step import step_status
from runbook.tokens.tokenizer import load_tokenizer


def write_tokens(prefix, documents):
    """Write PREFIX.bin and PREFIX.idx in Megatron's format."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.bin").write_bytes(
        numpy.concatenate(documents).astype("<u2").tobytes()
    )
    lengths = numpy.array([len(ids) for ids in documents])
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    index += (
        lengths.astype("<i4").tobytes() + (2 * (lengths.cumsum() - lengths)).astype("<i8").tobytes()
    )
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        index + numpy.arange(len(lengths) + 1).astype("<i8").tobytes()
    )


@pytest.fixture
def opened(runs):
    """Open the local run with 40 documents, of which the split holds out the last two."""
    # plan.json contains the tokens of the prompt, but the plan of a notebook does not.
    opened = open_run("06-evaluation", "training.sample_prompt=The", runs=runs)
    (prefix,) = opened.plan.data.train
    words = [
        f"Document {number} says that the tea is hot. " * (30 + number) for number in range(40)
    ]
    write_tokens(
        opened.folder / prefix, [[*load_tokenizer().encode(text), 50256] for text in words]
    )
    train_step(opened.run, FULL).mark_done()
    return opened


@pytest.fixture
def asked(monkeypatch):
    """Record the requests to a fake trainer. It gives tokens twice as much probability with trained
    weights as with initial weights.
    """
    requests = []

    def answer(command, folder, phase, request, processes=1):
        requests.append((command, phase, processes, request))
        likelihoods = {"first": math.log(0.001), "trained": math.log(0.002)}
        pairs = request["pairs"]
        return {
            "iteration": 6,
            "answers": [
                [(likelihoods[name] * len(ids), False) for _, ids in pairs]
                for name in request["weights"]
            ],
        }

    monkeypatch.setattr(evaluation, "ask_trainer", answer)
    return requests


def test_minimal_pairs_are_the_same_every_time_and_differ_in_little():
    pairs = list(evaluation.minimal_pairs())
    assert pairs == list(evaluation.minimal_pairs()) and len(pairs) == len(set(pairs)) == 200
    assert len({name for name, _, _ in pairs}) == 10
    for _, right, wrong in pairs:
        mine = right.split()
        other = wrong.split()
        different = [one for one in zip(mine, other, strict=True) if one[0] != one[1]]
        assert 1 <= len(different) <= 2 and "{" not in right + wrong


def test_held_out_text_is_what_the_split_keeps_from_the_training(opened):
    texts = list(evaluation.held_out_texts(evaluation.scored_run_of(opened.run)))
    length = opened.plan.phases["04-training"].model.shape.sequence_length
    last_texts = [f"Document {number} says that the tea is hot. " for number in (38, 39)]
    first = load_tokenizer().encode(last_texts[0] * 68)
    assert texts[0].context == (50256,) and list(texts[0].ids) == first[:length]
    assert (
        texts[1].context == (first[length - 1],)
        and list(texts[1].ids) == first[length : 2 * length]
    )
    assert sum(len(text.ids) for text in texts) <= evaluation.HELD_OUT_TOKENS + 1
    ours = sum(text.bytes for text in texts if text.context == (50256,) or text.ids[0] in first)
    assert ours == len(last_texts[0] * 68) + len(last_texts[1] * 69)


def test_scores_before_and_after_are_kept_compared_and_not_measured_twice(opened, asked):
    checkpoints = opened.folder / opened.plan.phases[FULL].checkpoint.folder
    (checkpoints / "iter_0000006").mkdir(parents=True)
    evaluation.measure(opened)
    ((command, phase, processes, request),) = asked
    assert (command, phase, processes, request["weights"]) == (
        "score",
        "04-training",
        1,
        ["first", "trained"],
    )
    rows = {(row["what"], row["measure"]): row for row in read_scores(opened.folder)}
    known = rows["corpus", TOKEN_PERPLEXITY]
    assert (known["before"], known["after"]) == (pytest.approx(1000), pytest.approx(500))
    bits = rows["corpus", BITS_PER_BYTE]
    assert bits["before"] - bits["after"] == pytest.approx(
        bits["before"] * math.log(2) / math.log(1000)
    )
    pairs = rows[ALL_PAIRS, RIGHT_SHARE]
    assert pairs["samples"] == 200 and pairs["after"] == 0  # a tie does not count
    assert sum(row["samples"] for (_, measure), row in rows.items() if measure == PHENOMENON) == 200
    evaluation.measure(opened)
    assert len(asked) == 1
    evaluation.finish(opened)
    record = opened.session.finish()
    assert record.verdict == "pass"
    assert record.results[f"corpus: {BITS_PER_BYTE}, after"] == bits["after"]
    assert (
        {row["iteration"] for row in rows.values()} == {record.results["scored iteration"]} == {6}
    )
    assert phase_step(opened.run, "06-evaluation").why_not_done() == ""
    assert (
        "corpus" in evaluation.evaluate(run_folder("local", opened.folder.parent)).as_text()
        and len(asked) == 1
    )
    with hold(opened.folder, "a test"):
        assert "corpus" in evaluation.evaluate(opened.folder).as_text(), "it takes no lock"


def test_weights_are_scored_after_their_model_left_the_parameters(opened, asked):
    path = opened.folder / "run.yaml"
    path.write_text(path.read_text().replace("\nmodel: ", "\nmodel: removed-"))
    assert "corpus" in evaluation.evaluate(opened.folder).as_text()
    measured = MEASURING.of(opened.run)
    assert measured.why_not_done() == "", "06 does not measure them again"


def test_scores_of_a_training_that_was_given_up_are_recorded_with_a_warning(opened, asked):
    """Its weights come from the newest checkpoint, not from the planned last iteration."""
    train_step(opened.run, FULL).marker_path.unlink()
    write_metrics(open_run(FULL, "training.sample_prompt=The", runs=opened.folder.parent), 3)
    evaluation.measure(opened)
    evaluation.finish(opened)
    (warned,) = [one for one in opened.session.finish().checks if one.verdict == "warn"]
    assert (warned.name, warned.value) == (f"{FULL}: finished", "3 of 6 iterations")


@pytest.mark.parametrize("extended", [False, True])
def test_newer_weights_of_an_unfinished_training_are_scored_again(opened, asked, extended):
    """Scores were called done while the weights they belonged to were no longer the newest."""
    training = train_step(opened.run, FULL)
    if extended:
        write_text(training.started_path, "fingerprint of a longer training\n")
    else:
        training.marker_path.unlink()
    checkpoints = opened.folder / opened.plan.phases[FULL].checkpoint.folder
    (checkpoints / "iter_0000002").mkdir(parents=True)
    evaluation.measure(opened)
    evaluation.measure(opened)
    assert len(asked) == 1
    (checkpoints / "iter_0000004").mkdir()
    evaluation.measure(opened)
    assert len(asked) == 2


def test_06_does_not_end_with_scores_of_earlier_weights(opened, asked):
    """Its last cell alone, run after the training had gone on, recorded the old scores."""
    evaluation.measure(opened)
    write_metrics(open_run(FULL, "training.sample_prompt=The", runs=opened.folder.parent), 6)
    train_step(opened.run, FULL).mark_done()
    missing = MEASURING.of(opened.run).why_not_done()
    with refuses(
        RecordError, PhaseMessage.SCORES_OF_OTHER_WEIGHTS, phase="06-evaluation", missing=missing
    ):
        evaluation.finish(opened)
    assert phase_step(opened.run, "06-evaluation").why_not_done()
    evaluation.measure(opened)
    evaluation.finish(opened)
    assert phase_step(opened.run, "06-evaluation").why_not_done() == ""


def test_text_that_is_foreseen_worse_than_before_is_warned_of():
    row = {"what": "corpus", "measure": BITS_PER_BYTE, "samples": 1, "before": 2.0, "after": 2.5}
    sound, _, worse = evaluation.checks([row])
    value = PhaseMessage.SCORE_AND_BEFORE.fill(after=2.5, before=2.0)
    assert (sound.verdict, worse.verdict, worse.value) == ("pass", "warn", value)
    verdicts = [
        check.verdict for check in evaluation.checks([{**row, "after": math.nan, "before": None}])
    ]
    assert verdicts == ["fail", "pass"]


def test_weights_of_another_framework_and_login_nodes_are_left_alone(opened, asked):
    training = opened.settings.run.training.model_copy(update={"framework": "nemo"})
    settings = replace(
        opened.settings, run=opened.settings.run.model_copy(update={"training": training})
    )
    said = evaluation.measure_built_in(
        evaluation.scored_run_of(replace(opened.run, settings=settings))
    )
    assert said.startswith("Nothing is scored, because the weights were written by nemo")
    site = opened.settings.site.model_copy(update={"scheduler": "slurm"})
    queued = replace(opened, settings=replace(opened.settings, site=site))
    (opened.folder / "evaluation").mkdir()
    (opened.folder / evaluation.BUILT_IN).write_text('{"what": "scores of an earlier training"}\n')
    evaluation.measure(queued)
    assert asked == [] and read_scores(opened.folder) == []
    expected = phase_step(opened.run, opened.phase).fingerprint
    evaluation.finish(queued)
    assert queued.session.finish().verdict == "warn"
    assert step_status(opened.folder, "06-evaluation", expected).as_text(), (
        "the next run looks for scores again"
    )


def test_imported_weights_have_no_score_before(opened, asked):
    events = opened.folder / opened.plan.phases["04-training"].log.events
    events.write_text('{"time": 1.0, "event": "resumed", "phase": "04-training", "iteration": 0}\n')
    evaluation.measure(opened)
    assert asked[0][3]["weights"] == ["trained"]
    assert {row["before"] for row in read_scores(opened.folder)} == {None}
