"""Megatron-LM's checkpoints as initial weights: every layout, bit for bit; hostile files run no
code.
"""

import dataclasses
import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
from argparse import Namespace

import numpy
import pytest
from suite.messages import containing, refuses, says

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import parse, read_plan
from runbook.training.messages import TrainingMessage

from . import specs
from .test_hugging_face import LLAMA, Evil

pytestmark = pytest.mark.training
torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training.checkpoints import torch_dist, weights
    from runbook.training.checkpoints.hugging_face import our_shapes
    from runbook.training.checkpoints.megatron_import import MegatronWeights

    from . import megatron_files, plain_gpt

GPT = {}
QKV = "decoder.layers.self_attention.linear_qkv.weight"
ONE_QKV = "decoder.layers.1.self_attention.linear_qkv.weight"
MODELS = {"gpt": GPT, "llama": LLAMA}


@pytest.fixture(scope="module")
def saved(zygote, tmp_path_factory):
    """Return a function to save a Megatron-LM checkpoint, once for each model, format and layout."""
    done = {}

    def get(model, form, tensor=1, pipeline=1, virtual=1, padded=256, dtype="float32", **arguments):
        key = (model, form, tensor, pipeline, virtual, padded, dtype)
        if key not in done:
            folder = tmp_path_factory.mktemp("saved")
            wish = {"format": form, "dtype": dtype, "arguments": arguments}
            (folder / "save.json").write_text(json.dumps(wish))
            shape = {**MODELS[model], "padded_vocabulary": padded}
            content = specs.spec(
                tensor=tensor, pipeline=pipeline, virtual_pipeline=virtual, model=shape
            )
            job = zygote.start(folder, content, patch="training.megatron_files:save").wait()
            assert job.code == 0, job.err
            done[key] = folder / "megatron"
        return done[key]

    return get


def expected_weights(model):
    """Yield all weights in the complete model by name, including the vocabulary's padding rows."""
    shapes = our_shapes(model)
    for name, shape in shapes.items():
        if shape[0] == model.shape.padded_vocabulary:
            padded = (model.shape.padded_vocabulary, *shape[1:])
        else:
            padded = shape
        yield name, megatron_files.random_weight(weights.stored_key(name), padded)


FORMS = [
    ("gpt", "torch_dist", {"tensor": 2, "pipeline": 2}),
    ("gpt", "torch_dist", {}),
    ("gpt", "torch", {"tensor": 2, "pipeline": 2}),
    ("gpt", "torch", {}),
    ("gpt", "old", {"tensor": 2, "pipeline": 2}),
    ("gpt", "old", {}),
    ("llama", "torch_dist", {"tensor": 2, "pipeline": 2}),
    ("llama", "torch_dist", {"tensor": 2, "dtype": "bfloat16"}),
    ("llama", "torch", {"tensor": 2, "dtype": "bfloat16"}),
    ("llama", "torch", {"pipeline": 2}),
    ("llama", "old", {"tensor": 2, "pipeline": 2}),
    ("gpt", "torch", {"pipeline": 2, "virtual": 2, "tensor": 2}),
    ("gpt", "torch_dist", {"pipeline": 2, "virtual": 2}),
]


@pytest.mark.parametrize(("model", "form", "layout"), FORMS)
@pytest.mark.rotate(3)
def test_every_weight_comes_over_bit_for_bit(model, form, layout, saved, offline, tmp_path):
    source = saved(model, form, **layout)
    plan = specs.write_plan(tmp_path, specs.spec(model=MODELS[model]))
    code, answer = offline("import", tmp_path, source=str(source))
    assert code == 0, answer
    spec = read_plan(plan, "04-training")
    dtype = getattr(torch, layout.get("dtype", "float32"))
    imported = weights.newest_weights(spec)
    found = imported.read(our_shapes(spec.model), masters=False)
    assert imported.iteration == 0 and len(found) > 14
    for name, whole in expected_weights(spec.model):
        if len(whole) == 256 and whole.dim() == 2 and "layers" not in name:
            rows = 250
        else:
            rows = len(whole)
        assert torch.equal(found[name][:rows], whole[:rows].to(dtype).float()), name
        assert not found[name][rows:].any()
    assert says(offline("import", tmp_path, source=str(source))[1], TrainingMessage.HAS_CHECKPOINTS)


