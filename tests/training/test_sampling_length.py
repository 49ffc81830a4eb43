"""A text is padded to one of a few lengths to score its next token, without changing the scores."""

import json
from pathlib import Path

import pytest

from . import specs

pytestmark = pytest.mark.training

LAYOUTS = {
    "megatron-core": {},
    "tensor and sequence": {"tensor": 2, "parallel": {"sequence": True}},
    "deepspeed": {"engine": "deepspeed"},
    "deepspeed pipeline": {"engine": "deepspeed", "pipeline": 2},
}


def compare_lengths():
    """Also compute the scores of each text at its own length, and record the differences."""
    from runbook.training import loop
    from runbook.training.engines import engine

    make = loop.make_engine
    padded_length = engine.sampling_length
    lengths = []

    def padded(length, positions, multiple=1):
        lengths.append(padded_length(length, positions, multiple))
        return lengths[-1]

    def own(length, positions, multiple=1):
        return length + -length % multiple

    def make_comparing(spec, *, draw):
        made = make(spec, draw=draw)
        compute = made.next_token_logits

        def compare(ids):
            engine.sampling_length = own
            expected = compute(ids)
            engine.sampling_length = padded
            scores = compute(ids)
            if scores is not None:
                line = {
                    "tokens": ids.shape[1],
                    "length": lengths[-1],
                    "shape": list(scores.shape),
                    "difference": float((scores - expected).abs().max()),
                }
                with Path("compared").open("a") as stream:
                    stream.write(json.dumps(line) + "\n")
            return scores

        made.next_token_logits = compare
        return made

    loop.make_engine = make_comparing


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_padding_leaves_the_scores_and_few_lengths_are_computed(layout, zygote, run):
    layout = dict(layout)
    parallel = layout.pop("parallel", {})
    content = specs.spec(iterations=1, sampling={"prompt_ids": [3, 4, 5], "tokens": 5}, **layout)
    content["parallel"] |= parallel
    patch = "training.test_sampling_length:compare_lengths"
    job = zygote.train(run, content, patch=patch)
    assert job.code == 0, job.err
    compared = [json.loads(line) for line in (run / "compared").read_text().splitlines()]
    assert {line["tokens"] for line in compared} >= {3, 4}
    assert {line["length"] for line in compared} == {32}
    for line in compared:
        assert line["shape"][1] == line["tokens"]
        assert line["difference"] < 1e-5
