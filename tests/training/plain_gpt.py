"""A GPT in plain PyTorch, written from the papers and used to check a step of the engine."""

import json
import math
import os
import sys
from pathlib import Path

import numpy


def compare():
    """Run in a forked rank: write comparison.json and exit (see patched.py)."""
    import torch

    from runbook.plan_file.schema import read_plan
    from runbook.training import cpu, process_groups
    from runbook.training.batch_reader import BatchReader
    from runbook.training.datasets import make_datasets
    from runbook.training.engines.engine import StepClock
    from runbook.training.loop import make_engine
    from runbook.training.ranks import ranks_from
    from runbook.training.sample_order import DataParallelShare

    plan = Path(sys.argv[1])
    spec = read_plan(plan, "04-training")
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from(os.environ), 60)
    process_groups.make_parallel_groups(spec)
    engine = make_engine(spec)
    train = make_datasets(spec, {}).train
    reader = BatchReader(spec, DataParallelShare(spec.batch.micro, 1, 0), StepClock())
    batches = list(reader.step(train, 0, spec.batch.num_microbatches))

    weights = {
        name: weight.detach().clone() for name, weight in engine.models[0].named_parameters()
    }
    tokens = torch.cat([batch["tokens"] for batch in batches])
    labels = torch.cat([batch["labels"] for batch in batches])
    ours, gradients, stepped = plain_step(weights, tokens, labels, spec)

    loss = engine.compute(iter(batches), spec.batch.num_microbatches) / spec.batch.num_microbatches
    parameters = dict(engine.models[0].named_parameters())
    found = {name: weight.main_grad.clone() for name, weight in parameters.items()}
    engine.update(spec.learning_rate.peak)
    result = {"loss": [loss, ours], "gradients": {}, "key_bias": 0.0, "weights": {}}
    for name, weight in parameters.items():
        gap = (found[name] - gradients[name]).norm() / gradients[name].norm()
        if name.endswith("linear_qkv.bias"):
            gap, key = without_key(found[name], gradients[name], spec)
            result["key_bias"] = max(result["key_bias"], key)
        result["gradients"][name] = float(gap)
        result["weights"][name] = float((weight.detach() - stepped[name]).abs().max())
    (plan.parent / "comparison.json").write_text(json.dumps(result))
    return 0


def without_key(found, expected, spec):
    """The key bias adds the same value to all scores for a query, so its gradient is zero and has
    no relative error.

    With rotary positions, the bias is rotated by position, and its gradient is like any other.
    """
    if spec.model.shape.position_embedding == "rope":
        return (found - expected).norm() / expected.norm(), 0.0
    each = spec.model.shape.heads // spec.model.shape.kv_heads
    size = spec.model.shape.hidden // spec.model.shape.heads
    shape = (spec.model.shape.kv_heads, each + 2, size)
    found = found.view(shape)
    expected = expected.view(shape)
    rest = [*range(each), each + 1]
    gap = (found[:, rest] - expected[:, rest]).norm() / expected[:, rest].norm()
    return gap, float(found[:, each].abs().max())


def plain_step(weights, tokens, labels, spec):
    """Return the loss, the gradients, and the weights after one AdamW step of the plain model with
    these weights.
    """
    import torch

    parameters = {name: torch.nn.Parameter(weight.clone()) for name, weight in weights.items()}
    logits = plain_forward(parameters, tokens, spec.model.shape)[..., : spec.model.shape.vocabulary]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in parameters.items()}
    torch.nn.utils.clip_grad_norm_(parameters.values(), spec.optimizer.clip_gradient)
    decayed = [weight for weight in parameters.values() if weight.ndim > 1]
    others = [weight for weight in parameters.values() if weight.ndim == 1]
    torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": spec.optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=spec.learning_rate.peak,
        betas=(spec.optimizer.beta1, spec.optimizer.beta2),
        eps=spec.optimizer.epsilon,
    ).step()
    return float(loss), gradients, {name: weight.detach() for name, weight in parameters.items()}


