"""Weights exported to Hugging Face folders and imported again, checked with `transformers`; text
from a checkpoint.
"""

import io
import json
import os
import pickle
import shutil
import warnings

import numpy
import pytest
from suite.messages import containing, refuses, says

from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import parse
from runbook.training.messages import TrainingMessage

from . import specs
from .test_saving import reseal

pytestmark = pytest.mark.training


LLAMA = {
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "activation": "swiglu",
    "biases": False,
    "tied_embeddings": False,
    "kv_heads": 2,
    "ffn_hidden": 96,
    "layers": 2,
}
TRAINED = {
    "GPT2LMHeadModel": specs.spec(tensor=2, pipeline=2, iterations=4, peak=1e-2),
    "LlamaForCausalLM": specs.spec(tensor=2, copies=2, iterations=2, peak=1e-2, model=LLAMA),
    "Starcoder2ForCausalLM": specs.spec(
        pipeline=2,
        iterations=2,
        peak=1e-2,
        engine="deepspeed",
        model={
            **LLAMA,
            "normalization": "layernorm",
            "activation": "gelu",
            "biases": True,
            "tied_embeddings": True,
        },
    ),
    "ArceeForCausalLM": specs.spec(
        tensor=2,
        copies=2,
        zero_stage=3,
        iterations=2,
        peak=1e-2,
        engine="deepspeed",
        model={
            **LLAMA,
            "activation": "gelu",
            "biases": True,
            "kv_heads": 4,
            "tied_embeddings": True,
        },
    ),
}
"""Training runs by the architecture that each becomes: layouts, engines, grouped queries, biases,
tied embeddings.
"""


@pytest.fixture(scope="module")
def jobs(zygote, corpus, tmp_path_factory):
    """Return a function that returns a job, and its folder exported in small files. A training run
    starts when a test first needs it."""
    done = {}

    def get(architecture, offline):
        if architecture not in done:
            folder = tmp_path_factory.mktemp(architecture)
            (folder / "data").symlink_to(corpus)
            job = zygote.train(folder, TRAINED[architecture])
            assert job.code == 0, job.err
            code, answer = offline("export", folder, out=str(folder / "hf"), shard_bytes=100_000)
            assert code == 0, answer
            assert answer["iteration"] == TRAINED[architecture]["duration"]["iterations"]
            done[architecture] = job, folder / "hf"
        return done[architecture]

    return get


@pytest.fixture(scope="module")
def job(jobs, offline):
    """Return a GPT-2-like training run on four ranks."""
    return jobs("GPT2LMHeadModel", offline)[0]


@pytest.fixture(scope="module")
def exported(jobs, offline):
    return jobs("GPT2LMHeadModel", offline)[1]


def load_theirs(folder):
    """Return the model that `transformers` loads from a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype="float32"
        ).eval()


def assert_same_logits(folder, theirs, zygote):
    """Check that a run's newest checkpoint and a `transformers` model compute the same logits."""
    import torch

    tokens = numpy.random.default_rng(3).integers(0, 250, (2, 32))
    numpy.save(folder / "tokens.npy", tokens)
    ours = zygote.start(folder, None, world_size=1, patch="training.plain_gpt:logits").wait()
    assert ours.codes == [0], ours.err
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    found = numpy.load(folder / "logits.npy")[..., :250]
    assert numpy.abs(expected).max() > 0.3
    assert numpy.abs(found - expected).max() < 1e-5


def content(folder):
    """Return all weights of a folder by name: number format, shape and bytes."""
    from safetensors import safe_open

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return {name: (value.dtype, value.shape, value.tobytes()) for name, value in found.items()}