@pytest.mark.parametrize("model", MODELS)
def test_the_imported_model_gives_the_logits_of_a_plain_one_and_the_first_loss(
    model, saved, offline, zygote, corpus, tmp_path
):
    (tmp_path / "data").symlink_to(corpus)
    content = specs.spec(model=MODELS[model], iterations=1)
    plan = specs.write_plan(tmp_path, content)
    code, answer = offline(
        "import", tmp_path, source=str(saved(model, "torch_dist", tensor=2, pipeline=2))
    )
    assert code == 0, answer
    planned = read_plan(plan, "04-training").model
    plain = {
        name: whole[:250]
        if len(whole) == 256 and name.endswith("word_embeddings.weight")
        else whole
        for name, whole in expected_weights(planned)
    }
    plain["output_layer.weight"] = plain.get(
        "output_layer.weight", plain["embedding.word_embeddings.weight"]
    )[:250]
    tokens = torch.from_numpy(numpy.random.default_rng(3).integers(0, 250, (2, 32)))
    numpy.save(tmp_path / "tokens.npy", tokens.numpy())
    ours = zygote.start(tmp_path, None, world_size=1, patch="training.plain_gpt:logits").wait()
    assert ours.codes == [0], ours.err
    found = numpy.load(tmp_path / "logits.npy")[..., :250]
    assert (
        numpy.abs(found - plain_gpt.plain_forward(plain, tokens, planned.shape).numpy()).max()
        < 1e-5
    )
    assert numpy.abs(found).max() > 0.3
    read = zygote.start(tmp_path, None, world_size=1, patch="training.plain_gpt:batches").wait()
    assert read.codes == [0], read.err
    batch, labels = torch.from_numpy(numpy.load(tmp_path / "batches.npy")[0])
    logits = plain_gpt.plain_forward(plain, batch, planned.shape)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert abs(zygote.train(tmp_path, None, world_size=1).losses()[0] - float(expected)) < 1e-5


