"""Weights to Hugging Face's GPT-2 and back, judged by `transformers`; text from a checkpoint."""

import io
import json
import os
import pickle
import shutil
import warnings
from pathlib import Path

import numpy
import pytest

from runbook.plan_file.schema import parse

from . import specs
from .test_saving import reseal

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def offline(zygote):
    """One request to runbook.training.offline, in a forked process: exit code, and answer or error."""

    def ask(command, folder, **request):
        (folder / "request.json").write_text(json.dumps({"command": command, **request}))
        for name in ("out", "err"):
            (folder / name).unlink(missing_ok=True)
        done = zygote.start(folder, None, world_size=1, patch="training.plain_gpt:offline").wait()
        return done.codes[0], json.loads(done.out) if done.codes == [0] else done.err

    return ask


@pytest.fixture(scope="module")
def job(zygote, corpus, tmp_path_factory):
    """A training cut over four ranks."""
    folder = tmp_path_factory.mktemp("cut")
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, specs.spec(tensor=2, pipeline=2, iterations=4, peak=1e-2))
    assert job.code == 0, job.err
    return job


@pytest.fixture(scope="module")
def exported(job, offline):
    code, answer = offline("export", job.folder, out=str(job.folder / "hf"))
    assert code == 0, answer
    assert answer["iteration"] == 4
    return Path(answer["out"])


@pytest.fixture(scope="module")
def theirs(exported):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2LMHeadModel

        model = GPT2LMHeadModel.from_pretrained(exported, local_files_only=True)
    return model.eval()


def test_transformers_gives_the_same_logits(job, theirs, zygote):
    import torch

    tokens = numpy.random.default_rng(3).integers(0, 250, (2, 32))
    numpy.save(job.folder / "tokens.npy", tokens)
    ours = zygote.start(job.folder, None, world_size=1, patch="training.plain_gpt:logits").wait()
    assert ours.codes == [0], ours.err
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    found = numpy.load(job.folder / "logits.npy")[..., :250]
    assert numpy.abs(expected).max() > 0.5
    assert numpy.abs(found - expected).max() < 1e-5 * numpy.abs(expected).max() + 1e-6


def test_the_likeliest_text_is_the_one_transformers_makes(job, theirs, offline):
    import torch

    code, answer = offline("sample", job.folder, ids=[3, 4, 5], tokens=8, temperature=0)
    assert code == 0, answer
    ids = [3, 4, 5]
    with torch.no_grad():
        for _ in answer["ids"]:
            ids.append(int(theirs(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answer["ids"] == ids[3:] and len(ids) == 11


def test_weights_that_come_back_are_the_same_and_train_on(job, exported, offline, zygote, corpus, tmp_path):
    (tmp_path / "data").symlink_to(corpus)
    specs.write_plan(tmp_path, specs.spec(iterations=2, copies=2))
    code, answer = offline("import", tmp_path, source=str(exported))
    assert code == 0, answer
    code, again = offline("export", tmp_path, out=str(tmp_path / "hf"))
    assert code == 0, again
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == (exported / "model.safetensors").read_bytes()
    trained = zygote.train(tmp_path, None, world_size=2)
    assert trained.code == 0, trained.err
    assert trained.metrics[0]["loss"] < job.metrics[0]["loss"] - 0.3
    assert "has checkpoints already" in offline("import", tmp_path, source=str(exported))[1]


def test_another_models_folder_is_refused_with_both_values(exported, offline, tmp_path):
    specs.write_plan(tmp_path, specs.spec(model={"layers": 2, "vocabulary": 200}))
    code, answer = offline("import", tmp_path, source=str(exported))
    assert code == 2 and "vocab_size 250 (plan: 200)" in answer and "n_layer 4 (plan: 2)" in answer


def test_a_model_that_is_not_gpt2s_kind_is_refused(job, offline, tmp_path):
    content = json.loads((job.folder / "plan.json").read_text())["phases"]["04-training"]
    content["model"] |= {"normalization": "rmsnorm", "position_embedding": "rope"}
    content["checkpoint"]["folder"] = str(job.folder / "checkpoints")
    specs.write_plan(tmp_path, content)
    code, answer = offline("export", tmp_path, out=str(tmp_path / "hf"))
    assert code == 2 and "position_embedding rope (needed: learned), normalization rmsnorm" in answer
    assert not (tmp_path / "hf").exists()


class Evil:
    """What a pickle can do to who reads it."""

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
    assert code == 2 and "has no .safetensors file; other formats may hold code and are not read" in answer
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [-8, 8]}}).encode()
    (theirs / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    code, answer = offline("import", tmp_path, source=str(theirs))
    assert code == 2 and "model.safetensors is no safetensors file, or it is cut short: " in answer
    assert not (tmp_path / "owned").exists() and not (tmp_path / "checkpoints").exists()


def test_weights_of_another_shape_than_their_config_are_refused(exported, tmp_path):
    from runbook.plan_file.errors import RefusedError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core's, at import
        from runbook.training.checkpoints import weights

    torch, save = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    (tmp_path / "config.json").write_text((exported / "config.json").read_text())
    model = parse(specs.spec(), tmp_path).model
    good = save.load_file(exported / "model.safetensors")
    for name, value, says in (
        ("transformer.wte.weight", torch.zeros(100, 64), r"is \(100, 64\), and the plan's model has \(250, 64\)"),
        ("transformer.h.0.attn.c_attn.weight", torch.zeros(64, 100), r"is \(64, 100\), .* has \(64, 192\)"),
        ("transformer.ln_f.bias", torch.full((64,), float("nan")), "holds numbers that are none"),
    ):
        save.save_file({**good, name: value}, tmp_path / "model.safetensors")
        with pytest.raises(RefusedError, match=f"{name} {says}"):
            weights.import_gpt2(tmp_path, model)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RefusedError, match=r"config\.json is no mapping"):
        weights.import_gpt2(tmp_path, model)


def _elsewhere(shards):
    (shards.parents[1] / "other").write_bytes((shards / "__0_0.distcp").read_bytes())
    return "../../other"


def _unknown(shards):
    (shards / "new.distcp").write_bytes((shards / "__0_0.distcp").read_bytes())
    return "new.distcp"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_elsewhere, "names the file '../../other', which is not in its folder"),
        (lambda shards: str(shards / "__0_0.distcp"), "which is not in its folder"),
        (_unknown, "new.distcp has no checksum in the checkpoint's metadata.json"),
        ("size", "bytes, and the folder holds"),
        ("kind", "as no tensor"),
        ("content", "holds a tensor that cannot be read"),
        ("place", "holds a tensor that cannot be read"),
        ("nan", "holds numbers that are none"),
    ],
)
def test_a_checkpoint_that_leads_elsewhere_or_holds_a_bad_tensor_is_refused(job, offline, tmp_path, change, says):
    """Whoever makes such a checkpoint can give it the right checksums."""
    torch = pytest.importorskip("torch")
    shutil.copytree(job.folder / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(job.folder / "plan.json", tmp_path)
    checkpoint = tmp_path / "checkpoints" / "iter_0000004"
    shards = checkpoint / "torch_dist"
    metadata = pickle.loads((shards / ".metadata").read_bytes())
    index, info = next((i, one) for i, one in metadata.storage_data.items() if i.fqn.startswith("embedding.word"))
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
    code, answer = offline("sample", tmp_path, ids=[3], tokens=1)
    assert code == 2 and says in answer and "Traceback" not in answer, answer
