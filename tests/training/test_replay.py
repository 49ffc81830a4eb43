"""Replay computes a part of a step twice: training is unchanged, and a flipped bit is found and
reported.
"""

import json
import os
import random
import socket

import pytest
from suite.messages import says

from runbook.cli.program import cli
from runbook.plan_file.replay_file import PERSISTENT, TRANSIENT, ComputedPlace
from runbook.plan_file.rules.codes import RuleCode
from runbook.training.messages import TrainingMessage

from . import specs
from .inside_flips import InsideFlip

pytestmark = pytest.mark.training

LAYOUTS = {
    "alone": {},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "replicas": {"copies": 2},
}
MORE_LAYOUTS = {
    "one micro-batch": {"global_batch": 2, "copies": 2, "tuning": {"overlap_gradients": True}},
    "one micro-batch at a time": {"global_batch": 2, "copies": 2},
    "one micro-batch at first": {
        "global_batch": 2,
        "copies": 2,
        "tuning": {"overlap_gradients": True},
        "interval": 1,
    },
    "overlapping": {
        "copies": 2,
        "tuning": {"overlap_gradients": True, "overlap_weights": True},
    },
    "interleaved": {"pipeline": 2, "virtual_pipeline": 2, "precision": "bf16"},
    "context": {
        "parallel": {"context": 2, "world_size": 2},
        "batch": {"micro": 1, "global": 3, "num_microbatches": 3},
        "duration": {"iterations": 4, "samples": 12, "tokens": 12 * 32},
    },
    "recomputed": {"tensor": 2, "recompute": "full", "parallel": {"sequence": True}},
}


def train(zygote, run, folder, *, interval, faults="", **options):
    options = {"global_batch": 4, "iterations": 4, "model": {"dropout": 0.1}, **options}
    patch = options.pop("patch", "")
    content = specs.spec(**options)
    if interval:
        content["limits"]["replay_interval"] = interval
    folder = run / folder
    folder.mkdir()
    (folder / "data").symlink_to(run / "data")
    return zygote.train(folder, content, patch=patch, extra={"RUNBOOK_FAULTS": faults})


@pytest.mark.parametrize("layout", MORE_LAYOUTS)
def test_replay_changes_no_layout(layout, zygote, run):
    options = {"interval": 2, **MORE_LAYOUTS[layout]}
    interval = options.pop("interval")
    plain = train(zygote, run, "plain", interval=0, **options)
    replayed = train(zygote, run, "replayed", interval=interval, **options)
    assert replayed.losses() == plain.losses()
    norms = [[line["grad_norm"] for line in job.metrics] for job in (plain, replayed)]
    assert norms[0] == norms[1]
    assert not replayed.events("alarm")
    lines = specs.metrics(replayed.folder, "replay.jsonl")
    steps = [step for step in (1, 2, 3, 4) if step % interval == 0]
    assert [line["iteration"] for line in lines[1:]] == steps
    hashed = [line["iteration"] for line in replayed.metrics if "hash_seconds" in line]
    assert hashed == steps


def flips(count, layout, seed):
    """Return one bit flip for each step: its place, and the text that requests it."""
    dice = random.Random(seed)
    ranks = layout.get("tensor", 1) * layout.get("pipeline", 1) * layout.get("copies", 1)
    faults = []
    for step in range(1, count + 1):
        rank = dice.randrange(ranks)
        layers = [1, 2, 3, 4]
        if layout.get("pipeline", 1) == 2:
            layers = [1, 2] if rank < ranks // 2 else [3, 4]
        fault = {
            "rank": rank,
            "step": step,
            "part": dice.choice(["forward", "backward", "gradient"]),
            "layer": dice.choice(layers),
            "number": dice.choice([0, 1]),
            "bit": dice.randrange(32),
            "element": dice.randrange(10_000),
        }
        faults.append(fault)
    text = ";".join("flip:" + ",".join(f"{k}={v}" for k, v in fault.items()) for fault in faults)
    return faults, text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_flipped_bit_is_found_with_its_rank_and_layer(layout, zygote, run):
    count = int(os.environ.get("RUNBOOK_TEST_FLIPS", "8"))
    faults, text = flips(count, LAYOUTS[layout], seed=len(layout))
    job = train(zygote, run, "flips", interval=1, faults=text, iterations=count, **LAYOUTS[layout])
    assert job.code == 0, job.err[-3000:]
    alarms = {event["iteration"]: event for event in job.events("alarm")}
    expected = {
        fault["step"]: (
            "transient corruption",
            fault["rank"],
            f"{fault['part']} of layer {fault['layer']}",
        )
        for fault in faults
    }
    reported = {
        step: (alarm["kind"], alarm["rank"], alarm["metric"]) for step, alarm in alarms.items()
    }
    assert reported == expected
    assert all(alarm["host"] for alarm in alarms.values())
    plain = train(zygote, run, "plain", interval=0, iterations=count, **LAYOUTS[layout])
    assert job.losses() == plain.losses()


