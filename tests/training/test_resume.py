"""A run that stops and resumes has the same losses as an uninterrupted run, to the last digit, and
the same data order.
"""

import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from suite.messages import containing, says
from suite.ports import free_port

from runbook.plan_file.messages import PlanFileMessage
from runbook.training.checkpoints import folders
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training

SAVING = {"checkpoint": {"interval": 2}}


def content(**options):
    return specs.spec(**{"copies": 2, **SAVING, **options})


@pytest.fixture(scope="module")
def undisturbed(zygote, corpus, tmp_path_factory):
    """Train a run of 6 iterations on two replicas to its end, with checkpoints 4 and 6."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, content())
    assert job.code == 0, job.err
    return job


def back_to(job, folder, iteration):
    """Return a copy of a run folder, in its state after this iteration."""
    folder.rmdir()
    shutil.copytree(job.folder, folder, symlinks=True)
    for path in (folder / "checkpoints").glob("iter_*"):
        if int(path.name[5:]) > iteration:
            shutil.rmtree(path)
    (folder / "metrics.jsonl").unlink()
    return folder


def losses(metrics):
    return [
        (line["iteration"], line["loss"], line["grad_norm"], line["consumed_samples"])
        for line in metrics
    ]


def test_a_stop_by_signal_through_the_command_line_and_the_run_after_it(
    zygote, run, corpus, tmp_path_factory
):
    long = content(iterations=400, checkpoint={"interval": 0})
    plan = specs.write_plan(run, long)
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "runbook.training", plan],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines = iter(ranks[1].stdout.readline, "")
    assert any("iteration        3/" in line for line in lines)
    ranks[0].send_signal(signal.SIGTERM)  # one rank gets the request, and both stop
    rest = ranks[1].communicate(timeout=600)[0]
    assert [rank.wait(600) for rank in ranks] == [75, 75], rest
    ranks[0].stdout.close()

    events = specs.metrics(run, "events.jsonl")
    stopped = events[-1]
    assert stopped["event"] == "stopped" and stopped["signal"] == "SIGTERM"
    saved = [event["iteration"] for event in events if event["event"] == "saved"]
    assert saved[-1] == stopped["iteration"] == specs.metrics(run)[-1]["iteration"]

    again = zygote.start(run, None, world_size=2)
    again.until(lambda: again.has_line(stopped["iteration"] + 2))
    os.kill(again.pids[1], signal.SIGUSR1)
    assert again.wait().code == 75
    assert again.events("stopped")[-1]["signal"] == "SIGUSR1"
    metrics = again.metrics
    assert [line["iteration"] for line in metrics] == list(range(1, len(metrics) + 1))
    assert [line["segment"] for line in metrics] == sorted(line["segment"] for line in metrics)
    assert metrics[0]["segment"] == 0 and metrics[-1]["segment"] == 1

    folder = tmp_path_factory.mktemp("whole")
    (folder / "data").symlink_to(corpus)
    whole = zygote.start(folder, long)
    whole.until(lambda: whole.has_line(len(metrics)))
    os.kill(whole.pids[0], signal.SIGTERM)
    assert whole.wait().code == 75
    assert losses(whole.metrics)[: len(metrics)] == losses(metrics)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zero_stage": 0},
        {"precision": "bf16"},
        {"copies": 1, "tensor": 2, "model": {"dropout": 0.1}},
        {"copies": 1, "pipeline": 2, "model": {"activation": "swiglu", "ffn_hidden": 96}},
    ],
    ids=["dp2", "dp2 zero 0", "dp2 bf16", "tp2 dropout", "pp2 swiglu"],
)
@pytest.mark.rotate(3)
def test_resuming_repeats_the_undisturbed_run_exactly(options, zygote, tmp_path, run, undisturbed):
    whole = undisturbed if not options else zygote.train(run, content(**options))
    assert whole.code == 0, whole.err
    expected = losses(whole.metrics)[4:]
    again = zygote.train(_again(whole, tmp_path), content(**options))
    assert again.code == 0, again.err
    assert losses(again.metrics) == expected
    assert again.events("resumed")[-1]["iteration"] == 4


def _again(whole, tmp_path, name="again"):
    folder = tmp_path / name
    folder.mkdir()
    return back_to(whole, folder, 4)


@pytest.mark.parametrize(
    "layout", [{"copies": 1}, {"copies": 1, "tensor": 2}, {"copies": 1, "pipeline": 2}], ids=str
)
def test_another_layout_goes_on_with_the_same_data_and_optimizer(
    layout, zygote, tmp_path, undisturbed
):
    again = zygote.train(_again(undisturbed, tmp_path), content(**layout))
    assert again.code == 0, again.err
    for ours, theirs in zip(again.metrics, undisturbed.metrics[4:], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"engine": "deepspeed"}], ids=["megatron", "deepspeed"])
def test_fewer_replicas_go_on_with_the_same_batches_and_say_so(
    options, zygote, tmp_path, run, undisturbed
):
    whole = zygote.train(run, content(**options)) if options else undisturbed
    assert whole.code == 0, whole.err
    planned = content(limits={"fewer_replicas": [1]}, **options)
    again = zygote.train(_again(whole, tmp_path), planned, world_size=1)
    assert again.code == 0, again.err
    for ours, theirs in zip(again.metrics, whole.metrics[4:], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert (ours["global_batch"], ours["world_size"]) == (theirs["global_batch"], 1)
    (change,) = again.events("replicas_changed")
    assert (change["iteration"], change["replicas"], change["num_microbatches"]) == (4, 1, 8)
    assert says(
        again.out,
        TrainingMessage.FEWER_REPLICAS_TRAIN,
        iteration=5,
        replicas=1,
        planned_replicas=2,
        num_microbatches=8,
    )


def test_the_return_to_all_replicas_is_recorded_by_a_plan_that_allows_no_fewer_ones(
    zygote, tmp_path, undisturbed
):
    (tmp_path / "fewer").mkdir()
    (tmp_path / "back").mkdir()
    fewer = zygote.train(
        _again(undisturbed, tmp_path / "fewer"),
        content(limits={"fewer_replicas": [1]}),
        world_size=1,
    )
    assert fewer.code == 0, fewer.err
    back = zygote.train(_again(fewer, tmp_path / "back"), content())
    assert back.code == 0, back.err
    assert [change["replicas"] for change in back.events("replicas_changed")] == [1, 2]


@pytest.mark.parametrize(
    "layout",
    [{}, {"zero_stage": 0}, {"copies": 1, "tensor": 2}, {"engine": "deepspeed", "zero_stage": 3}],
    ids=["dp2", "dp2 zero 0", "tp2", "deepspeed zero 3"],
)
def test_ranks_read_each_number_once_and_hold_little_besides_their_own_state(
    layout, zygote, tmp_path, undisturbed
):
    folder = _again(undisturbed, tmp_path)
    again = zygote.train(folder, content(**layout), patch="training.counted:resumed")
    assert again.code == 0, again.err
    ranks = [json.loads((folder / f"resumed-{rank}.json").read_text()) for rank in range(2)]
    described = pickle.loads(
        (folder / "checkpoints" / "iter_0000004" / "torch_dist" / ".metadata").read_bytes()
    )
    stored = sum(
        math.prod(tensor.size) * tensor.properties.dtype.itemsize
        for name, tensor in described.state_dict_metadata.items()
        if hasattr(tensor, "size") and not ("engine" in layout and name.startswith("optimizer."))
    )
    copied = (
        1.05 if "tensor" in layout else 1.0
    )  # both ranks of a pair have the norms and some biases
    assert stored <= sum(rank["read"] for rank in ranks) <= copied * stored
    assert all(rank["read"] < 0.6 * stored for rank in ranks)
    if "engine" not in layout:  # ZeRO 3 does not partition the weights of a model this small
        assert all(rank["state"] <= rank["peak"] <= 1.3 * rank["state"] for rank in ranks), ranks


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}], ids=str)
def test_one_rank_goes_on_from_two(layout, zygote, tmp_path, run, undisturbed):
    whole = zygote.train(run, content(copies=1, **layout))
    assert whole.code == 0, whole.err
    again = zygote.train(_again(whole, tmp_path), content(copies=1))
    assert again.code == 0, again.err
    for ours, theirs in zip(again.metrics, undisturbed.metrics[4:], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


def test_a_finished_run_trains_no_more(zygote, tmp_path, undisturbed):
    folder = tmp_path / "again"
    shutil.copytree(undisturbed.folder, folder, symlinks=True)
    again = zygote.train(folder, content())
    assert again.code == 0
    assert again.metrics == undisturbed.metrics
    assert [event["event"] for event in again.events()[-3:]] == ["started", "resumed", "finished"]


def test_the_clock_stops_a_run_like_a_signal(zygote, run):
    job = zygote.train(run, content(iterations=100_000, limits={"exit_duration_seconds": 1}))
    assert job.code == 75, job.err
    assert job.events("stopped")[0]["signal"] == "exit_duration"
    assert (run / "checkpoints" / f"iter_{job.metrics[-1]['iteration']:07d}").is_dir()


def differs(key, value, planned):
    """Return the text about a value that differs between the checkpoint and the plan."""
    return PlanFileMessage.VALUE_DIFFERS.fill(key=key, value=value, whose="plan", planned=planned)


OTHER = {"peak": 2e-3, "seed": 4321, "fingerprint": "e" * 64}


def test_another_training_is_refused_before_the_first_step(zygote, tmp_path, undisturbed):
    folder = _again(undisturbed, tmp_path)
    again = zygote.train(folder, content(**OTHER))
    assert again.code == 2
    changes = [
        differs("learning_rate.minimum", 0.0001, 0.0002),
        differs("learning_rate.peak", 0.001, 0.002),
        differs("seed", 1234, 4321),
    ]
    assert says(
        again.err,
        TrainingMessage.TRAINED_WITH_OTHER_VALUES,
        folder=folder / "checkpoints" / "iter_0000004",
        changes=containing(*changes),
    )
    assert not (folder / "metrics.jsonl").exists()
    assert again.events()[-1]["event"] == "failed"


def test_another_training_goes_on_where_it_was_allowed(zygote, tmp_path, undisturbed):
    allowed = {"interval": 2, "resume_changed": True}
    again = zygote.train(_again(undisturbed, tmp_path), content(**OTHER, checkpoint=allowed))
    assert again.code == 0, again.err
    seed = differs("seed", 1234, 4321)
    assert says(again.out, TrainingMessage.GOING_ON_WITH_THE_PLAN, change=seed)
    assert again.events("resumed")[-1]["same_fingerprint"] is False


def test_a_longer_training_goes_on(zygote, tmp_path, undisturbed):
    again = zygote.train(_again(undisturbed, tmp_path), content(iterations=8, fingerprint="e" * 64))
    assert again.code == 0, again.err
    iterations = differs("duration.iterations", 6, 8)
    assert says(again.out, TrainingMessage.GOING_ON_WITH_THE_PLAN, change=iterations)
    assert [line["iteration"] for line in again.metrics] == [5, 6, 7, 8]
    assert again.events("resumed")[-1]["same_fingerprint"] is True


def test_a_training_keeps_the_padding_of_its_vocabulary_under_another_cut(
    zygote, tmp_path, undisturbed
):
    """Keep the padding in the checkpoint although the plan pads to a multiple of 128 x tensor."""
    folder = _again(undisturbed, tmp_path)
    again = zygote.train(
        folder, content(copies=1, tensor=2, model={"padded_vocabulary": 512}, fingerprint="e" * 64)
    )
    assert again.code == 0, again.err
    assert says(again.out, TrainingMessage.PADDING_KEPT, vocabulary=250, padded=256, planned=512)
    assert again.losses() == pytest.approx(
        [line["loss"] for line in undisturbed.metrics[4:]], rel=1e-5
    )
    wider = _again(undisturbed, tmp_path, "wider")
    refused = zygote.train(
        wider, content(model={"padded_vocabulary": 512, "vocabulary": 300}, fingerprint="e" * 64)
    )
    assert refused.code == 2
    assert says(
        refused.err,
        TrainingMessage.CHECKPOINT_OF_ANOTHER_MODEL,
        folder=wider / "checkpoints" / "iter_0000004",
        difference=containing(differs("padded_vocabulary", 256, 512)),
    )


def test_a_checkpoint_beyond_the_end_of_the_plan_is_refused(zygote, tmp_path, undisturbed):
    again = zygote.train(_again(undisturbed, tmp_path), content(iterations=3, fingerprint="e" * 64))
    assert again.code == 2
    assert says(
        again.err,
        TrainingMessage.NOTHING_LEFT_TO_TRAIN,
        folder=containing("iter_0000004"),
        iteration=4,
        iterations=3,
    )


def test_a_checkpoint_that_tells_only_its_fingerprint_is_refused_under_another(
    zygote, tmp_path, undisturbed
):
    folder = _again(undisturbed, tmp_path)
    path = folder / "checkpoints" / "iter_0000004" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["recipe"], metadata["seal"]
    path.write_text(json.dumps({**metadata, "seal": folders._seal(metadata)}))
    again = zygote.train(folder, content(fingerprint="e" * 64))
    assert again.code == 2
    assert says(
        again.err,
        TrainingMessage.FINGERPRINT_DIFFERS,
        fingerprint="f" * 12,
        planned_fingerprint="e" * 12,
    )
    same = zygote.train(folder, content())
    assert same.code == 0, same.err


def test_only_the_newest_checkpoints_are_kept(undisturbed):
    folder = undisturbed.folder / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [
        "iter_0000004",
        "iter_0000006",
        "latest_checkpointed_iteration.txt",
    ]
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "6\n"