@pytest.mark.parametrize("architecture", TRAINED)
@pytest.mark.rotate(2)
def test_transformers_gives_the_same_logits_and_the_weights_come_back_bit_for_bit(
    architecture, jobs, offline, zygote, tmp_path
):
    job, folder = jobs(architecture, offline)
    theirs = load_theirs(folder)
    assert type(theirs).__name__ == architecture
    assert_same_logits(job.folder, theirs, zygote)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert {*index["weight_map"].values()} == {
        path.name for path in folder.glob("model-*-of-*.safetensors")
    }
    alone = {
        **TRAINED[architecture],
        "parallel": specs.spec()["parallel"],
        "engine": "megatron-core",
    }
    specs.write_plan(tmp_path, {**alone, "batch": specs.spec()["batch"]})
    for command, request in (
        ("import", {"source": str(folder)}),
        ("export", {"out": str(tmp_path / "hf")}),
    ):
        code, answer = offline(command, tmp_path, **request)
        assert code == 0, answer
    assert [path.name for path in (tmp_path / "hf").iterdir() if "safetensors" in path.name] == [
        "model.safetensors"
    ]
    assert content(tmp_path / "hf") == content(folder)


def test_the_likeliest_text_is_the_one_transformers_makes(job, exported, offline):
    import torch

    theirs = load_theirs(exported)
    code, answer = offline("sample", job.folder, prompts=[[3, 4, 5]], tokens=8, temperature=0)
    assert code == 0, answer
    ids = [3, 4, 5]
    with torch.no_grad():
        for _ in answer["ids"][0]:
            ids.append(int(theirs(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answer["ids"] == [ids[3:]] and len(ids) == 11


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_text_is_the_same_with_and_without_kept_keys_and_values_alone_and_in_a_batch(
    architecture, jobs, offline
):
    folder = jobs(architecture, offline)[0].folder
    prompts = [[3, 4, 5], [200], [*range(1, 30)]]
    wish = {"tokens": 12, "temperature": 1.5, "top_p": 0.9, "seed": 5}
    (code, kept), (_, whole), (_, alone), (_, other), (_, first) = (
        offline("sample", folder, **{"prompts": prompts, **wish, **changes})
        for changes in (
            {},
            {"cache": False},
            {"prompts": prompts[1:2]},
            {"seed": 6},
            {"top_p": 1e-9},
        )
    )
    assert code == 0, kept
    assert (
        kept["ids"] == whole["ids"]
        and alone["ids"] == kept["ids"][1:2]
        and other["ids"] != kept["ids"]
    )
    assert max(map(len, kept["ids"])) == 12  # the last token exceeds the model's 32 positions
    assert (
        first["ids"]
        == offline("sample", folder, prompts=prompts, tokens=12, temperature=0)[1]["ids"]
    )


def test_a_token_is_drawn_from_those_with_the_share_that_is_asked_for():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core warns when it is imported
        from runbook.training.sampling import draw_token

    generator = torch.Generator().manual_seed(1)
    logits = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3] + [1e-9] * 96))
    drawn = {
        top_p: {draw_token(logits, generator, 1.0, top_p) for _ in range(200)}
        for top_p in (0.4, 0.5, 0.75, 1.0)
    }
    assert drawn == {0.4: {1}, 0.5: {1, 3}, 0.75: {1, 2, 3}, 1.0: {0, 1, 2, 3}}


