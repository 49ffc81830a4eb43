"""Parameter counts, compared with the documents' figures and with each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.params.schema.entries import Model
from runbook.plan_file.json_records import as_json
from runbook.plan_file.schema import ModelShape
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.sizes import (
    expected_first_loss,
    label_count,
    label_text,
    layer,
    on_rank,
    padded_vocabulary,
    shape_of,
    whole,
)

from .conftest import TWO_CORES, build


def gpt(layers: int, hidden: int, heads: int, *, tensor: int = 1, **values: object) -> ModelShape:
    model = Model.model_validate(
        {
            "label": "x",
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "positions": 2048,
            "source": "x",
            **values,
        }
    )
    return shape_of(model, tensor=tensor)


# facts/seed-systems.md 1.7 (LUMI), 2.12 (Azure), 2.13 (AKS), 3.8 (Polaris), 5.5 (NeMo)
WHOLE = [
    ("LUMI 125M", 12, 768, 12, 1, 125_262_336),
    ("LUMI 350M", 24, 1024, 16, 1, 355_919_872),
    ("LUMI 760M", 24, 1536, 16, 1, 760_372_224),
    ("LUMI 1.3B", 24, 2048, 16, 1, 1_315_819_520),
    ("LUMI 2.7B", 32, 2560, 32, 1, 2_651_673_600),
    ("LUMI 6.7B", 32, 4096, 32, 1, 6_658_596_864),
    ("LUMI 13B", 40, 5120, 40, 1, 12_853_626_880),
    ("LUMI 175B", 96, 12288, 96, 1, 174_604_836_864),
    ("Azure smoke", 12, 512, 8, 1, 64_633_856),
    ("Azure 857M", 24, 1024, 16, 1, 355_919_872),
    ("Azure 175B", 96, 12288, 96, 8, 174_615_846_912),
    ("woojinsoh debug, tensor 4", 8, 512, 32, 4, 51_696_640 + 1024 * 512),
]

ROUNDED = [
    ("AKS 30b", 48, 7168, 56, 4, 29.98e9),
    ("AKS 13b", 40, 5120, 40, 2, 12.85e9),
    ("AKS 1.3b", 24, 2048, 16, 1, 1.316e9),
    ("AKS 125m", 12, 768, 12, 1, 0.125e9),
    ("Polaris 1.5B", 48, 1536, 24, 1, 1.440e9),
    ("Polaris 25B", 64, 6144, 64, 1, 29.318e9),
    ("Polaris 33B", 80, 6144, 64, 1, 36.567e9),
    ("Polaris 145B", 80, 12288, 96, 1, 145.611e9),
    ("Polaris 18.4B", 40, 6144, 48, 1, 18.44e9),
    ("NeMo 5b", 24, 4096, 32, 1, 5.048e9),
    ("NeMo 20b", 44, 6144, 48, 4, 20.26e9),
    ("NeMo 40b", 48, 8192, 64, 8, 39.10e9),
]


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "tensor", "count"), WHOLE, ids=[row[0] for row in WHOLE]
)
def test_counts_are_exact(
    name: str, layers: int, hidden: int, heads: int, tensor: int, count: int
) -> None:
    assert whole(gpt(layers, hidden, heads, tensor=tensor)).total == count


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "tensor", "count"), ROUNDED, ids=[r[0] for r in ROUNDED]
)
def test_counts_round_to_the_stated_ones(
    name: str, layers: int, hidden: int, heads: int, tensor: int, count: float
) -> None:
    assert whole(gpt(layers, hidden, heads, tensor=tensor)).total == pytest.approx(count, rel=6e-3)


def test_parts_of_the_smoke_model_are_those_of_the_fact_sheet() -> None:
    parts = whole(gpt(12, 512, 8))
    assert as_json(parts) == {
        "layers": 37_828_608,
        "token_embedding": 25_755_648,
        "position_embedding": 1_048_576,
        "final_norm": 1_024,
        "output": 0,
        "total": 64_633_856,
    }


def test_a_rank_of_the_aws_example_prints_this_count() -> None:
    """A log of awsome-distributed-training (36 x 4096, tensor 8) states 941594624 on each rank."""
    assert on_rank(gpt(36, 4096, 32, tensor=8), tensor=8, pipeline=1, stage=0).total == 941_594_624


def test_variants_of_the_smoke_shape() -> None:
    untied = {"tied_embeddings": False}
    swiglu = {"activation": "swiglu"}
    assert whole(gpt(12, 512, 8, **untied)).total == pytest.approx(90.4e6, rel=1e-3)
    assert whole(gpt(12, 512, 8, **swiglu)).total == pytest.approx(77.2e6, rel=1e-3)
    assert whole(gpt(12, 512, 8, **untied, **swiglu)).total == pytest.approx(103.0e6, rel=1e-3)


def test_llama_3_8b_has_its_published_count() -> None:
    """Count grouped queries, SwiGLU, rotary positions, RMS norms, no biases and untied embeddings.

    The published count is 8,030,261,248.
    """
    llama = gpt(
        32,
        4096,
        32,
        kv_heads=8,
        ffn_hidden=14336,
        vocabulary=128_256,
        tied_embeddings=False,
        position_embedding="rope",
        normalization="rmsnorm",
        activation="swiglu",
        biases=False,
    )
    assert whole(llama).total == 8_030_261_248


def test_learned_positions_are_as_many_as_the_sequence_where_the_model_names_none() -> None:
    model = Model(label="x", layers=1, hidden=64, heads=1, sequence_length=128, source="x")
    assert shape_of(model).positions == 128
    assert shape_of(model, sequence_length=64).positions == 64


def test_first_loss_is_that_of_guessing() -> None:
    assert expected_first_loss(gpt(12, 512, 8)) == pytest.approx(math.log(50257))


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("375M", 375_000_000),
        ("1.3B", 1_300_000_000),
        ("GPT-3 175B", 175_000_000_000),
        ("tiny", None),
        ("8x7", None),
    ],
)
def test_label_names_a_count(label: str, named: int | None) -> None:
    assert label_count(label) == named


def test_label_check_says_what_the_label_is_worth() -> None:
    def counted(label: str, rounded: str, parameters: int) -> str:
        return PlanningMessage.LABEL.fill(label=label, rounded=rounded, parameters=parameters)

    too_large = PlanningMessage.LABEL_TOO_LARGE
    assert label_text("375M", 64_633_856) == (
        counted("375M", "64.6 M", 64_633_856) + too_large.fill(ratio=5.8)
    )
    assert label_text("857M", 355_919_872) == (
        counted("857M", "356 M", 355_919_872) + too_large.fill(ratio=2.4)
    )
    too_small = PlanningMessage.LABEL_TOO_SMALL.fill(ratio=0.85)
    assert label_text("25B", 29_318_000_000).endswith(too_small)
    assert label_text("13B", 12_853_626_880) == counted("13B", "12.9 B", 12_853_626_880)
    assert label_text("tiny", 7_248_640) == counted("tiny", "7.25 M", 7_248_640)


cuts = st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (8, 4)])
shapes = st.builds(
    lambda layers, heads, kv, head, ffn, tied, norm, activation, position, biases: ModelShape(
        layers=8 * layers,
        hidden=8 * heads * head,
        heads=8 * heads,
        kv_heads=8 * heads if kv else 8,
        ffn_hidden=64 * ffn,
        sequence_length=64,
        positions=128,
        vocabulary=50257,
        padded_vocabulary=padded_vocabulary(50257, 8),
        tied_embeddings=tied,
        normalization=norm,
        activation=activation,
        position_embedding=position,
        biases=biases,
    ),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([8, 64]),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["layernorm", "rmsnorm"]),
    st.sampled_from(["gelu", "swiglu"]),
    st.sampled_from(["learned", "rope"]),
    st.booleans(),
)


def replicated(shape: ModelShape) -> int:
    """Count the parameters that every tensor rank has: norms, position embeddings, second biases."""
    norm = shape.hidden * (2 if shape.normalization == "layernorm" else 1)
    biases = 2 * shape.hidden if shape.biases else 0
    positions = shape.positions * shape.hidden if shape.position_embedding == "learned" else 0
    return shape.layers * (2 * norm + biases) + norm + positions


@given(shapes, cuts)
def test_ranks_sum_to_the_whole(shape: ModelShape, cut: tuple[int, int]) -> None:
    """Parameters on all ranks, less duplicates, add up to the number in the model."""
    tensor, pipeline = cut
    stages = [
        on_rank(shape, tensor=tensor, pipeline=pipeline, stage=stage).total
        for stage in range(pipeline)
    ]
    copies = (tensor - 1) * replicated(shape)
    if shape.tied_embeddings and pipeline > 1:
        tied_again = shape.padded_vocabulary * shape.hidden
    else:
        tied_again = 0
    assert tensor * sum(stages) - copies - tied_again == whole(shape).total


@given(shapes)
def test_untying_adds_one_output_matrix(shape: ModelShape) -> None:
    from dataclasses import replace

    tied, untied = (replace(shape, tied_embeddings=value) for value in (True, False))
    assert whole(untied).total - whole(tied).total == shape.padded_vocabulary * shape.hidden


@given(st.integers(1, 300_000), st.sampled_from([1, 2, 4, 8]))
def test_padding_is_the_next_multiple(vocabulary: int, tensor: int) -> None:
    padded = padded_vocabulary(vocabulary, tensor)
    assert padded % (128 * tensor) == 0
    assert 0 <= padded - vocabulary < 128 * tensor


def test_plain_layer_is_12_h_squared_and_13_h() -> None:
    assert layer(gpt(12, 512, 8)) == 12 * 512**2 + 13 * 512


def test_our_own_trainer_trains_one_model_under_every_cut() -> None:
    """Padded rows take part in the loss, so Megatron's rule would make the loss depend on the
    tensor-parallel size.
    """
    for framework, padded in (("runbook", [50304, 50304]), ("megatron-lm", [50304, 50432])):
        plans = [
            make_plan(
                build({"parallel": {"tensor": tensor}, "training": {"framework": framework}}),
                TWO_CORES,
            )
            for tensor in (1, 2)
        ]
        found = [
            plan.as_dict()["phases"]["04-training"]["model"]["padded_vocabulary"] for plan in plans
        ]
        assert found == padded, framework
