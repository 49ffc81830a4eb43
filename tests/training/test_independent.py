"""The trainer computes the same step as a GPT written independently in plain PyTorch."""

import json

import pytest

from . import specs

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def comparison(zygote, corpus, tmp_path_factory):
    return compared(zygote, corpus, tmp_path_factory.mktemp("independent"))


def compared(zygote, corpus, folder, **model):
    (folder / "data").symlink_to(corpus)
    content = specs.spec(peak=6e-5, micro=2, global_batch=4, model=model)
    job = zygote.train(folder, content, patch="training.plain_gpt:compare")
    assert job.code == 0, job.err
    return json.loads((folder / "comparison.json").read_text())


def test_the_loss_is_equal(comparison):
    engine, plain = comparison["loss"]
    assert engine == pytest.approx(plain, rel=1e-6)


def test_every_gradient_is_equal(comparison):
    assert len(comparison["gradients"]) == 2 + 4 * 12 + 2
    assert {name: gap for name, gap in comparison["gradients"].items() if gap > 1e-5} == {}
    assert comparison["key_bias"] < 1e-7


def test_every_weight_is_equal_after_a_step_of_adam(comparison):
    assert {name: gap for name, gap in comparison["weights"].items() if gap > 1e-5} == {}


MODELS = {
    "rotary": {"position_embedding": "rope"},
    "RMSNorm without biases": {"normalization": "rmsnorm", "biases": False, "norm_epsilon": 1e-2},
    "rotary base, biases of queries": {
        "position_embedding": "rope",
        "rope_base": 50.0,
        "biases": False,
        "qkv_biases": True,
    },
    "SwiGLU, untied": {"activation": "swiglu", "tied_embeddings": False, "ffn_hidden": 160},
    "grouped queries": {"kv_heads": 2},
}


@pytest.mark.parametrize("model", MODELS)
def test_other_models_are_equal_to_theirs(model, zygote, corpus, tmp_path):
    found = compared(zygote, corpus, tmp_path, **MODELS[model])
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-6)
    assert {name: gap for name, gap in found["gradients"].items() if not gap < 1e-5} == {}
    assert {name: gap for name, gap in found["weights"].items() if not gap <= 1e-5} == {}
