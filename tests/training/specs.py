"""Plan dictionaries as the planner writes them, for models small enough to train in a second."""

import copy
import json
from pathlib import Path

import numpy

TINY = {
    "name": "tiny",
    "label": "tiny",
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 4,
    "ffn_hidden": 256,
    "sequence_length": 32,
    "positions": 32,
    "vocabulary": 250,
    "padded_vocabulary": 256,
    "tied_embeddings": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "activation": "gelu",
    "biases": True,
    "init_std": 0.02,
    "dropout": 0.0,
    "parameters": 0,
}


def spec(
    *,
    tensor=1,
    pipeline=1,
    virtual_pipeline=1,
    copies=1,
    zero_stage=1,
    micro=1,
    global_batch=8,
    iterations=6,
    mock=False,
    model=None,
    precision="fp32",
    peak=1e-3,
    seed=1234,
    warmup=16,
    **sections,
):
    """Return one phase of plan.json.

    Keyword arguments named after sections change some of their keys.
    """
    shape = {**TINY, **(model or {})}
    result = {
        "phase": "04-training",
        "engine": "megatron-core",
        "seed": seed,
        "device": "cpu",
        "model": shape,
        "parallel": {
            "tensor": tensor,
            "pipeline": pipeline,
            "virtual_pipeline": virtual_pipeline,
            "context": 1,
            "sequence": False,
            "data": copies,
            "world_size": tensor * pipeline * copies,
            "zero_stage": zero_stage,
        },
        "batch": {
            "micro": micro,
            "global": global_batch,
            "num_microbatches": global_batch // (micro * copies),
        },
        "duration": {
            "iterations": iterations,
            "samples": iterations * global_batch,
            "tokens": iterations * global_batch * shape["sequence_length"],
        },
        "learning_rate": {
            "peak": peak,
            "minimum": peak / 10,
            "schedule": "cosine",
            "warmup_samples": warmup,
            "decay_samples": iterations * global_batch,
        },
        "optimizer": {
            "beta1": 0.9,
            "beta2": 0.95,
            "epsilon": 1e-8,
            "weight_decay": 0.1,
            "clip_gradient": 1.0,
        },
        "precision": {
            "format": precision,
            "initial_loss_scale": 65536.0,
            "loss_scale_window": 1000,
        },
        "recompute": "none",
        "data": {
            "mock": mock,
            "train": [] if mock else [{"weight": 1.0, "prefix": "data/corpus_text_document"}],
            "validation": [],
            "test": [],
            "split": "949,50,1",
            "cache": "data/cache",
        },
        "evaluation": {"interval": 0, "iterations": 0},
        "checkpoint": {"folder": "checkpoints", "interval": 0, "keep": 2},
        "log": {
            "interval": 1,
            "metrics": "metrics.jsonl",
            "validation": "validation.jsonl",
            "samples": "samples.jsonl",
            "events": "events.jsonl",
            "tensorboard": "tensorboard",
        },
        "limits": {"exit_duration_seconds": 0, "process_group_timeout_seconds": 60},
        "sampling": {"prompt_ids": [], "tokens": 8, "end_of_document": 0},
        "fingerprint": "f" * 64,
    }
    for section, changes in sections.items():
        result[section] = (
            {**result.get(section, {}), **changes} if isinstance(changes, dict) else changes
        )
    return copy.deepcopy(result)


def write_plan(folder, content, phase="04-training"):
    """Write plan.json with one phase, and return its path."""
    plan = Path(folder) / "plan.json"
    plan.write_text(json.dumps({"schema": 1, "run": "test", "phases": {phase: content}}))
    return plan


def write_tokens(prefix, documents, dtype="<u2", code=8):
    """Write a .bin/.idx pair with these documents, byte for byte in the layout that Megatron-LM
    documents.
    """
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    arrays = [numpy.asarray(document, dtype) for document in documents]
    lengths = numpy.array([len(array) for array in arrays], "<i4")
    pointers = numpy.concatenate(
        [[0], numpy.cumsum(lengths[:-1], dtype="<i8") * numpy.dtype(dtype).itemsize]
    )
    index = b"MMIDIDX\x00\x00" + numpy.array([1], "<u8").tobytes() + bytes([code])
    index += numpy.array([len(arrays), len(arrays) + 1], "<u8").tobytes()
    index += (
        lengths.tobytes()
        + pointers.astype("<i8").tobytes()
        + numpy.arange(len(arrays) + 1, dtype="<i8").tobytes()
    )
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))


def write_corpus(prefix, documents=40, length=200, vocabulary=250, seed=7):
    """Write documents that a model can learn from: each token is likely to be followed by the next
    number.
    """
    random = numpy.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        steps = random.choice([1, 1, 1, 2, 5], length)
        texts.append(
            numpy.append(
                (random.integers(1, vocabulary) + numpy.cumsum(steps)) % (vocabulary - 1) + 1, 0
            )
        )
    write_tokens(prefix, texts)


def metrics(folder, name="metrics.jsonl"):
    """Read all lines from a jsonl file in a run folder."""
    return [json.loads(line) for line in (Path(folder) / name).read_text().splitlines()]