@pytest.fixture
def made(tmp_path):
    """Return a function that writes a single-rank checkpoint and reads it for the planned model.

    Weights and arguments may be changed.
    """

    def read(model=GPT, plan=None, weights_=None, **changes):
        described = parse(specs.spec(model=model), tmp_path).model
        content = {"checkpoint_version": 3.0, "args": megatron_files.arguments(described.shape)} | {
            key: changes.pop(key) for key in ("checkpoint_version", "args") if key in changes
        }
        if isinstance(content["args"], Namespace):
            vars(content["args"]).update(changes)
        full = {weights.stored_key(name): whole for name, whole in expected_weights(described)} | (
            weights_ or {}
        )
        content["model"] = {name: value for name, value in full.items() if value is not None}
        path = tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path)
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("release\n")
        planned = described if plan is None else parse(specs.spec(model=plan), tmp_path).model
        imported = MegatronWeights(tmp_path, planned)
        return {
            key: imported.read_weight(key) for key in map(weights.stored_key, our_shapes(planned))
        }

    return read


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        (GPT, {"num_layers": 6}, TrainingMessage.ANOTHER_MODEL.of(wrong="num_layers 6 (plan: 4)")),
        (
            GPT,
            {"hidden_size": 128, "kv_channels": 32},
            TrainingMessage.ANOTHER_MODEL.of(
                wrong="hidden_size 128 (plan: 64), kv_channels 32 (plan: 16)"
            ),
        ),
        (
            GPT,
            {"max_position_embeddings": 64},
            TrainingMessage.ANOTHER_MODEL.of(wrong="max_position_embeddings 64 (plan: 32)"),
        ),
        (
            GPT,
            {"padded_vocab_size": 384},
            TrainingMessage.ANOTHER_MODEL.of(wrong="padded_vocab_size 384 (plan: 256)"),
        ),
        (
            GPT,
            {"swiglu": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="swiglu True (plan: False)"),
        ),
        (
            GPT,
            {"bias_gelu_fusion": False},
            TrainingMessage.ANOTHER_MODEL.of(wrong="bias_gelu_fusion False (plan: True)"),
        ),
        (
            GPT,
            {"squared_relu": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="squared_relu True (plan: None)"),
        ),
        (
            GPT,
            {"position_embedding_type": "rope"},
            TrainingMessage.ANOTHER_MODEL.of(
                wrong="position_embedding_type rope (plan: learned_absolute)"
            ),
        ),
        (
            GPT,
            {"normalization": "RMSNorm"},
            TrainingMessage.ANOTHER_MODEL.of(wrong="normalization RMSNorm (plan: LayerNorm)"),
        ),
        (
            GPT,
            {"norm_epsilon": 1e-6},
            TrainingMessage.ANOTHER_MODEL.of(wrong="norm_epsilon 1e-06 (plan: 1e-05)"),
        ),
        (
            GPT,
            {"apply_layernorm_1p": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="apply_layernorm_1p True (plan: None)"),
        ),
        (
            GPT,
            {"qk_layernorm": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="qk_layernorm True (plan: None)"),
        ),
        (
            GPT,
            {"num_experts": 8},
            TrainingMessage.ANOTHER_MODEL.of(wrong="num_experts 8 (plan: None)"),
        ),
        (
            GPT,
            {"window_size": [128, 0]},
            TrainingMessage.ANOTHER_MODEL.of(wrong="window_size [128, 0] (plan: None)"),
        ),
        (
            GPT,
            {"add_bias_linear": False, "add_qkv_bias": False},
            TrainingMessage.ANOTHER_MODEL.of(
                wrong=containing("add_bias_linear False (plan: True)")
            ),
        ),
        (
            GPT,
            {"untie_embeddings_and_output_weights": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong=containing("output_weights True (plan: False)")),
        ),
        (
            GPT,
            {"softmax_type": "learnable"},
            TrainingMessage.ANOTHER_MODEL.of(wrong="softmax_type learnable (plan: vanilla)"),
        ),
        (
            LLAMA,
            {"rotary_base": 500_000},
            TrainingMessage.ANOTHER_MODEL.of(wrong="rotary_base 500000 (plan: 10000.0)"),
        ),
        (
            LLAMA,
            {"rotary_percent": 0.5},
            TrainingMessage.ANOTHER_MODEL.of(wrong="rotary_percent 0.5 (plan: 1.0)"),
        ),
        (
            LLAMA,
            {"group_query_attention": False},
            TrainingMessage.ANOTHER_MODEL.of(wrong="num_query_groups 4 (plan: 2)"),
        ),
        (
            LLAMA,
            {"add_qkv_bias": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="add_qkv_bias True (plan: False)"),
        ),
        (
            GPT,
            {"checkpoint_version": 2.0},
            TrainingMessage.CHECKPOINT_VERSION.of(version=2.0),
        ),
        (GPT, {"checkpoint_version": None}, TrainingMessage.CHECKPOINT_VERSION.of(version="None")),
        (GPT, {"args": None}, TrainingMessage.STATE_WITHOUT_ARGS.of()),
        (
            GPT,
            {"num_layers": torch.ones(3)},
            TrainingMessage.CHECKPOINT_NOT_READABLE.of(name="RuntimeError"),
        ),
    ],
)
def test_a_model_that_computes_something_else_is_refused_with_both_values(
    model, changes, says, made
):
    made(model)
    with refuses(RefusedError, says):
        made(model, **changes)