MADE = {
    "GPT2": ({}, {"n_positions": 32, "n_embd": 64, "n_layer": 4, "n_head": 4}),
    "Llama": (
        {**LLAMA, "tied_embeddings": True, "kv_heads": 1, "norm_epsilon": 1e-6},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "Mistral": ({**LLAMA, "norm_epsilon": 1e-6}, {"sliding_window": None}),
    "Qwen2": (
        {**LLAMA, "qkv_biases": True, "norm_epsilon": 1e-6, "rope_base": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "StableLm": ({**LLAMA, "normalization": "layernorm"}, {"partial_rotary_factor": 1.0}),
}
"""`transformers` models with random weights: the planned model, and config keys besides the sizes.
"""


def make_theirs(name, folder, **changes):
    """Save a `transformers` model in which no weight is zero or one."""
    import torch
    import transformers

    sizes = {"vocab_size": 250, "bos_token_id": 0, "eos_token_id": 0}
    if name != "GPT2":
        sizes |= {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        }
    config = getattr(transformers, f"{name}Config")(**{**sizes, **MADE[name][1], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=generator) * 0.05 + (weight.dim() == 1) * 0.7
            )
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MADE)
def test_a_model_made_by_transformers_is_imported(name, offline, zygote, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = make_theirs(name, tmp_path / "theirs")
    specs.write_plan(tmp_path, specs.spec(model=MADE[name][0]))
    code, answer = offline("import", tmp_path, source=str(tmp_path / "theirs"))
    assert code == 0, answer
    assert_same_logits(tmp_path, theirs, zygote)
    code, answer = offline("export", tmp_path, out=str(tmp_path / "hf"))
    assert code == 0, answer
    before = content(tmp_path / "theirs")
    after = content(tmp_path / "hf")
    assert after == before


def train_theirs(model, batches, plan):
    """Return the losses from a plain loop over these batches, with AdamW and clipping as planned."""
    import torch

    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    groups = [
        {"params": matrices},
        {"params": [weight for weight in model.parameters() if weight.dim() == 1]},
    ]
    groups[0]["weight_decay"], groups[1]["weight_decay"] = plan.optimizer.weight_decay, 0.0
    betas = (plan.optimizer.beta1, plan.optimizer.beta2)
    losses = []
    adam = torch.optim.AdamW(groups, betas=betas, eps=plan.optimizer.epsilon)
    for step, (tokens, labels) in enumerate(torch.from_numpy(batches), 1):
        loss = torch.nn.functional.cross_entropy(
            model(tokens).logits.flatten(0, 1), labels.flatten()
        )
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.optimizer.clip_gradient)
        for group in adam.param_groups:
            group["lr"] = plan.learning_rate.at(step * plan.batch.global_)
        adam.step()
    return losses


def test_imported_weights_train_as_a_plain_loop_over_transformers_in_other_layouts(
    offline, zygote, corpus, tmp_path
):
    shape = MADE["Qwen2"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = make_theirs("Qwen2", tmp_path / "theirs")
    for name, layout in {
        "one": {},
        "megatron": {"tensor": 2, "pipeline": 2},
        "deepspeed": {"copies": 2, "zero_stage": 2, "engine": "deepspeed"},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data").symlink_to(corpus)
        content = specs.spec(model=shape, iterations=5, **layout)
        specs.write_plan(folder, content)
        if name == "one":
            read = zygote.start(
                folder, None, world_size=1, patch="training.plain_gpt:batches"
            ).wait()
            assert read.codes == [0], read.err
            expected = train_theirs(
                theirs, numpy.load(folder / "batches.npy"), parse(content, folder)
            )
            code, answer = offline("import", folder, source=str(tmp_path / "theirs"))
            assert code == 0, answer
            continue
        shutil.copytree(tmp_path / "one" / "checkpoints", folder / "checkpoints")
        trained = zygote.train(folder, None, world_size=content["parallel"]["world_size"])
        assert numpy.abs(numpy.subtract(trained.losses(), expected)).max() < 1e-5
    assert expected[-1] < expected[0] - 0.03


def test_weights_that_come_back_are_the_same_and_train_on(
    job, exported, offline, zygote, corpus, tmp_path
):
    (tmp_path / "data").symlink_to(corpus)
    specs.write_plan(tmp_path, specs.spec(iterations=2, copies=2))
    code, answer = offline("import", tmp_path, source=str(exported))
    assert code == 0, answer
    trained = zygote.train(tmp_path, None, world_size=2)
    assert trained.code == 0, trained.err
    assert trained.metrics[0]["loss"] < job.metrics[0]["loss"] - 0.3
    assert says(
        offline("import", tmp_path, source=str(exported))[1], TrainingMessage.HAS_CHECKPOINTS
    )


def test_another_models_folder_is_refused_with_both_values(exported, offline, tmp_path):
    specs.write_plan(tmp_path, specs.spec(model={"layers": 2, "vocabulary": 200}))
    code, answer = offline("import", tmp_path, source=str(exported))
    assert code == 2
    for key, value, planned in (("vocab_size", 250, 200), ("n_layer", 4, 2)):
        difference = PlanFileMessage.VALUE_DIFFERS.fill(
            key=key, value=value, whose="plan", planned=planned
        )
        assert says(answer, TrainingMessage.ANOTHER_MODEL, wrong=containing(difference))


def test_a_model_that_transformers_does_not_have_is_refused(job, offline, tmp_path):
    content = json.loads((job.folder / "plan.json").read_text())["phases"]["04-training"]
    content["model"] |= {"normalization": "rmsnorm"}
    content["checkpoint"]["folder"] = str(job.folder / "checkpoints")
    specs.write_plan(tmp_path, content)
    code, answer = offline("export", tmp_path, out=str(tmp_path / "hf"))
    assert code == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core warns when it is imported
        from runbook.training.checkpoints import hugging_face

    needed = hugging_face.kinds()["gpt2"].needed["normalization"]
    difference = PlanFileMessage.VALUE_DIFFERS.fill(
        key="normalization", value="rmsnorm", whose="needed", planned=needed
    )
    assert says(
        answer,
        TrainingMessage.NO_MODEL_OF_TRANSFORMERS,
        model="tiny",
        reasons=containing(f"gpt2: {difference}"),
    )
    assert not (tmp_path / "hf").exists()


class Evil:
    """A pickle that creates a folder on the machine of whoever reads it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_folder_with_pickled_weights_is_refused_unread(exported, offline, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text((exported / "config.json").read_text())
    (theirs / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    specs.write_plan(tmp_path, specs.spec(iterations=2, copies=2))
    code, answer = offline("import", tmp_path, source=str(theirs))
    assert code == 2 and says(answer, TrainingMessage.NO_SAFETENSORS)
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [-8, 8]}}).encode()
    (theirs / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(8)
    )
    code, answer = offline("import", tmp_path, source=str(theirs))
    assert code == 2 and says(
        answer, TrainingMessage.NOT_SAFETENSORS, path=containing("model.safetensors")
    )
    assert not (tmp_path / "owned").exists() and not (tmp_path / "checkpoints").exists()


@pytest.fixture(scope="module")
def read_folder(tmp_path_factory):
    """Return a function that imports a folder with these weights and this config in this process,
    for the plan's model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core warns when it is imported
        from runbook.training.checkpoints.hugging_face import ImportedWeights

    save = pytest.importorskip("safetensors.torch")
    folder = tmp_path_factory.mktemp("read")

    def read(weights, config, model):
        save.save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config)
        )
        weights = ImportedWeights(folder, parse(specs.spec(model=model), folder).model)
        return {ours: weights.read_weight(key) for key, ours in weights._ours.items()}

    return read


def test_weights_of_another_shape_than_their_config_are_refused(exported, read_folder):
    from runbook.plan_file.errors import RefusedError

    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch")
    config = json.loads((exported / "config.json").read_text())
    good = {}
    for path in exported.glob("*.safetensors"):
        good |= save.load_file(path)
    for name, value, broken in (
        (
            "transformer.wte.weight",
            torch.zeros(100, 64),
            TrainingMessage.STORED_SHAPE.of(stored=(100, 64), shape=(250, 64)),
        ),
        (
            "transformer.h.0.attn.c_attn.weight",
            torch.zeros(64, 100),
            TrainingMessage.STORED_SHAPE.of(stored=(64, 100), shape=(64, 192)),
        ),
        (
            "transformer.ln_f.bias",
            torch.full((64,), float("nan")),
            TrainingMessage.WEIGHT_NOT_FINITE.of(),
        ),
        (
            "transformer.ln_f.bias",
            torch.ones(64, dtype=torch.int64),
            TrainingMessage.WEIGHT_NOT_FINITE.of(),
        ),
    ):
        with refuses(RefusedError, broken.message, name=name, **broken.values):
            read_folder({**good, name: value}, config, {})
    with refuses(
        RefusedError, TrainingMessage.UNPLANNED_WEIGHTS, unplanned="h.0.attn.q_norm.weight"
    ):
        read_folder({**good, "transformer.h.0.attn.q_norm.weight": torch.ones(16)}, config, {})
    with refuses(
        RefusedError, TrainingMessage.WEIGHT_MISSING, name="transformer.h.3.mlp.c_fc.weight"
    ):
        read_folder(
            {name: value for name, value in good.items() if "h.3.mlp.c_fc" not in name}, config, {}
        )
    with refuses(RefusedError, TrainingMessage.NOT_A_MAPPING, path=containing("config.json")):
        read_folder(good, "[]", {})
    with refuses(
        RefusedError, TrainingMessage.BIAS_NOT_ZERO, name=containing("h.0.attn.c_attn.bias")
    ):
        read_folder(
            good | {"transformer.h.0.attn.c_attn.bias": torch.ones(192)}, config, {"biases": False}
        )
    # Base models and older versions have no prefix, and they have masks among the weights.
    bare = {name.removeprefix("transformer."): value for name, value in good.items()}
    assert len(read_folder({**bare, "h.0.attn.bias": torch.ones(1, 1, 32, 32)}, config, {})) == len(
        good
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"model_type": "gemma"},
            TrainingMessage.MODEL_TYPE.of(model_type="gemma", reads="llama, mistral"),
        ),
        (
            {"model_type": "mistral"},
            TrainingMessage.ANOTHER_MODEL.of(wrong="sliding_window 4096 (plan: None)"),
        ),
        (
            {"rms_norm_eps": None},
            TrainingMessage.ANOTHER_MODEL.of(wrong="rms_norm_eps None (plan: 1e-05)"),
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            TrainingMessage.ANOTHER_MODEL.of(wrong="rope_theta 500000.0 (plan: 10000.0)"),
        ),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
            TrainingMessage.ROPE_TYPE.of(rotary="linear"),
        ),
        (
            {"tie_word_embeddings": True},
            TrainingMessage.ANOTHER_MODEL.of(wrong="tie_word_embeddings True (plan: False)"),
        ),
        ({"head_dim": 32}, TrainingMessage.ANOTHER_MODEL.of(wrong="head_dim 32 (plan: 16)")),
        (
            {"num_key_value_heads": None},
            TrainingMessage.ANOTHER_MODEL.of(wrong="num_key_value_heads 4 (plan: 2)"),
        ),
        (
            {"hidden_act": "gelu"},
            TrainingMessage.ANOTHER_MODEL.of(wrong="hidden_act gelu (plan: silu)"),
        ),
        (
            {"quantization_config": {"bits": 4}},
            TrainingMessage.ANOTHER_MODEL.of(wrong=containing("quantization_config")),
        ),
        (
            {"attention_bias": True},
            TrainingMessage.WEIGHT_MISSING.of(name="model.layers.0.self_attn.q_proj.bias"),
        ),
    ],
)
def test_a_config_that_computes_something_else_is_refused(
    changes, says, jobs, offline, read_folder
):
    from runbook.plan_file.errors import RefusedError

    folder = jobs("LlamaForCausalLM", offline)[1]
    config = json.loads((folder / "config.json").read_text())
    weights = {}
    for path in folder.glob("*.safetensors"):
        weights |= pytest.importorskip("safetensors.torch").load_file(path)
    assert len(read_folder(weights, config, LLAMA)) == 2 * 6 + 3
    with refuses(RefusedError, says):
        read_folder(weights, {**config, **changes}, LLAMA)


