"""The conventions, compared with published figures and with each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.plan_file.schema import FLOPS_CONVENTION, ModelShape
from runbook.planning.cost.flops import CONVENTIONS, OURS, flops, tflops_per_device
from runbook.planning.sizes import padded_vocabulary


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int = 50304,
    sequence: int = 2048,
    **values: object,
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        **{"kv_heads": heads, "ffn_hidden": 4 * hidden, **values},
        sequence_length=sequence,
        positions=sequence,
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary,
    )


LUMI_13B = gpt(40, 5120, 40)
LUMI_13B_TP2 = gpt(40, 5120, 40, vocabulary=padded_vocabulary(50257, 2))
LUMI_125M_TP2 = gpt(12, 768, 12, vocabulary=padded_vocabulary(50257, 2))
GPT3 = gpt(96, 12288, 96, vocabulary=51200)
BLOOM = gpt(70, 14336, 112, vocabulary=250_880)
SUPERBENCH = gpt(32, 4096, 32, vocabulary=50304)
LLAMA3 = gpt(
    32,
    4096,
    32,
    vocabulary=128_256,
    sequence=8192,
    kv_heads=8,
    ffn_hidden=14336,
    tied_embeddings=False,
    position_embedding="rope",
    normalization="rmsnorm",
    activation="swiglu",
    biases=False,
)


@pytest.mark.parametrize(
    ("shape", "samples_per_second", "devices", "tflops"),
    [
        (LUMI_13B, 2.686, 8, 74.895),
        (LUMI_13B, 4.711, 16, 65.679),
        (LUMI_13B, 5.166, 16, 72.023),
        (LUMI_13B_TP2, 4.498, 16, 62.712),
    ],
)
def test_lumi_table_comes_out(
    shape: ModelShape, samples_per_second: float, devices: int, tflops: float
) -> None:
    found = tflops_per_device(shape, samples_per_second, devices, "megatron-deepspeed-f4")
    assert found == pytest.approx(tflops, abs=6e-4)


def test_lumi_125m_row_fits_the_vocabulary_of_tensor_2_only() -> None:
    """The LUMI document prints 11.94 for a row that it labels tensor 1. At that speed, tensor 1
    gives 11.934, and tensor 2 gives 11.939.
    """
    one, two = (
        flops(gpt(12, 768, 12, padded_vocabulary(50257, tensor)), 1, "narayanan-2021")
        for tensor in (1, 2)
    )
    assert two / one == pytest.approx(11.939 / 11.934, abs=1e-4)


def test_bloom_and_superbench_come_out() -> None:
    assert tflops_per_device(BLOOM, 2048 / 105.2, 384, "megatron-deepspeed-f4") == pytest.approx(
        149.02, abs=0.05
    )
    assert tflops_per_device(
        SUPERBENCH, 3483.5 / 2048 * 16, 16, "megatron-deepspeed-f3"
    ) == pytest.approx(149.10, abs=0.05)


@pytest.mark.parametrize(
    ("tokens_per_second", "stated"), [(866, 932), (1600, 1722), (1804, 1942), (741, 797)]
)
def test_nemo_175b_comes_out(tokens_per_second: float, stated: float) -> None:
    found = tflops_per_device(GPT3, tokens_per_second / 2048, 1, "nemo-25.07")
    assert found == pytest.approx(stated, abs=1)
    assert flops(GPT3, 1 / 2048, "nemo-25.07") == pytest.approx(1.0764e12, rel=1e-4)


def test_llama_3_counts_57_9_whole_and_51_5_causal() -> None:
    assert flops(LLAMA3, 1 / 8192, "nemo-25.07") / 1e9 == pytest.approx(57.9, abs=0.05)
    assert flops(LLAMA3, 1 / 8192, "nemo-25.09") / 1e9 == pytest.approx(51.5, abs=0.05)
    assert tflops_per_device(LLAMA3, 11879 / 8192, 1, "nemo-25.07") == pytest.approx(688, abs=1)
    assert tflops_per_device(LLAMA3, 14451 / 8192, 1, "nemo-25.09") == pytest.approx(744, abs=1)


# facts/training.md 2: per token, relative to Megatron with all pairs of tokens
RELATIVE = [
    (
        (12, 768, 12),
        {
            "megatron-causal": 0.883,
            "megatron-deepspeed-f3": 0.940,
            "megatron-deepspeed-f4": 1.254,
            "six-n": 0.776,
            "palm": 1.011,
        },
    ),
    (
        (24, 2048, 16),
        {
            "megatron-causal": 0.933,
            "megatron-deepspeed-f3": 0.983,
            "megatron-deepspeed-f4": 1.311,
            "six-n": 0.870,
            "palm": 1.003,
        },
    ),
    (
        (40, 5120, 40),
        {
            "megatron-causal": 0.969,
            "megatron-deepspeed-f3": 0.995,
            "megatron-deepspeed-f4": 1.327,
            "six-n": 0.940,
            "palm": 1.001,
        },
    ),
    (
        (96, 12288, 96),
        {
            "megatron-causal": 0.987,
            "megatron-deepspeed-f3": 0.999,
            "megatron-deepspeed-f4": 1.332,
            "six-n": 0.973,
            "palm": 1.000,
        },
    ),
]


@pytest.mark.parametrize(("dimensions", "ratios"), RELATIVE)
def test_conventions_stand_in_the_stated_relation(
    dimensions: tuple[int, int, int], ratios: dict[str, float]
) -> None:
    shape = gpt(*dimensions)
    found = {name: flops(shape, 1, name) / flops(shape, 1, "megatron-full") for name in ratios}
    assert found == pytest.approx(ratios, abs=6e-4)


def test_full_megatron_would_print_56_4_for_the_lumi_13b_row() -> None:
    assert tflops_per_device(LUMI_13B, 2.686, 8, "megatron-full") == pytest.approx(56.4, abs=0.1)


plain = st.builds(
    lambda layers, heads, sequence: gpt(layers, 64 * heads, heads, sequence=sequence),
    st.integers(1, 96),
    st.integers(1, 192),
    st.sampled_from([128, 1024, 2048, 8192]),
)


@given(plain, st.integers(1, 4096))
def test_general_formulas_are_the_textbook_ones_for_a_plain_gpt(
    shape: ModelShape, batch: int
) -> None:
    s = shape.sequence_length
    h = shape.hidden
    v = shape.padded_vocabulary
    layers = shape.layers
    base = 72 * batch * s * layers * h**2
    assert flops(shape, batch, "megatron-full") == pytest.approx(
        base * (1 + s / (6 * h) + v / (12 * layers * h))
    )
    assert flops(shape, batch, "megatron-causal") == pytest.approx(
        base * (1 + s / (12 * h) + v / (12 * layers * h))
    )


@given(plain, st.integers(1, 4096))
def test_conventions_keep_their_order(shape: ModelShape, batch: int) -> None:
    count = {name: flops(shape, batch, name) for name in CONVENTIONS}
    assert count["megatron-causal"] < count["megatron-full"]
    assert count["megatron-deepspeed-f3"] < count["megatron-full"]
    assert count["megatron-deepspeed-f4"] == pytest.approx(4 / 3 * count["megatron-deepspeed-f3"])
    assert count["narayanan-2021"] == count["megatron-deepspeed-f4"]
    assert count["six-n"] < count["palm"] == count["llm-foundry"]
    assert count["torchtitan"] < count["palm"]
    assert count["llm-foundry-hardware"] == pytest.approx(4 / 3 * count["llm-foundry"])
    assert all(
        flops(shape, 2 * batch, name) == pytest.approx(2 * value) for name, value in count.items()
    )


def test_torchtitan_leaves_out_the_input_embedding_and_keeps_the_output_layer() -> None:
    per_token = flops(LLAMA3, 1 / 8192, "torchtitan")
    assert per_token == pytest.approx(6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 8192)


def test_the_trainer_counts_as_the_plan_does() -> None:
    """Trainer and plan use the same formula of the shape, under the same name."""
    assert OURS == FLOPS_CONVENTION == "megatron-full"
    for shape in (LUMI_13B, GPT3, LLAMA3):
        per_token = shape.flops_per_sequence() / shape.sequence_length
        assert per_token == pytest.approx(flops(shape, 1 / shape.sequence_length))
