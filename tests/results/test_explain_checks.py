"""What an answer says to check first, and the result that confirms a cause."""

from __future__ import annotations

import pytest
from log_lines import parse_lines
from suite.messages import says

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.checks import checks_of
from runbook.tools.speed.explain import Explanation, explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.suspects import LISTED_CAUSES, ranked_suspects
from runbook.tools.speed.topics import REMEDIES

NOT_REACHED = SpeedMessage.REACHED_AS_PLANNED.fill()
NO_TIMES = SpeedMessage.NO_TIMES.fill()
NOTHING_FOUND = SpeedMessage.NOTHING_FOUND.fill()
LAYOUT = (
    "llama 2 7b with tp 2 on 8 H100, --seq-length 4096 --micro-batch-size 1 --global-batch-size 64"
)


def _part(name: str, seconds: float = 0.0) -> GapPart:
    return GapPart(name, seconds, "", "")


@pytest.fixture(scope="module")
def answer():
    catalogue = read_models(project_root())
    models = {name: catalogue.get(name) for name in catalogue.names}

    def tell(text: str) -> Explanation:
        log = parse_lines(text.splitlines())
        return explain(text, log, read_facts(text, log.arguments), models)

    return tell


def test_every_suspect_has_a_check():
    usual = {suspect.part.name for suspect in ranked_suspects("training is slow", {})}
    for cause in sorted(usual | set(REMEDIES)):
        assert [*checks_of([_part(cause)], 1)], cause


def test_checks_are_numbered_in_the_order_of_the_causes(answer):
    explanation = answer("training is slow with our loader, and each checkpoint blocks it")
    first = explanation.as_dict()["first_causes"]
    notes = explanation.as_table().notes
    for number, (cause, note) in enumerate(zip(first, notes, strict=False), start=1):
        check = note.splitlines()[0]
        assert says(check, SpeedMessage.CHECK, number=number, cause=cause)
    assert len(first) > 1


def test_a_cause_is_checked_once_and_only_the_first_causes_are():
    names = ["host", "host", "saves", "network", "memory"]
    checks = [*checks_of([_part(name) for name in names], LISTED_CAUSES)]
    assert len(checks) == LISTED_CAUSES
    assert "network" in checks[-1]


def test_a_cause_with_a_known_time_needs_no_check():
    assert [*checks_of([_part("recompute", 2.0), _part("unexplained", 1.0)], 3)] == []


def test_without_a_step_time_a_table_has_no_seconds(answer):
    table = answer("training is slow, our loader reads from nfs").as_table()
    assert table.columns == ["name", "evidence", "remedy"]
    assert NO_TIMES in table.notes
    assert not any("not known" in note for note in table.notes)


def test_with_a_step_time_a_table_has_seconds(answer):
    text = f"{LAYOUT} --recompute-granularity full: we reach 150 TFLOP/s, the table has 420 TFLOP/s"
    table = answer(text).as_table()
    assert "seconds" in table.columns
    assert not {NO_TIMES, NOT_REACHED} & set(table.notes)


def test_a_planned_time_is_not_called_reached(answer):
    notes = answer(f"{LAYOUT}: training is slow").as_table().notes
    assert NOT_REACHED in notes
    assert not any(note.startswith("assumed: without --set reached") for note in notes)


def test_an_empty_answer_says_what_to_add(answer):
    explanation = answer("we use 8 GPUs")
    assert (explanation.parts, NOTHING_FOUND in explanation.as_table().notes) == ([], True)


def test_a_training_as_fast_as_expected_needs_no_more_words():
    explanation = Explanation(2.0, 2.0, [], [], [], "as given")
    assert NOTHING_FOUND not in explanation.as_table().notes


def test_missing_facts_are_one_line_to_copy(answer):
    notes = [
        note for note in answer("training is slow").as_table().notes if "--set n_accel" in note
    ]
    assert len(notes) == 1
    assert "--set micro_batch=1 --set global_batch=64" in notes[0]


def test_what_usually_lies_behind_a_cause_follows_its_check() -> None:
    (text,) = checks_of([_part("data wait")], 1)
    check, behind = text.splitlines()
    assert check.startswith("check 1, data wait")
    assert "started anew each epoch (persistent_workers)" in behind
    (alone,) = checks_of([_part("layout")], 1)
    assert len(alone.splitlines()) == 1