def _elsewhere(shards):
    (shards.parents[1] / "other").write_bytes((shards / "__0_0.distcp").read_bytes())
    return "../../other"


def _unknown(shards):
    (shards / "new.distcp").write_bytes((shards / "__0_0.distcp").read_bytes())
    return "new.distcp"


@pytest.mark.parametrize(
    ("change", "message", "values"),
    [
        (_elsewhere, TrainingMessage.FILE_OUTSIDE_FOLDER, {"name": "../../other"}),
        (lambda shards: str(shards / "__0_0.distcp"), TrainingMessage.FILE_OUTSIDE_FOLDER, {}),
        (_unknown, TrainingMessage.NO_CHECKSUM, {"folder": containing("new.distcp")}),
        (
            "size",
            TrainingMessage.TENSOR_DESCRIPTION,
            {"problem": containing("bytes, but the folder contains only")},
        ),
        (
            "kind",
            TrainingMessage.TENSOR_DESCRIPTION,
            {"problem": containing("something other than a tensor")},
        ),
        ("content", TrainingMessage.TENSOR_NOT_READABLE, {}),
        ("place", TrainingMessage.TENSOR_OUTSIDE_FILE, {}),
        ("nan", TrainingMessage.WEIGHT_NOT_FINITE, {}),
    ],
)
def test_a_checkpoint_that_leads_elsewhere_or_holds_a_bad_tensor_is_refused(
    job, offline, tmp_path, change, message, values
):
    """An attacker who writes a malicious checkpoint can also write matching checksums."""
    torch = pytest.importorskip("torch")
    shutil.copytree(job.folder / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(job.folder / "plan.json", tmp_path)
    checkpoint = tmp_path / "checkpoints" / "iter_0000004"
    shards = checkpoint / "torch_dist"
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    index, info = next(
        (i, one) for i, one in metadata.storage_data.items() if i.fqn.startswith("embedding.word")
    )
    described = metadata.state_dict_metadata[index.fqn]
    if callable(change):
        info.relative_path = change(shards)
    elif change == "size":
        described.size = torch.Size((2**40, 2**20))
    elif change == "kind":
        described.properties = None
    elif change == "place":
        info.offset = 10**12
    else:
        path = shards / info.relative_path
        content = bytearray(path.read_bytes())
        if change == "content":
            content[info.offset : info.offset + info.length] = bytes(info.length)
        else:
            tensor = torch.load(io.BytesIO(content[info.offset : info.offset + info.length]))
            tensor[1, 2] = float("nan")
            written = io.BytesIO()
            torch.save(tensor, written)
            content[info.offset : info.offset + info.length] = written.getvalue()
            assert written.tell() == info.length
        path.write_bytes(content)
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(checkpoint)
    code, answer = offline("sample", tmp_path, prompts=[[3]], tokens=1)
    assert code == 2 and says(answer, message, **values) and "Traceback" not in answer, answer


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_texts_are_as_likely_as_transformers_finds_them_in_any_layout(architecture, jobs, offline):
    """Score GPT-2 on one rank and on tensor 2 x pipeline 2, and Llama on tensor 2 x two replicas."""
    import torch

    job, exported = jobs(architecture, offline)
    theirs = load_theirs(exported)
    draw = numpy.random.default_rng(5)
    pairs = [
        (draw.integers(0, 250, 1 + n % 5).tolist(), draw.integers(0, 250, 1 + n).tolist())
        for n in range(24)
    ]
    likeliest_after_7 = theirs(torch.tensor([[7]])).logits[0, -1].argmax(-1)[None].tolist()
    pairs += [pairs[3], ([7], likeliest_after_7)]
    expected = []
    likeliest = []
    with torch.no_grad():
        for context, more in pairs:
            scores = (
                theirs(torch.tensor([[*context, *more]]))
                .logits[0, len(context) - 1 : -1]
                .log_softmax(-1)
            )
            expected.append(float(scores[range(len(more)), more].sum()))
            likeliest.append(scores.argmax(-1).tolist() == more)
    request = {"pairs": pairs, "weights": ["first", "trained"]}
    for world_size in (1, 4) if architecture == "GPT2LMHeadModel" else (4,):
        code, answer = offline("score", job.folder, world_size, **request)
        assert code == 0, answer
        first, trained = answer["answers"]
        assert numpy.abs(numpy.subtract([each[0] for each in trained], expected)).max() < 1e-4
        assert [each[1] for each in trained] == likeliest
        assert numpy.abs(numpy.subtract([each[0] for each in first], expected)).max() > 0.1
    if architecture == "GPT2LMHeadModel":
        code, error = offline("score", job.folder, 2)
        assert code == 2 and says(
            error, TrainingMessage.RANKS_DO_NOT_DIVIDE, world_size=2, tensor=2, pipeline=2
        )