@pytest.mark.parametrize("layout", ["alone", "tensor"])
def test_a_bit_flipped_inside_a_block_names_its_rank_and_layer(layout, zygote, run):
    """A single rank checks nothing inside a block, so the wrong number shows in the layer's result."""
    count = int(os.environ.get("RUNBOOK_TEST_FLIPS", "8"))
    ranks = LAYOUTS[layout].get("tensor", 1)
    job = train(
        zygote,
        run,
        "inside",
        interval=1,
        patch="training.poison:inside_flips",
        iterations=count,
        model={"dropout": 0.0},
        **LAYOUTS[layout],
    )
    assert job.code == 0, job.err[-3000:]
    reported = {
        alarm["iteration"]: (alarm["rank"], alarm["metric"].partition(" of ")[2])
        for alarm in job.events("alarm")
    }
    expected = {}
    for step in range(1, count + 1):
        flip = InsideFlip.of(step, ranks)
        expected[step] = (flip.rank, f"layer {flip.layer}")
    assert reported == expected


def flip(**where):
    return "flip:" + ",".join(f"{key}={value}" for key, value in where.items())


@pytest.mark.parametrize("layout", ["alone", "replicas"])
def test_a_rank_that_goes_on_being_wrong_is_persistent(layout, zygote, run):
    where = {"rank": 0, "step": 2, "part": "forward", "layer": 2}
    faults = [flip(**where, number=0), flip(**where, number=3, element=5)]
    options = {**LAYOUTS[layout], "iterations": 2}
    job = train(zygote, run, "wrong", interval=2, faults=";".join(faults), **options)
    assert job.code == 0, job.err[-3000:]
    (alarm,) = job.events("alarm")
    assert (alarm["kind"], alarm["rank"]) == (PERSISTENT, 0)
    assert says(
        alarm["evidence"], TrainingMessage.OTHER_NUMBERS, rank=0, num_wrong=2, num_computed=4
    )


def test_a_kernel_that_is_wrong_once_is_named_by_its_layer(zygote, run):
    job = train(
        zygote, run, "wrong", interval=1, iterations=2, patch="training.poison:wrong_attention"
    )
    (alarm,) = job.events("alarm")
    assert (alarm["kind"], alarm["metric"]) == (TRANSIENT, ComputedPlace("forward", 3, "").metric)
    assert "core_attention" in alarm["evidence"]


def test_deepspeed_is_refused_with_the_reason(zygote, run):
    job = train(zygote, run, "refused", interval=1, engine="deepspeed")
    assert job.code == 2
    assert says(job.err, RuleCode.REPLAY_WITH_DEEPSPEED.message.rule)


def test_replay_names_step_layer_and_host_of_a_rank_that_was_always_wrong(zygote, run, capsys):
    """A defect that gives the same wrong number twice is found only with another machine's numbers."""
    wrong = flip(rank=0, step=2, part="backward", layer=2, bit=20)
    checkpoint = {"interval": 4, "keep": 1}
    job = train(zygote, run, "wrong", interval=2, faults=wrong, iterations=5, checkpoint=checkpoint)
    assert job.code == 0, job.err[-3000:]
    assert not job.events("alarm"), "the second pass was wrong in the same way"
    (job.folder / "run.yaml").touch()
    before = (job.folder / "metrics.jsonl").read_text()
    arguments = ["replay", "wrong", "--runs", str(run), "--json", "--step"]
    code = cli.main([*arguments, "4"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert code == 1
    assert (answer["begin"], answer["first_step"], answer["verdict"]) == (0, 2, "hardware")
    where = answer["difference"]
    assert (where["rank"], where["part"], where["layer"]) == (0, "backward", 2)
    assert answer["host"] == socket.gethostname()
    assert (job.folder / "metrics.jsonl").read_text() == before


def test_a_step_that_is_passed_over_is_not_replayed(zygote, run):
    job = train(
        zygote,
        run,
        "rolled back",
        interval=1,
        faults="nan:step=3",
        checkpoint={"interval": 1, "keep": 2},
        limits={"nan_policy": "rollback"},
    )
    assert job.code == 0, job.err[-3000:]
    assert [line["loss"] is None for line in job.metrics] == [False, False, True, True, False]
    lines = specs.metrics(job.folder, "replay.jsonl")
    assert [line["iteration"] for line in lines[1:]] == [1, 2, 3, 4]
    assert not [alarm for alarm in job.events("alarm") if "corruption" in alarm["kind"]]
