"""Rules as data: every rule has a code, its text shows its values, and its keys can fix it."""

from __future__ import annotations

import string
from typing import Any

import pytest

from runbook.core.checks import Check, check_of
from runbook.core.errors import PlanError
from runbook.params.schema.keys import all_keys
from runbook.plan_file.diagnostics import Code, RuleResult
from runbook.plan_file.rules.codes import RuleCode
from runbook.planning import make_plan
from runbook.planning.rule_codes import PlanCode

from .conftest import build
from .test_plan_layout import REFUSALS, odd

CODES = [*RuleCode, *PlanCode]


def failed_checks(*args: Any, **keywords: Any) -> tuple[Check, ...]:
    with pytest.raises(PlanError) as caught:
        make_plan(build(*args, **keywords))
    return caught.value.checks


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_message_made_of_named_values(code: Code) -> None:
    message = code.message
    templates = (message.title, message.value, message.rule, message.remedy)
    fields = [part[1] for text in templates for part in string.Formatter().parse(text)]
    assert all(templates)
    assert all(field is None or field.isidentifier() for field in fields)


def test_no_two_rules_share_a_code() -> None:
    assert len({str(code) for code in CODES}) == len(CODES)


@pytest.mark.parametrize(
    ("sections", "others"), [row[:2] for row in REFUSALS], ids=[row[2][:40] for row in REFUSALS]
)
def test_a_refused_plan_names_keys_that_exist(
    sections: dict[str, Any], others: dict[str, Any]
) -> None:
    for check in failed_checks(sections, **others):
        assert check.keys
        assert set(check.keys) <= set(all_keys())


@pytest.mark.parametrize(
    ("sections", "others", "code"),
    [
        ({"parallel": {"tensor": 2, "pipeline": 2}}, {}, PlanCode.WORLD_SIZE),
        ({"parallel": {"tensor": 2}}, {"model": odd(heads=1)}, RuleCode.HEADS_BY_TENSOR),
        ({"parallel": {"zero_stage": 2}}, {}, RuleCode.ZERO_STAGE_OF_MEGATRON),
    ],
)
def test_a_refused_plan_says_which_rule_was_broken(
    sections: dict[str, Any], others: dict[str, Any], code: Code
) -> None:
    assert code in {check.code for check in failed_checks(sections, **others)}


def test_a_check_of_a_rule_keeps_its_code_and_a_plan_only_its_text() -> None:
    values = {"heads": 12, "tensor": 5, "tensor_key": "parallel.tensor"}
    result = RuleResult(
        code=RuleCode.HEADS_BY_TENSOR, holds=False, values=values, keys=("parallel.tensor",)
    )
    check = check_of(result, "04-training", otherwise="warn")
    assert (check.code, check.keys) == (RuleCode.HEADS_BY_TENSOR, ("parallel.tensor",))
    assert check.values == values
    text = result.render()
    assert check.as_dict() == {
        "name": f"04-training: {text.title}",
        "verdict": "warn",
        "value": text.value,
        "rule": text.rule,
        "remedy": text.remedy,
    }
    assert "12" in text.value and "parallel.tensor=5" in text.value
    assert "parallel.tensor" in text.remedy and "12" in text.remedy


def test_a_rule_that_holds_has_no_remedy() -> None:
    values = {"heads": 12, "tensor": 4, "tensor_key": "parallel.tensor"}
    result = RuleResult(code=RuleCode.HEADS_BY_TENSOR, holds=True, values=values, keys=())
    check = check_of(result)
    title = RuleCode.HEADS_BY_TENSOR.message.title
    assert (check.name, check.verdict, check.remedy) == (title, "pass", "")
