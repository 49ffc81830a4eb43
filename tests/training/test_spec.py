"""A plan that cannot be trained is refused with all of its problems."""

import copy
import json

import pytest
from suite.messages import says

from runbook.plan_file import trainer_requirements
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import parse, read_plan

from . import specs


def refused(content, world_size=1, *, fp16=False, root=None):
    with pytest.raises(RefusedError) as caught:
        trainer_requirements.check(parse(content, root), world_size, fp16=fp16)
    return str(caught.value)


def test_a_plan_is_read_with_its_folder(tmp_path):
    plan = specs.write_plan(tmp_path, specs.spec())
    spec = read_plan(plan, "04-training")
    assert spec.batch.global_ == 8
    assert spec.path("metrics.jsonl") == tmp_path / "metrics.jsonl"
    assert str(spec.path("/scratch/data")) == "/scratch/data"
    trainer_requirements.check(spec, 1, fp16=False)


def test_the_prompt_as_text_may_stand_beside_its_ids(tmp_path):
    content = specs.spec(sampling={"prompt": "Once upon"})
    assert parse(content, tmp_path).sampling.prompt == "Once upon"


def test_all_problems_come_at_once():
    content = specs.spec()
    content["model"]["layer"] = 4
    del content["batch"]["micro"]
    content["seed"] = "1234"
    content["model"]["tied_embeddings"] = 1
    content["data"]["train"] = [{"weight": 1, "prefix": 3}]
    content["sampling"]["prompt_ids"] = {}
    content["optimizer"] = None
    message = refused(content)
    for problem in (
        "model.layer: unknown key; the known keys are layers, hidden, heads,",
        "batch.micro: missing",
        'seed: "1234" is not a whole number',
        "model.tied_embeddings: 1 is not true or false",
        "data.train[0].prefix: 3 is not text",
        "sampling.prompt_ids: {} is not a list",
        "optimizer: null is not a mapping",
    ):
        assert problem in message
    assert len(message.splitlines()) == 8


def test_true_is_no_number_and_a_whole_number_is_one():
    content = specs.spec()
    content["learning_rate"]["peak"] = 1
    assert parse(content, None).learning_rate.peak == 1.0
    content["batch"]["micro"] = True
    assert says(
        refused(content),
        PlanFileMessage.WRONG_TYPE,
        where="batch.micro",
        value="true",
        type="a whole number",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "does not exist; `runbook plan RUN` writes it"),
        ("", "is not readable as JSON"),
        ("[]", "has no phase '04-training' under 'phases' (it has: none)"),
        ('{"phases": {"03-smoke-test": {}}}', "(it has: 03-smoke-test)"),
    ],
)
def test_a_file_that_is_no_plan(text, says, tmp_path):
    plan = tmp_path / "plan.json"
    if text is not None:
        plan.write_text(text)
    with pytest.raises(RefusedError) as caught:
        read_plan(plan, "04-training")
    assert says in str(caught.value)


def changed(section, key, value, **options):
    content = specs.spec(**options)
    content[section][key] = value
    return content


