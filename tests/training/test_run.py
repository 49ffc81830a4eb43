"""What a run writes and prints: metrics, validation, samples, events, TensorBoard, refusals."""

import json
import math
import re
import shutil

import numpy
import pytest
from suite.messages import containing, count_of, says

from runbook.plan_file.messages import PlanFileMessage
from runbook.training import training_log
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training

FIELDS = {
    "iteration",
    "consumed_samples",
    "consumed_tokens",
    "loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    "seconds",
    "tokens_per_second",
    "tflops_per_device",
    "tflops_convention",
    "global_batch",
    "world_size",
    "skipped",
    "nan",
    "segment",
    "data_wait_seconds",
    "memory_bytes",
    "time",
    "forward_backward_seconds",
    "communication_seconds",
    "optimizer_seconds",
    "mfu",
    "mfu_measured",
}
FULL = {
    "evaluation": {"interval": 2, "iterations": 2},
    "sampling": {"prompt_ids": [3, 4, 5], "tokens": 6},
    "checkpoint": {"interval": 5},
}


@pytest.fixture(scope="module")
def job(zygote, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    (folder / "data").symlink_to(corpus)
    job = zygote.train(folder, specs.spec(copies=2, **FULL))
    assert job.code == 0, job.err
    return job


def test_a_good_run_says_nothing_on_stderr(job):
    assert job.err == ""


def test_metrics_have_a_line_for_each_iteration(job):
    assert [line["iteration"] for line in job.metrics] == [1, 2, 3, 4, 5, 6]
    for line in job.metrics:
        assert set(line) == FIELDS
        assert line["consumed_samples"] == line["iteration"] * 8
        assert line["consumed_tokens"] == line["iteration"] * 8 * 32
        assert line["tokens_per_second"] == pytest.approx(8 * 32 / line["seconds"])
        assert (line["world_size"], line["global_batch"], line["tflops_convention"]) == (
            2,
            8,
            "megatron-full",
        )
        assert line["memory_bytes"] > 10**8 and 0 <= line["data_wait_seconds"] < line["seconds"]
    assert job.metrics[1]["learning_rate"] == pytest.approx(1e-3)


LINE = re.compile(
    r" \[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\] iteration +(?P<iteration>\d+)/ +(?P<iterations>\d+) \|"
    r" consumed samples: +(?P<samples>\d+) \| elapsed time per iteration \(ms\): (?P<ms>[0-9.]+) \|"
    r" throughput per GPU \(TFLOP/s/GPU\): (?P<tflops>[0-9.]+) \| learning rate: (?P<rate>[0-9.E+-]+) \|"
    r" global batch size: +(?P<batch>\d+) \| lm loss: (?P<loss>[0-9.E+-]+) \| loss scale: (?P<scale>[0-9.]+) \|"
    r" grad norm: (?P<norm>[0-9.]+) \| number of skipped iterations: +0 \| number of nan iterations: +0 \|"
)


def test_the_log_has_megatron_lms_lines_with_the_same_numbers(job):
    lines = [match for match in map(LINE.fullmatch, job.out.splitlines()) if match]
    assert [int(line["iteration"]) for line in lines] == [1, 2, 3, 4, 5, 6]
    for line, metrics in zip(lines, job.metrics, strict=True):
        assert float(line["loss"]) == pytest.approx(metrics["loss"], rel=1e-6)
        assert float(line["norm"]) == pytest.approx(metrics["grad_norm"], abs=1e-3)
        assert float(line["ms"]) == pytest.approx(metrics["seconds"] * 1000, abs=0.1)


def test_a_longer_log_interval_averages(zygote, run, job):
    again = zygote.train(run, specs.spec(copies=2, log={"interval": 3}))
    assert again.code == 0
    lines = [match for match in map(LINE.fullmatch, again.out.splitlines()) if match]
    assert [int(line["iteration"]) for line in lines] == [3, 6]
    mean = sum(line["loss"] for line in job.metrics[:3]) / 3
    assert float(lines[0]["loss"]) == pytest.approx(mean, rel=1e-6)
    assert len(again.metrics) == 6


def test_validation_is_measured_at_each_interval_and_at_the_end(job):
    lines = specs.metrics(job.folder, "validation.jsonl")
    assert [line["iteration"] for line in lines] == [2, 4, 6]
    assert lines[-1]["loss"] < lines[0]["loss"] < math.log(256)
    assert all(line["perplexity"] == pytest.approx(math.exp(line["loss"])) for line in lines)
    assert all(line["samples"] == 16 for line in lines)
    assert training_log.validation_lines(6, lines[-1]["loss"]) in job.out


def test_validation_and_samples_are_the_same_on_every_layout(zygote, job, tmp_path_factory, corpus):
    layouts = (
        {},
        {"tensor": 2},
        {"pipeline": 2, "copies": 2},
        {"pipeline": 2, "virtual_pipeline": 2},
    )
    for layout in layouts:
        folder = tmp_path_factory.mktemp("layout")
        (folder / "data").symlink_to(corpus)
        other = zygote.train(folder, specs.spec(**layout, **FULL))
        assert other.code == 0, other.err
        ours, theirs = (specs.metrics(one.folder, "validation.jsonl") for one in (other, job))
        assert [line["loss"] for line in ours] == pytest.approx(
            [line["loss"] for line in theirs], rel=1e-5
        )
        first, _ = specs.metrics(folder, "samples.jsonl")
        assert other.events("started")[0]["parameters"] == 218_496
        assert first["ids"] == specs.metrics(job.folder, "samples.jsonl")[0]["ids"]


def test_the_prompt_is_continued_before_and_after(job):
    before, after = specs.metrics(job.folder, "samples.jsonl")
    assert (before["iteration"], after["iteration"]) == (0, 6)
    for sample in (before, after):
        assert sample["prompt_ids"] == [3, 4, 5]
        assert 1 <= len(sample["ids"]) <= 6 and all(0 <= token < 250 for token in sample["ids"])
    assert before["ids"] != after["ids"]


def test_events_tell_the_story(job):
    events = job.events()
    assert [event["event"] for event in events] == ["started", "saved", "saved", "finished"]
    assert all(event["phase"] == "04-training" and event["time"] > 1e9 for event in events)
    assert events[0] | {"time": 0} == {
        "time": 0,
        "event": "started",
        "phase": "04-training",
        "world_size": 2,
        "segment": 0,
        "from_iteration": 0,
        "parameters": 218_496,
    }
    saved = events[1]
    assert (
        saved["folder"] == "checkpoints/iter_0000005"
        and saved["bytes"] > 10**6
        and saved["seconds"] > 0
    )
    assert events[-1]["iteration"] == 6


def test_a_checkpoint_says_what_it_is(job):
    folder = job.folder / "checkpoints" / "iter_0000006"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (
        metadata["iteration"] == 6
        and metadata["consumed_samples"] == 48
        and metadata["segment"] == 0
    )
    assert metadata["fingerprint"] == "f" * 64
    assert metadata["model"]["hidden"] == 64 and metadata["parallel"]["data"] == 2
    assert set(metadata["files"]) == {
        f"torch_dist/{name}"
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt", "metadata.json")
    }
    config = json.loads((folder / "torch_dist" / "metadata.json").read_text())
    assert config["sharded_backend"] == "torch_dist"


def test_the_copies_share_the_writing_of_a_checkpoint(job):
    sizes = [
        path.stat().st_size
        for path in (job.folder / "checkpoints" / "iter_0000006").rglob("*.distcp")
    ]
    assert max(sizes) < 1.2 * min(sizes)


def test_tensorboard_has_the_losses(job):
    files = list((job.folder / "tensorboard").iterdir())
    assert len(files) == 1 and b"validation_loss" in files[0].read_bytes()


def test_other_numbers_of_an_engine_are_written_for_each_step_and_drawn(zygote, run):
    content = specs.spec(iterations=3)
    job = zygote.train(run, content, patch="training.poison:more_numbers")
    norms = [line["gradient_norm_of_first"] for line in job.metrics]
    assert len(norms) == 3 and len(set(norms)) == 3
    for norm, line in zip(norms, job.metrics, strict=True):
        assert 0 < norm <= line["grad_norm"], "a part of the whole norm"
        assert line["loss"] > 0, "no number takes the place of another"
    (file,) = (job.folder / "tensorboard").iterdir()
    assert b"gradient_norm_of_first" in file.read_bytes()


def test_without_tensorboard_training_goes_on_and_says_so_once(zygote, run):
    job = zygote.train(run, specs.spec(iterations=2), patch="training.killing:without_tensorboard")
    assert job.code == 0
    assert count_of(job.out, TrainingMessage.NO_TENSORBOARD) == 1


def test_mock_data_trains_without_any_file(zygote, tmp_path):
    job = zygote.train(tmp_path, specs.spec(mock=True, evaluation={"interval": 3, "iterations": 1}))
    assert job.code == 0, job.err
    assert job.metrics[-1]["loss"] < job.metrics[0]["loss"]


def test_weighted_and_held_out_files_are_blended(zygote, run):
    """Divide a text's weight among its files in proportion to their tokens (30 and 10
    documents)."""
    specs.write_corpus(run / "data" / "other", documents=30, seed=8)
    specs.write_corpus(run / "data" / "small", documents=10, seed=9)
    data = {
        "train": [
            {"weight": 0.7, "prefix": "data/corpus_text_document"},
            {"weight": 0.15, "prefix": "data/other", "text": "articles"},
            {"weight": 0.15, "prefix": "data/small", "text": "articles"},
        ],
        "validation": [{"weight": 1.0, "prefix": "data/other"}],
    }
    content = specs.spec(copies=2, data=data, evaluation={"interval": 3, "iterations": 1})
    job = zygote.train(run, content)
    assert job.code == 0, job.err
    assert len(specs.metrics(run, "validation.jsonl")) == 2
    of_training = max(
        (run / "data" / "cache").glob("*-dataset_index.npy"), key=lambda path: path.stat().st_size
    )
    taken = numpy.load(of_training)[:48]
    assert list(numpy.bincount(taken)) == [
        pytest.approx(share * 48, abs=1) for share in (0.7, 0.225, 0.075)
    ]
    again = zygote.train(
        run, content | {"checkpoint": content["checkpoint"] | {"folder": "elsewhere"}}
    )
    assert [line["loss"] for line in again.metrics[:6]] == [
        line["loss"] for line in again.metrics[6:]
    ]


def test_an_unfinished_index_cache_is_built_again(zygote, run):
    content = specs.spec(copies=2)
    assert zygote.train(run, content).code == 0
    torn = next((run / "data" / "cache").glob("*shuffle_index.npy"))
    torn.write_bytes(torn.read_bytes()[:-20])
    again = zygote.train(
        run, content | {"checkpoint": content["checkpoint"] | {"folder": "elsewhere"}}
    )
    assert again.code == 0, again.err
    assert [line["loss"] for line in again.metrics[:6]] == [
        line["loss"] for line in again.metrics[6:]
    ]


def test_text_that_was_made_anew_is_not_read_in_the_old_order(zygote, tmp_path):
    """Write new text to the same path, by which megatron-core's cache identifies a token file."""
    prefix = tmp_path / "data" / "corpus_text_document"
    content = specs.spec(iterations=1)
    specs.write_corpus(prefix, documents=60)
    assert zygote.train(tmp_path, content).code == 0
    shutil.rmtree(tmp_path / "checkpoints")
    specs.write_corpus(prefix, documents=12, seed=9)
    again = zygote.train(tmp_path, content)
    assert again.code == 0, again.err
    shutil.rmtree(tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "data" / "cache")
    assert zygote.train(tmp_path, content).losses()[2] == again.metrics[1]["loss"]


def test_recomputing_activations_changes_nothing(zygote, run, job):
    for number, recompute in enumerate(("full", "selective")):
        content = specs.spec(copies=2, recompute=recompute, checkpoint={"folder": f"c{number}"})
        content["log"]["metrics"] = f"{recompute}.jsonl"
        assert zygote.train(run, content, patch="training.poison:count_attention").code == 0
        # 6 steps x 4 micro-batches x 4 layers, and once more in the backward pass
        assert (run / "attention_calls").read_text() == str(2 * 6 * 4 * 4)
        losses = [line["loss"] for line in specs.metrics(run, f"{recompute}.jsonl")]
        assert losses == pytest.approx([line["loss"] for line in job.metrics], rel=1e-6)


def test_a_refusal_comes_before_the_first_step_and_once(zygote, run):
    specs.write_tokens(run / "data" / "wrong", [[1] * 500, [7, 251] * 300] * 20)
    job = zygote.train(
        run, specs.spec(copies=2, data={"train": [{"weight": 1.0, "prefix": "data/wrong"}]})
    )
    assert job.code == 2
    values = {"prefix": run / "data" / "wrong", "token": 251, "vocabulary": 250, "highest": 249}
    assert count_of(job.err, TrainingMessage.TOKEN_OUTSIDE_VOCABULARY, **values) == 1
    assert [event["event"] for event in job.events()] == ["failed"]
    assert sorted(path.name for path in run.iterdir()) == [
        "data",
        "err",
        "events.jsonl",
        "out",
        "plan.json",
    ]


@pytest.mark.parametrize("kind", ["file", "nowhere"])
def test_a_checkpoint_folder_that_cannot_be_written_is_refused(kind, zygote, run):
    folder = run / "checkpoints"
    folder.write_text("") if kind == "file" else folder.symlink_to("/nowhere/at/all")
    job = zygote.train(run, specs.spec(iterations=2))
    assert job.code == 2 and says(
        job.err,
        TrainingMessage.CHECKPOINT_FOLDER,
        folder=folder,
        parent=folder,
        why=containing("is not a folder"),
    )
    assert not (run / "metrics.jsonl").exists()


def test_a_plan_for_another_world_is_refused(zygote, run):
    job = zygote.train(run, specs.spec(copies=2), world_size=3)
    assert job.code == 2
    values = {"world_size": 3, "ranks": 2, "tensor": 1, "pipeline": 1, "data": 2}
    assert count_of(job.err, PlanFileMessage.RANKS_STARTED, **values) == 1


def test_segments_are_counted_from_where_the_training_was_begun_anew(zygote, run):
    earlier = [
        {"event": "started", "phase": "04-training"},
        {"event": "started", "phase": "04-training"},
        {"event": "begun", "phase": "04-training"},
        {"event": "started", "phase": "04-training"},
        {"event": "begun", "phase": "03-smoke-test"},
        {"event": "started", "phase": "03-smoke-test"},
    ]
    (run / "events.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in earlier) + '{"event": "star'
    )
    job = zygote.train(run, specs.spec(iterations=1))
    assert job.code == 0, job.err
    assert [line["segment"] for line in job.metrics] == [1]
    assert (run / "events.jsonl").read_text().splitlines()[6] == '{"event": "star'


def test_no_plan_and_no_such_phase(zygote, tmp_path):
    assert zygote.train(tmp_path, None, world_size=1).code == 2
    specs.write_plan(tmp_path, specs.spec())
    job = zygote.train(tmp_path, None, world_size=1, phase="03-smoke-test")
    assert job.code == 2
    assert says(
        job.err,
        PlanFileMessage.PLAN_WITHOUT_PHASE,
        plan=tmp_path / "plan.json",
        phase="03-smoke-test",
        phase_names="04-training",
    )
