"""Weight folders of another model, or with malicious content, are each refused with a reason, and
none causes a hang.
"""

from __future__ import annotations

import json
import os
import pickle
import warnings

import pytest
from suite.messages import containing, refuses, says

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import parse
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training
torch = pytest.importorskip("torch")
save = pytest.importorskip("safetensors.torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training.checkpoints import folders, hugging_face, torch_dist
    from runbook.training.offline_request import OfflineRequest
    from runbook.training.sampling import _check_draw

LLAMA = {
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "activation": "swiglu",
    "biases": False,
    "tied_embeddings": False,
}


@pytest.fixture
def made(tmp_path):
    """Return a function that writes a tiny model's folder with changes, and reads it.

    It is read for the plan's model.
    """
    source = tmp_path / "theirs"
    source.mkdir()

    def read(shape, changes=None, weights=None, more=None):
        model = parse(specs.spec(model=shape), tmp_path).model
        config = {**hugging_face.config_of(model, 0), **(changes or {})}
        (source / "config.json").write_text(json.dumps(config))
        kind = hugging_face.kinds()[str(hugging_face.config_of(model, 0)["model_type"])]
        tensors = {}
        for ours, names in hugging_face._their_names(model, kind):
            if not hugging_face._lacks_bias(ours, model):
                shapes = hugging_face._shapes_there(ours, model)
                tensors |= {name: torch.zeros(s) for name, s in zip(names, shapes, strict=True)}
        save.save_file(tensors | (weights or {}), source / "model.safetensors")
        for name, content in (more or {}).items():
            save.save_file(content, source / name)
        imported = hugging_face.ImportedWeights(source, model)
        return [imported.read_weight(key) for key in imported._ours]

    read.source = source
    return read


def test_what_is_harmless_is_read(made):
    harmless = {"use_cache": False, "transformers_version": "5.1", "pad_token_id": 3, "foo": None}
    assert made({}, {**harmless, "n_ctx": 32, "num_attention_heads": 4, "is_causal": True})
    assert made(LLAMA, {**harmless, "pretraining_tp": 1, "rope_scaling": None})


@pytest.mark.parametrize(
    ("shape", "changes", "says"),
    [
        (
            {},
            {"is_causal": False},
            TrainingMessage.KEY_OF_ANOTHER_MODEL.of(key="is_causal", value="false"),
        ),
        (
            {},
            {"num_attention_heads": 2},
            TrainingMessage.ALIAS_DIFFERS.of(
                name="n_head", value=4, value_of_alias=2, alias="num_attention_heads"
            ),
        ),
        ({}, {"hidden_size": 32}, TrainingMessage.ALIAS_DIFFERS.of(name="n_embd")),
        (
            {},
            {"attn_logit_softcapping": 30.0},
            TrainingMessage.UNKNOWN_CONFIG_KEY.of(key="attn_logit_softcapping"),
        ),
        (
            {},
            {"auto_map": {"AutoModel": "x.Y"}},
            TrainingMessage.KEY_OF_ANOTHER_MODEL.of(key="auto_map"),
        ),
        (
            {},
            {"add_cross_attention": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong=containing("add_cross_attention")),
        ),
        (
            LLAMA,
            {"is_causal": False},
            TrainingMessage.KEY_OF_ANOTHER_MODEL.of(key="is_causal", value="false"),
        ),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            TrainingMessage.ROPE_TYPE.of(rotary="linear"),
        ),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "default", "factor": 4.0}},
            TrainingMessage.ROTARY_KEYS.of(unknown="factor"),
        ),
        (
            LLAMA,
            {"rope_scaling": "x"},
            TrainingMessage.ROTARY_NOT_A_MAPPING.of(key="rope_scaling", rotary=containing("x")),
        ),
        (
            LLAMA,
            {"rope_parameters": [1]},
            TrainingMessage.ROTARY_NOT_A_MAPPING.of(key="rope_parameters", rotary=containing("1")),
        ),
        (
            LLAMA,
            {"rope_theta": 5e5},
            TrainingMessage.ROTARY_TWICE.of(name="rope_theta", values="500000.0, 10000.0"),
        ),
        (
            LLAMA,
            {"layer_types": ["sliding_attention"]},
            TrainingMessage.LAYER_TYPES.of(),
        ),
        (
            LLAMA,
            {"residual_multiplier": 0.2},
            TrainingMessage.UNKNOWN_CONFIG_KEY.of(key="residual_multiplier"),
        ),
        (
            LLAMA,
            {"head_dim": "x"},
            TrainingMessage.ANOTHER_MODEL.of(wrong=containing("head_dim x")),
        ),
    ],
)
def test_a_config_of_another_model_is_refused(made, shape, changes, says):
    with refuses(RefusedError, says):
        made(shape, changes)