@pytest.mark.parametrize(
    ("content", "world_size", "says"),
    [
        (
            changed("precision", "format", "fp8"),
            1,
            "precision.format: 'fp8' is not one of fp32, fp16, bf16",
        ),
        (specs.spec(engine="fsdp"), 1, "engine: 'fsdp' is not one of megatron-core, deepspeed"),
        (
            specs.spec(engine="deepspeed", zero_stage=2, pipeline=2),
            2,
            "parallel.zero_stage=2 with parallel.pipeline=2: ZeRO 2 and 3 partition gradients, but a pipeline accumulates",
        ),
        (
            specs.spec(engine="deepspeed", pipeline=2, virtual_pipeline=2),
            2,
            "parallel.virtual_pipeline=2 with parallel.pipeline=2 under DeepSpeed: DeepSpeed's pipeline has one",
        ),
        (
            specs.spec(engine="deepspeed", zero_stage=4),
            1,
            "parallel.zero_stage 4: ZeRO has the stages 0, 1, 2 and 3",
        ),
        (changed("model", "layers", 0), 1, "model.layers: 0 is not a positive number"),
        (changed("model", "dropout", 1.0), 1, "model.dropout: 1.0 is not at least 0 and below 1"),
        (specs.spec(peak=-1e-3), 1, "learning_rate.peak: -0.001 is not more than 0"),
        (specs.spec(peak=float("nan")), 1, "learning_rate.peak: nan is not more than 0"),
        (
            changed("learning_rate", "minimum", 1.0),
            1,
            "learning_rate.minimum: 1.0 is above the peak 0.001",
        ),
        (
            changed("optimizer", "beta1", 1.0),
            1,
            "optimizer.beta1: 1.0 is not at least 0 and below 1",
        ),
        (
            changed("optimizer", "weight_decay", float("inf")),
            1,
            "optimizer.weight_decay: inf is not 0 or more",
        ),
        (changed("limits", "exit_interval", -1), 1, "limits.exit_interval: -1 is not 0 or more"),
        (specs.spec(seed=2**32), 1, "seed: 4294967296 is not from 0 to 4294967295"),
        (
            specs.spec(model={"position_embedding": "rope", "hidden": 60}),
            1,
            "rope rotates pairs of numbers",
        ),
        (
            specs.spec(copies=2),
            1,
            "1 ranks were started, but the plan is for 2 (tensor 1 x pipeline 1 x data 2)",
        ),
        (changed("parallel", "world_size", 2), 2, "data 1 is 1 ranks, not world_size 2"),
        (
            specs.spec(pipeline=3),
            3,
            "4 layers over parallel.pipeline=3: the layers are divisible by pipeline x virtual "
            "pipeline. Choose stages",
        ),
        (
            specs.spec(virtual_pipeline=2),
            1,
            "8 micro-batches per step: interleaving needs more than one stage",
        ),
        (
            specs.spec(tensor=3),
            3,
            "4 heads over parallel.tensor=3: the attention heads are divisible by tensor. Choose a",
        ),
        (changed("model", "heads", 5), 1, "model.hidden 64 is not divisible by heads 5"),
        (
            changed("model", "kv_heads", 3),
            1,
            "3 key-value heads for 4 heads over parallel.tensor=1: the heads are divisible",
        ),
        (
            changed("model", "sequence_length", 64),
            1,
            "sequences of 64 tokens, 32 learned positions: a sequence",
        ),
        (
            changed("model", "sequence_length", 64, model={"position_embedding": "rope"}),
            1,
            "sequences of 64 tokens, 32 rope positions: a sequence",
        ),
        (
            changed("model", "vocabulary", 300),
            1,
            "model.vocabulary 300 is larger than padded_vocabulary 256",
        ),
        (
            changed("sampling", "prompt_ids", [3, 250]),
            1,
            "sampling.prompt_ids: 250 is not below the vocabulary of 250",
        ),
        (
            specs.spec(sampling={"prompt_ids": [1], "tokens": 32}),
            1,
            "exceeds the 31 positions that remain",
        ),
        (
            changed("batch", "num_microbatches", 4),
            1,
            "batch.global 8 is not micro 1 x data 1 x num_microbatches 4 = 4",
        ),
        (
            changed("duration", "samples", 50),
            1,
            "duration.samples 50 is not the 48 that 6 iterations take",
        ),
        (changed("parallel", "sequence", True), 1, "parallel.sequence=true with parallel.tensor=1"),
        (
            specs.spec(tensor=2, parallel={"sequence": True}, model={"sequence_length": 31}),
            2,
            "parallel.sequence=true with parallel.tensor=2, 31 tokens: sequence parallelism splits",
        ),
        (
            specs.spec(tensor=2, parallel={"sequence": True}, engine="deepspeed"),
            2,
            "parallel.sequence=true with training.engine=deepspeed: the gradients of norms",
        ),
        (
            changed("parallel", "zero_stage", 3),
            1,
            "parallel.zero_stage=3 with training.engine=megatron-core: Megatron's distributed optimizer partitions "
            "only optimizer states, which is stage 1. Set parallel.zero_stage to 1, or training.engine to deepspeed.",
        ),
        (
            specs.spec(engine="deepspeed", zero_stage=0, precision="fp16"),
            1,
            "without ZeRO, DeepSpeed 0.19.8 divides gradients by a loss scale that it never applied to the loss.",
        ),
        (specs.spec(precision="fp16"), 1, "precision.format fp16 needs a GPU"),
    ],
)
def test_a_plan_that_does_not_fit(content, world_size, says):
    assert says in refused(copy.deepcopy(content), world_size)


@pytest.mark.parametrize(
    ("engine", "context", "says"),
    [
        ("deepspeed", 2, "parallel.context=2 with training.engine=deepspeed"),
        ("megatron-core", 3, "is divisible by 2 x context"),
    ],
)
def test_a_sequence_is_shared_in_equal_pieces_and_not_by_deepspeed(engine, context, says):
    content = specs.spec(engine=engine)
    content["parallel"] |= {"context": context, "world_size": context}
    assert says in refused(content, context)


def test_fp16_is_taken_where_there_is_a_gpu():
    trainer_requirements.check(parse(specs.spec(precision="fp16"), None), 1, fp16=True)


def test_a_spec_is_json_and_back():
    assert json.loads(json.dumps(specs.spec())) == specs.spec()
