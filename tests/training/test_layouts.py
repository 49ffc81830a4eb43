"""The same training run with every layout: one process, TP 2, PP 2, DP 2 and combinations."""

import math

import pytest

from . import specs

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def alone(zygote, tmp_path_factory, corpus):
    """Return the metrics of one process, by precision and model."""
    known = {}

    def metrics(**options):
        key = repr(sorted(options.items()))
        if key not in known:
            known[key] = zygote.train(
                prepared(tmp_path_factory.mktemp("alone"), corpus), specs.spec(**options)
            )
            assert known[key].code == 0, known[key].err
        return known[key].metrics

    return metrics


def prepared(folder, corpus):
    (folder / "data").mkdir()
    for path in corpus.glob("corpus*"):
        (folder / "data" / path.name).symlink_to(path)
    return folder


LAYOUTS = {
    "dp2": {"copies": 2},
    "dp2 without distributed optimizer": {"copies": 2, "zero_stage": 0},
    "tp2": {"tensor": 2},
    "pp2": {"pipeline": 2},
    "pp2 interleaved": {"pipeline": 2, "virtual_pipeline": 2},
    "pp2 dp2": {"pipeline": 2, "copies": 2},
    "tp2 micro 2": {"tensor": 2, "micro": 2},
    "tp2 sequence parallel": {"tensor": 2, "parallel": {"sequence": True}},
    "tp2 pp2 sequence parallel": {
        "tensor": 2,
        "pipeline": 2,
        "micro": 2,
        "parallel": {"sequence": True},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.rotate(3)
def test_a_layout_gives_the_losses_of_one_process(layout, zygote, run, alone):
    job = zygote.train(run, specs.spec(**LAYOUTS[layout]))
    assert job.code == 0, job.err
    for ours, theirs in zip(job.metrics, alone(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5), ours
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4), ours


MODERN = {
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "activation": "swiglu",
    "biases": False,
    "kv_heads": 2,
    "tied_embeddings": False,
    "ffn_hidden": 160,
}


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_rotary_gated_grouped_and_untied_models_agree_too(layout, zygote, run, alone):
    job = zygote.train(run, specs.spec(**LAYOUTS[layout], model=MODERN, iterations=3))
    expected = [line["loss"] for line in alone(model=MODERN, iterations=3)]
    assert job.losses() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", [{}, MODERN], ids=["gelu with bias", "swiglu without"])
@pytest.mark.rotate(2)
def test_the_fused_kernels_of_a_gpu_agree_where_torch_compiles_them_for_a_cpu(
    model, zygote, run, alone
):
    job = zygote.train(run, specs.spec(model=model, iterations=3), patch="training.poison:fused")
    assert job.code == 0, job.err
    assert job.losses() == pytest.approx(
        [line["loss"] for line in alone(model=model, iterations=3)], rel=1e-5
    )


def test_dropout_of_cut_sequences_is_the_same_where_layers_are_computed_again(
    zygote, tmp_path, corpus
):
    found = []
    for recompute in ("none", "full"):
        (tmp_path / recompute).mkdir()
        job = zygote.train(
            prepared(tmp_path / recompute, corpus),
            specs.spec(
                **LAYOUTS["tp2 sequence parallel"],
                model={"dropout": 0.2},
                iterations=2,
                recompute=recompute,
            ),
        )
        assert job.code == 0, job.err
        found.append([(line["loss"], line["grad_norm"]) for line in job.metrics])
    assert found[0] == found[1]


def test_first_loss_is_that_of_guessing(alone):
    assert alone()[0]["loss"] == pytest.approx(math.log(256), abs=0.3)


def test_bf16_follows_fp32(alone):
    half = alone(precision="bf16")
    full = alone()
    assert [line["loss"] for line in half] == pytest.approx(
        [line["loss"] for line in full], abs=0.02
    )
    assert half[0]["loss"] != full[0]["loss"]