@pytest.mark.parametrize("name", ["float64", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_of_other_formats_are_refused(made, name):
    weight = torch.zeros(64).to(getattr(torch, name))
    with refuses(RefusedError, TrainingMessage.NUMBER_FORMAT):
        made({}, weights={"transformer.ln_f.bias": weight})


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_numbers_of_16_bits_are_read(made, name):
    weight = torch.zeros(64, dtype=getattr(torch, name))
    assert made({}, weights={"transformer.ln_f.bias": weight})


def test_the_same_weight_twice_is_refused(made):
    with refuses(RefusedError, TrainingMessage.WEIGHT_TWICE, name="ln_f.bias"):
        made({}, weights={"ln_f.bias": torch.ones(64)})
    again = {"transformer.ln_f.bias": torch.ones(64)}
    with refuses(
        RefusedError, TrainingMessage.WEIGHT_TWICE, name="ln_f.bias", file="other.safetensors"
    ):
        made({}, more={"other.safetensors": again})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"transformer.ln_f.bias": "../model.safetensors"}},
            TrainingMessage.WEIGHT_IN_ANOTHER_FILE,
        ),
        (
            {"weight_map": {"transformer.ln_f.bias": "other.safetensors"}},
            TrainingMessage.WEIGHT_IN_ANOTHER_FILE,
        ),
        ({"weight_map": 3}, TrainingMessage.INDEX_NOT_READABLE),
        ([], TrainingMessage.INDEX_NOT_READABLE),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(made, index, message):
    (made.source / "model.safetensors.index.json").write_text(json.dumps(index))
    with refuses(RefusedError, message, path=containing("index.json")):
        made({})


@pytest.mark.parametrize("name", ["other.safetensors", "model.safetensors.index.json"])
def test_a_pipe_is_refused_and_not_waited_for(made, name):
    os.mkfifo(made.source / name)
    with pytest.raises(RefusedError) as caught:
        made({})
    assert says(str(caught.value), TrainingMessage.PLAIN_FILE_NEEDED)
    assert name in str(caught.value)


def test_a_pipe_in_a_megatron_folder_is_refused(tmp_path):
    for name in ("common.pt", ".metadata"):
        os.mkfifo(tmp_path / name)
    with refuses(RefusedError, TrainingMessage.NOT_A_PLAIN_FILE):
        torch_dist.read_pickle(tmp_path / "common.pt")
    with pytest.raises(RefusedError) as caught:
        torch_dist.check_shards(tmp_path)
    assert says(str(caught.value), TrainingMessage.PLAIN_FILE_NEEDED)
    assert ".metadata" in str(caught.value)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.",  # BINBYTES8
        b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.",  # BINUNICODE8
        b"\x80\x05\x96" + (2**45).to_bytes(8, "little") + b"x.",  # BYTEARRAY8
        b"\x80\x04\x95" + (2**50).to_bytes(8, "little") + b".",  # FRAME
        b"\x80\x04\x8b" + (2**31 - 1).to_bytes(4, "little") + b"x.",  # LONG4
        b"(" * 100_000,
    ],
)
def test_a_length_that_the_file_does_not_have_is_refused(tmp_path, bomb):
    (tmp_path / ".metadata").write_bytes(bomb)
    with refuses(RefusedError, TrainingMessage.METADATA_NOT_READABLE):
        torch_dist.check_shards(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"consumed_samples": "x"}, "consumed_samples is 'x'"),
        ({"iteration": True}, "iteration is True"),
        ({"segment": -1}, "segment is -1"),
        ({"passed_over": [["a", 1]]}, "passed_over is"),
        ({"common": 3}, "common is 3"),
        ({"files": {"../../secret": "0"}}, "'../../secret', which is not in its folder"),
        ({"files": {"/etc/passwd": "0"}}, "'/etc/passwd', which is not in its folder"),
        ({"files": {"torch_dist/x": 3}}, "checksum of 'torch_dist/x' is 3"),
        ({"files": []}, "files is not a mapping"),
    ],
)
def test_metadata_of_other_types_or_of_files_elsewhere_is_a_problem_not_a_checkpoint(
    tmp_path, change, says
):
    metadata = {"iteration": 6, "consumed_samples": 48, "files": {"torch_dist/a": "0"}, **change}
    folder = tmp_path / "iter_0000006"
    folder.mkdir()
    sealed = {**metadata, "seal": folders._seal(metadata)}
    (folder / "metadata.json").write_text(json.dumps(sealed))
    checkpoints, problems = folders.candidates(tmp_path)
    assert checkpoints == [] and says in problems[0]


def test_a_pickle_of_plain_data_is_no_description(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with refuses(RefusedError, TrainingMessage.NOT_TORCHS_METADATA, name="dict"):
        torch_dist.check_shards(tmp_path)


@pytest.mark.parametrize("wish", [{"top_p": float("nan")}, {"temperature": -1}, {"tokens": "x"}])
def test_a_draw_by_no_number_is_refused(wish):
    with refuses(RefusedError, TrainingMessage.OPTION_OUT_OF_RANGE):
        _check_draw(OfflineRequest(**wish))