def test_arguments_that_older_versions_lack_mean_what_they_did(made):
    made(
        GPT,
        **dict.fromkeys(
            ("swiglu", "normalization", "add_bias_linear", "rotary_base", "norm_epsilon")
        ),
        position_embedding_type=None,
        layernorm_epsilon=1e-5,
    )
    made(LLAMA, position_embedding_type=None, use_rotary_position_embeddings=True)
    made(
        GPT,
        padded_vocab_size=250,
        weights_={"embedding.word_embeddings.weight": torch.ones(250, 64)},
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"decoder.layers.2.mlp.linear_fc1.weight": None},
            TrainingMessage.WEIGHT_MISSING.of(name="decoder.layers.2.mlp.linear_fc1.weight"),
        ),
        (
            {"decoder.final_layernorm.bias": torch.ones(63)},
            TrainingMessage.STORED_SHAPE.of(
                name="decoder.final_layernorm.bias", stored=(63,), shape=(64,)
            ),
        ),
        (
            {"embedding.word_embeddings.weight": torch.ones(128, 64)},
            TrainingMessage.STORED_SHAPE.of(stored=(128, 64), shape=(256, 64)),
        ),
        (
            {"decoder.layers.4.mlp.linear_fc1.weight": torch.ones(256, 64)},
            TrainingMessage.UNPLANNED_WEIGHTS.of(unplanned=containing("decoder.layers.4.mlp")),
        ),
        (
            {"decoder.layers.0.self_attention.q_layernorm.weight": torch.ones(16)},
            TrainingMessage.UNPLANNED_WEIGHTS.of(unplanned=containing("decoder.layers.0.self_a")),
        ),
        (
            {"decoder.final_layernorm.bias": torch.full((64,), float("inf"))},
            TrainingMessage.WEIGHT_NOT_FINITE.of(),
        ),
        (
            {"decoder.final_layernorm.bias": torch.ones(64, dtype=torch.int64)},
            TrainingMessage.WEIGHT_NOT_FINITE.of(),
        ),
        (
            {"decoder.final_layernorm.bias": torch.ones(64).to_sparse()},
            TrainingMessage.WEIGHT_MISSING.of(name="decoder.final_layernorm.bias"),
        ),
        (
            {"decoder.final_layernorm.bias": "text"},
            TrainingMessage.WEIGHT_MISSING.of(name="decoder.final_layernorm.bias"),
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused(changes, says, made):
    with refuses(RefusedError, says):
        made(GPT, weights_=changes)


def test_states_without_weights_are_left_out(made):
    others = {"decoder.layers.0.mlp.linear_fc1._extra_state": torch.ones(9, dtype=torch.uint8)}
    others["rotary_pos_emb.inv_freq"] = torch.ones(8)
    assert made(LLAMA, weights_=others)


@pytest.fixture
def copied(saved, tmp_path):
    """Return a copy of a saved checkpoint that a test may damage."""

    def get(*words, **layout):
        shutil.copytree(saved(*words, **layout), tmp_path / "theirs")
        specs.write_plan(tmp_path, specs.spec())
        return tmp_path / "theirs"

    return get


def use_common_file(folder):
    """Store the non-tensor state in a separate file, as megatron-core did until 0.18."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    places = [
        index for index in metadata.storage_data if index.fqn.partition("/")[0] == "common_state"
    ]
    for index in places:
        place = metadata.storage_data.pop(index)
        with (folder / place.relative_path).open("rb") as stream:
            stream.seek(place.offset)
            data = stream.read(place.length)
        (content,) = torch.load(io.BytesIO(data), weights_only=False)
        torch.save(content, folder / "common.pt")
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def use_common_object(folder, data=None):
    """Store it as an object among the shards, as megatron-core has done since 0.19. `data` replaces
    its bytes.
    """
    use_common_file(folder)
    if data is None:
        stream = io.BytesIO()
        torch.save([torch.load(folder / "common.pt", weights_only=False)], stream)
        data = stream.getvalue()
    (folder / "common.pt").unlink()
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    index, place = next(iter(metadata.storage_data.items()))
    shard = folder / place.relative_path
    place = dataclasses.replace(place, offset=shard.stat().st_size, length=len(data))
    with shard.open("ab") as stream:
        stream.write(data)
    index = dataclasses.replace(index, fqn="common_state/shard_0_1", offset=None, index=None)
    metadata.storage_data[index] = place
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return data


@pytest.mark.parametrize("use", [use_common_file, use_common_object])
def test_both_forms_of_what_is_no_tensor_are_read(use, copied, offline, tmp_path):
    folder = copied("gpt", "torch_dist", tensor=2)
    use(folder / "iter_0000007")
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 0, answer


@pytest.mark.parametrize("whole", [True, False])
def test_a_hostile_object_among_the_shards_runs_nothing(whole, copied, offline, tmp_path):
    folder = copied("gpt", "torch_dist")
    evil = Evil(tmp_path / "owned")
    if whole:
        data = pickle.dumps(evil)
    else:
        use_common_file(folder / "iter_0000007")
        content = torch.load(folder / "iter_0000007" / "common.pt", weights_only=False)
        content["args"].extra = evil
        stream = io.BytesIO()
        torch.save([content], stream)
        data = stream.getvalue()
    use_common_object(folder / "iter_0000007", data)
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 2 and says(
        answer,
        TrainingMessage.MORE_THAN_DATA,
        path=containing(folder / "iter_0000007" / "common_state"),
    ), answer
    assert "Traceback" not in answer and len(answer) < 500
    assert not (tmp_path / "owned").exists() and not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("use", [use_common_file, use_common_object])
def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(use, copied, offline, tmp_path):
    folder = copied("gpt", "torch_dist")
    use_common_file(folder / "iter_0000007")
    common = folder / "iter_0000007" / "common.pt"
    content = torch.load(common, weights_only=False)
    torch.save([content] if use is use_common_object else content, common)
    packed = io.BytesIO()
    with zipfile.ZipFile(common) as stored, zipfile.ZipFile(packed, "w") as archive:
        for entry in stored.infolist():
            data = stored.read(entry)
            archive.writestr(entry.filename, data, compress_type=zipfile.ZIP_DEFLATED)
    if use is use_common_object:
        torch.save(content, common)
        use_common_object(folder / "iter_0000007", packed.getvalue())
    else:
        common.write_bytes(packed.getvalue())
    code, answer = offline("import", tmp_path, source=str(folder))
    assert (
        code == 2 and says(answer, TrainingMessage.COMPRESSED_PART) and "Traceback" not in answer
    ), answer


@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_an_object_that_is_cut_short_is_refused(share, copied, offline, tmp_path):
    folder = copied("gpt", "torch_dist")
    data = use_common_object(folder / "iter_0000007")
    use_common_object(folder / "iter_0000007", data[: int(len(data) * share)])
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 2 and "common_state" in answer and "Traceback" not in answer, answer
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("form", "file"),
    [
        ("torch_dist", ".metadata"),
        ("torch_dist", "common.pt"),
        ("torch", "mp_rank_00/model_optim_rng.pt"),
    ],
)
def test_a_hostile_pickle_runs_nothing(form, file, whole, copied, offline, tmp_path):
    folder = copied("gpt", form)
    path = folder / "iter_0000007" / file
    if file == "common.pt":
        use_common_file(folder / "iter_0000007")
    evil = Evil(tmp_path / "owned")
    if file == ".metadata" and not whole:
        metadata = pickle.loads(path.read_bytes())
        metadata.all_local_plans = [evil]
        path.write_bytes(pickle.dumps(metadata))
    elif whole:
        path.write_bytes(pickle.dumps(evil))
    else:
        content = torch.load(path, weights_only=False)
        content["args"].extra = evil
        torch.save(content, path)
    code, answer = offline("import", tmp_path, source=str(folder))
    if file == ".metadata" or not whole:
        names_program = "posix.mkdir" in answer
    else:
        names_program = says(answer, TrainingMessage.MORE_THAN_DATA)
    assert code == 2 and names_program and "Traceback" not in answer and len(answer) < 500, answer
    assert not (tmp_path / "owned").exists() and not list(tmp_path.glob("checkpoints/*"))


class Loads:
    """Refers to a function of a known package, which would run code."""

    def __reduce__(self):
        return torch.hub.load_state_dict_from_url, ("http://127.0.0.1:9/x", "/tmp", None, False)


def test_a_function_that_is_known_is_not_called_either(copied, offline, tmp_path):
    folder = copied("gpt", "torch")
    path = folder / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    torch.save({**content, "opt_param_scheduler": Loads()}, path)
    known = torch.serialization.get_safe_globals()
    made = torch_dist.read_pickle(path)["opt_param_scheduler"]
    assert type(made) is torch_dist.Placeholder and vars(made) == {}
    assert {*map(str, torch.serialization.get_safe_globals())} == {*map(str, known)}
    code, answer = offline("import", tmp_path, source=str(folder / "iter_0000007"))
    assert code == 0, answer


@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ("torch_dist", ".metadata"),
        ("torch_dist", "common.pt"),
        ("torch_dist", "*.distcp"),
        ("torch", "mp_rank_01/*.pt"),
    ],
)
def test_a_file_that_is_cut_short_is_refused(form, pattern, share, copied, offline, tmp_path):
    folder = copied("gpt", form, **({"tensor": 2} if form == "torch" else {}))
    if pattern == "common.pt":
        use_common_file(folder / "iter_0000007")
    path = max((folder / "iter_0000007").glob(pattern), key=lambda each: each.stat().st_size)
    os.truncate(path, int(path.stat().st_size * share))
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 2 and path.name in answer and "Traceback" not in answer and len(answer) < 800, (
        answer
    )
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_folder_that_lacks_files_is_refused(copied, offline, tmp_path):
    folder = copied("gpt", "torch", tensor=2, pipeline=2)
    shutil.rmtree(folder / "iter_0000007" / "mp_rank_01_001")
    assert "mp_rank_01_001/model_optim_rng.pt" in offline("import", tmp_path, source=str(folder))[1]
    (folder / "latest_checkpointed_iteration.txt").write_text("9")
    assert says(
        offline("import", tmp_path, source=str(folder))[1],
        TrainingMessage.TRACKER_NAMES_ANOTHER,
        named="9",
    )
    (folder / "latest_checkpointed_iteration.txt").unlink()
    assert says(offline("import", tmp_path, source=str(folder))[1], TrainingMessage.NOT_MEGATRON_LM)


@pytest.mark.parametrize(
    ("change", "message", "values"),
    [
        ("chunk", TrainingMessage.PART_MISSING, {"key": ONE_QKV}),
        ("layers", TrainingMessage.LAYERS_IN_ONE_PIECE, {"length": 2}),
        ("elsewhere", TrainingMessage.FILE_OUTSIDE_FOLDER, {"name": "../x.distcp"}),
        (
            "size",
            TrainingMessage.TENSOR_DESCRIPTION,
            {"problem": containing("bytes, but the folder contains only")},
        ),
        (
            "nonsense",
            TrainingMessage.TENSOR_DESCRIPTION,
            {"name": QKV, "problem": containing("something other than a tensor")},
        ),
    ],
)
def test_shards_that_are_not_as_described_are_refused(
    change, message, values, copied, offline, tmp_path
):
    folder = copied("gpt", "torch_dist", tensor=2, pipeline=2)
    path = folder / "iter_0000007" / ".metadata"
    key = QKV
    metadata = pickle.loads(path.read_bytes())
    described = metadata.state_dict_metadata[key]
    index = next(
        each
        for each in metadata.storage_data
        if each.fqn == key and tuple(each.offset) == (1, 0, 0)
    )
    if change == "chunk":
        del metadata.storage_data[index]
    elif change == "layers":
        for chunk in described.chunks:
            chunk.sizes = torch.Size((2, *chunk.sizes[1:]))
    elif change == "elsewhere":
        metadata.storage_data[index].relative_path = "../x.distcp"
    elif change == "size":
        described.size = torch.Size((4, 2**40, 64))
    else:
        described.chunks = [None]
    path.write_bytes(pickle.dumps(metadata))
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 2 and says(answer, message, **values) and "Traceback" not in answer, answer
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_value_that_is_not_finite_leaves_nothing_behind(copied, offline, tmp_path):
    folder = copied("gpt", "torch")
    path = folder / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["model"]["decoder.layers.3.mlp.linear_fc2.weight"][1, 2] = float("nan")
    torch.save(content, path)
    code, answer = offline("import", tmp_path, source=str(folder))
    assert code == 2 and says(
        answer, TrainingMessage.WEIGHT_NOT_FINITE, name="decoder.layers.3.mlp.linear_fc2.weight"
    )
    assert "Make room" not in answer and not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("form", ["torch_dist", "torch"])
def test_one_weight_is_in_memory_at_a_time(form, saved, zygote, tmp_path):
    """Import 113 MB and 7 MB models in 8 MB files, and compare the memory.

    Torch keeps one file in memory while writing it.
    """
    grown = {}
    for layers in (1, 16):
        folder = tmp_path / str(layers)
        shape = {"layers": layers, "hidden": 384, "ffn_hidden": 1536}
        folder.mkdir()
        MODELS[f"layers {layers}"] = shape
        source = saved(f"layers {layers}", form)
        specs.write_plan(folder, specs.spec(model=shape))
        (folder / "request.json").write_text(
            json.dumps({"command": "import", "source": str(source)})
        )
        done = zygote.start(
            folder, None, world_size=1, patch="training.megatron_files:import_measured"
        ).wait()
        assert done.code == 0, done.err
        grown[layers] = int((folder / "peak").read_text())
    assert sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) > 110e6
    assert grown[16] - grown[1] < 40e6
