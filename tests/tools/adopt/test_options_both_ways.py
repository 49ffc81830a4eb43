"""One table of option names per framework: adopt reads what render writes back as the same keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from suite.messages import refuses

from runbook.core.errors import ParamsError, PlanError
from runbook.frameworks import training_arguments
from runbook.frameworks.messages import FrameworkMessage
from runbook.params import Settings, load
from runbook.plan_file.phase_names import FULL
from runbook.planning import make_plan
from runbook.tools.adopt import program_arguments
from runbook.tools.adopt.adoption import train_with_own_trainer
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.script import Word

PARAMS = Path(__file__).parents[3] / "params"
RUNS = [
    name
    for file in sorted((PARAMS / "variants").glob("*.yaml"))
    for name in (
        file.stem,
        *(f"{file.stem}:{variant}" for variant in yaml.safe_load(file.read_text())),
    )
]


def arguments(settings: Settings) -> list[str]:
    return training_arguments(settings, make_plan(settings).phases[FULL])


def read_back(settings: Settings, words: list[str]) -> Findings:
    findings = Findings(settings.site)
    argv = [Word(word, 1) for word in words]
    if settings.run.training.framework == "nemo":
        program_arguments.take_overrides(argv, findings)
    else:
        program_arguments.take_options(argv, findings, settings.run.training.framework)
    return findings


@pytest.mark.parametrize(
    ("name", "base", "epsilon"),
    [
        ("azure-175b", "--rotary-base", "--norm-epsilon"),
        ("polaris-25b", "--rotary-position-embeddings-theta", "--layernorm-epsilon"),
        ("aws-pile-175b", "", "model.layernorm_epsilon"),
    ],
)
def test_epsilon_and_rotary_base_are_written_where_they_are_the_models_own(
    name: str, base: str, epsilon: str
) -> None:
    settings = load(name)
    chosen: dict[str, Any] = {"norm_epsilon": 1e-6}
    if base:
        # The pinned NeMo files are for GPT-3, so rotary positions are refused.
        chosen |= {"rope_base": 500_000.0, "position_embedding": "rope"}
    phase = make_plan(settings).phases[FULL]
    model = replace(phase.model, shape=replace(phase.model.shape, **chosen))
    words = training_arguments(settings, replace(phase, model=model))
    if not base:
        assert f"{epsilon}=1e-06" in words
        return
    assert words[words.index(base) + 1] == "500000" and words[words.index(epsilon) + 1] == "1e-06"
    kind = program_arguments.take_options(
        [Word(word, 1) for word in words], Findings(settings.site), "megatron-lm"
    )
    assert kind.items() >= chosen.items()
    assert not {base, epsilon} & {*arguments(settings)}
    shape = replace(phase.model.shape, qkv_biases=True, biases=False)
    biased = replace(phase, model=replace(phase.model, shape=shape))
    if name == "azure-175b":
        assert "--add-qkv-bias" in training_arguments(settings, biased)
        return
    with refuses(ParamsError, FrameworkMessage.QKV_BIASES_ALONE, model_name=phase.model.name):
        training_arguments(settings, biased)


@pytest.mark.parametrize("name", RUNS)
def test_what_render_wrote_is_read_back_as_the_same_keys(name: str) -> None:
    settings = load(name)
    if settings.run.training.framework == "runbook":
        pytest.skip("our own trainer reads plan.json")
    try:
        words = arguments(settings)
    except PlanError:
        pytest.skip("the plan refuses this variant")
    carried = read_back(settings, words).carried
    if "training.tokens" in carried:  # Megatron-DeepSpeed also gets the same length in samples
        del carried["training.samples"]
    model = settings.model.model_dump()
    keys = {key: value.value for key, value in carried.items() if not key.startswith("data.")}
    for key in [key for key in keys if key.startswith("training.shape.")]:
        field = key.rpartition(".")[2]
        assert keys.pop(key) == (
            model[field] or getattr(make_plan(settings).phases[FULL].model.shape, field)
        )
    again = load(name, set_words=[f"{key}={value}" for key, value in keys.items()])
    assert sorted(arguments(again)) == sorted(words)  # a site's own settings are elsewhere


@pytest.mark.parametrize("loss_fusion", ["auto", "native", "te"])
def test_gradients_in_bf16_and_a_fused_loss_are_read_back(loss_fusion: str) -> None:
    words = [
        "training.precision=bf16",
        "training.reduce_in_bf16=true",
        f"training.loss_fusion={loss_fusion}",
    ]
    settings = load("azure-175b", set_words=words)
    findings = read_back(settings, arguments(settings))
    assert findings.value("training.reduce_in_bf16") is True
    assert findings.value("training.loss_fusion", "auto") == loss_fusion


def test_our_trainer_is_not_given_what_megatron_lm_alone_has() -> None:
    settings = load("azure-175b", set_words=["training.loss_fusion=te"])
    findings = read_back(settings, arguments(settings))
    findings.take("training.framework", "megatron-lm", 1, "pretrain_gpt.py")
    train_with_own_trainer(findings, "another tokenizer")
    assert "training.loss_fusion" not in findings.carried
    assert "--cross-entropy-fusion-impl" in [remark.text for remark in findings.leftovers]


@pytest.mark.parametrize("implementation", ["native", "te"])
def test_a_loss_is_fused_by_its_flag_in_any_order(implementation: str) -> None:
    settings = load("azure-175b")
    flag = ["--cross-entropy-loss-fusion"]
    named = ["--cross-entropy-fusion-impl", implementation]
    key = "training.loss_fusion"
    assert read_back(settings, flag + named).value(key) == implementation
    assert read_back(settings, named + flag).value(key) == implementation
    assert read_back(settings, flag).value(key) == "native"
    alone = read_back(settings, named)
    assert key not in alone.carried
    assert f"--cross-entropy-fusion-impl {implementation}" in [one.text for one in alone.automatic]