def plain_forward(weights, tokens, model):
    """Return the logits of a GPT with pre-norm blocks, learned or rotary positions, LayerNorm or
    RMSNorm, and GELU or SwiGLU.
    """
    import torch

    def norm(x, name):
        if model.normalization == "rmsnorm":
            return (
                x
                / torch.sqrt((x**2).mean(-1, keepdim=True) + model.norm_epsilon)
                * weights[f"{name}.weight"]
            )
        mean = x.mean(-1, keepdim=True)
        spread = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(spread + model.norm_epsilon) * weights[
            f"{name}.weight"
        ] + weights[f"{name}.bias"]

    def linear(x, name):
        product = x @ weights[f"{name}.weight"].T
        return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product

    def turned(x):
        """Return each pair (i, i + size/2) rotated by its position times a frequency (RoFormer)."""
        half = size // 2
        angle = torch.arange(length)[:, None] / model.rope_base ** (torch.arange(half) / half)
        first = x[..., :half]
        second = x[..., half:]
        return torch.cat(
            [
                first * angle.cos() - second * angle.sin(),
                second * angle.cos() + first * angle.sin(),
            ],
            dim=-1,
        )

    batch, length = tokens.shape
    size = model.hidden // model.heads
    each = model.heads // model.kv_heads
    hidden_future = torch.ones(length, length).triu(1).bool()
    x = weights["embedding.word_embeddings.weight"][tokens]
    if model.position_embedding == "learned":
        x = x + weights["embedding.position_embeddings.weight"][:length]
    for number in range(model.layers):
        layer = f"decoder.layers.{number}"
        mixed = linear(norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attention.linear_qkv")
        mixed = mixed.view(batch, length, model.kv_heads, each + 2, size).permute(0, 2, 3, 1, 4)
        query = mixed[:, :, :each].reshape(batch, model.heads, length, size)
        key, value = (mixed[:, :, each + part].repeat_interleave(each, 1) for part in (0, 1))
        if model.position_embedding == "rope":
            query = turned(query)
            key = turned(key)
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(size)
        attended = scores.masked_fill(hidden_future, float("-inf")).softmax(-1) @ value
        attended = attended.transpose(1, 2).reshape(batch, length, model.hidden)
        x = x + linear(attended, f"{layer}.self_attention.linear_proj")
        inner = linear(norm(x, f"{layer}.pre_mlp_layernorm"), f"{layer}.mlp.linear_fc1")
        if model.activation == "swiglu":
            gate, up = inner.chunk(2, -1)
            curved = gate / (1 + torch.exp(-gate)) * up
        else:
            curved = (
                0.5
                * inner
                * (1 + torch.tanh(math.sqrt(2 / numpy.pi) * (inner + 0.044715 * inner**3)))
            )
        x = x + linear(curved, f"{layer}.mlp.linear_fc2")
    head = "embedding.word_embeddings" if model.tied_embeddings else "output_layer"
    return norm(x, "decoder.final_layernorm") @ weights[f"{head}.weight"].T


def logits():
    """Run in a forked rank: write logits.npy, computed by the newest checkpoint for the tokens in
    tokens.npy.
    """
    import torch

    from runbook.plan_file.schema import read_plan
    from runbook.training import cpu, offline, process_groups
    from runbook.training.checkpoints import weights
    from runbook.training.engines import gpt_model
    from runbook.training.ranks import ranks_from

    plan = Path(sys.argv[1])
    spec = offline.on_ranks(read_plan(plan, "04-training"))
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from(os.environ), 60)
    process_groups.make_parallel_groups(spec)
    (gpt,) = gpt_model.build_model(spec, draw=True)
    whole = weights.newest_weights(spec)
    whole.fill(gpt, masters=False)
    gpt.eval()
    tokens = torch.from_numpy(numpy.load(plan.parent / "tokens.npy"))
    positions = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    with torch.no_grad():
        numpy.save(plan.parent / "logits.npy", gpt(tokens, positions, None).float().numpy())
    return 0


def offline():
    """Run in a forked rank: answer request.json like `python -m runbook.training.offline` answers
    standard input.
    """
    import io

    from runbook.training import offline as program

    plan = Path(sys.argv[1])
    request = json.loads((plan.parent / "request.json").read_text())
    sys.argv = ["offline", request.pop("command"), str(plan)]
    sys.stdin = io.StringIO(json.dumps(request))
    return program.main()


def batches():
    """Run in a forked rank: write batches.npy with the tokens and labels of every step that one
    process would train.
    """
    import torch

    from runbook.plan_file.schema import read_plan
    from runbook.training import cpu, process_groups
    from runbook.training.batch_reader import BatchReader
    from runbook.training.datasets import make_datasets
    from runbook.training.engines.engine import StepClock
    from runbook.training.ranks import ranks_from
    from runbook.training.sample_order import DataParallelShare

    plan = Path(sys.argv[1])
    spec = read_plan(plan, "04-training")
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from(os.environ), 60)
    process_groups.make_parallel_groups(spec)
    train = make_datasets(spec, {}).train
    share = DataParallelShare(spec.batch.micro, 1, 0)
    reader = BatchReader(spec, share, StepClock())
    steps = []
    for step in range(spec.duration.iterations):
        step_batches = list(
            reader.step(train, step * spec.batch.global_, spec.batch.num_microbatches)
        )
        steps.append(
            [
                torch.cat([batch[key] for batch in step_batches]).numpy()
                for key in ("tokens", "labels")
            ]
        )
    numpy.save(plan.parent / "batches.npy", numpy.array(steps))
    return 0
