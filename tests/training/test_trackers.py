"""Trackers receive each number exactly once during training, without delaying it.

The libraries are stand-ins of a few lines. The real libraries were run by hand (docs/trackers.md).
"""

import fcntl
import json
import os
import time
from threading import Event

import pytest
from suite.messages import has_rule, says

from runbook.core.errors import ParamsError
from runbook.core.processes import wait_until
from runbook.params.messages import ParamsMessage
from runbook.plan_file import schema
from runbook.plan_file.schema import TRACKERS
from runbook.training.messages import TrainingMessage
from runbook.training.trackers import tracker_processes
from runbook.training.trackers.follower import Follower, point_of, read_lines
from runbook.training.trackers.services import SERVICES, TrackedPoint, settings_of

from . import specs

WANDB = '''
"""Keeps what it is given in a file."""
import json, os
def Settings(**_): pass
class Run:
    def __init__(self, words): self.words = words
    def define_metric(self, *_, **__): pass
    def log(self, values): keep(values)
    def finish(self): keep({"finished": self.words["id"]})
def keep(words):
    with open(os.environ["KEPT"], "a") as stream: stream.write(json.dumps(words) + "\\n")
def init(**words):
    words.pop("settings")
    keep({"init": words})
    return Run(words)
'''
HANGS = """
import os, time
def init(**_):
    open(os.path.join(os.path.dirname(os.environ["TRACKIO_DIR"]), "..", "hangs"), "w").close()
    time.sleep(600)
"""
MISSING = "raise ImportError('No module named mlflow')"


class Recorder:
    """A tracker in memory that fails a given number of times."""

    def __init__(self, failures=0):
        self.failures = failures
        self.opened = []
        self.points = []

    def open(self, run):
        self.opened.append(run)
        return run or "r1"

    def log(self, points):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no answer")
        self.points += points

    def close(self):
        """Do nothing, because this tracker has nothing to close."""


def follow(folder, service):
    """Run one job, which sends what is in the files now."""
    ended = Event()
    ended.set()
    return Follower(schema.parse(specs.spec(), folder), "wandb", lambda: service, ended).run()


def write_steps(folder, *iterations):
    with (folder / "metrics.jsonl").open("a") as stream:
        for iteration in iterations:
            stream.write(json.dumps({"iteration": iteration, "time": 5.0, "loss": 1.5}) + "\n")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trackers").mkdir()
    return tmp_path


def test_each_line_is_sent_once_over_two_jobs_and_another_training_begins_anew(folder):
    write_steps(folder, 1, 2)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"iteration": 3, "ti')  # killed while it was writing
    first, second, third = Recorder(), Recorder(), Recorder()
    assert follow(folder, first) == 0
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write("\n")
    write_steps(folder, 3)
    (folder / "validation.jsonl").write_text('{"iteration": 3, "time": 6.0, "loss": 2.5}\n')
    assert follow(folder, second) == 0
    assert [point.iteration for point in first.points] == [1, 2]
    assert second.points == [
        TrackedPoint(3, 5.0, {"loss": 1.5}),
        TrackedPoint(3, 6.0, {"validation_loss": 2.5}),
    ]
    assert (first.opened, second.opened) == ([""], ["r1"])
    (folder / "metrics.jsonl").write_text("")
    write_steps(folder, 10, 11, 12, 13)
    assert follow(folder, third) == 0
    assert third.opened == [""] and len(third.points) == 5  # validation.jsonl still exists


def test_a_tracker_that_fails_once_gets_the_same_lines_again(folder, monkeypatch):
    monkeypatch.setattr("runbook.training.trackers.follower.LOOK_SECONDS", 0.0)
    write_steps(folder, 1, 2)
    service = Recorder(failures=2)
    ended = Event()
    keep = service.log

    def log(points):
        keep(points)
        ended.set()

    service.log = log
    assert Follower(schema.parse(specs.spec(), folder), "wandb", lambda: service, ended).run() == 0
    assert [point.iteration for point in service.points] == [1, 2]


def test_a_tracker_that_fails_at_the_end_is_tried_again(folder, monkeypatch):
    monkeypatch.setattr("runbook.training.trackers.follower.LOOK_SECONDS", 0.0)
    write_steps(folder, 1, 2)
    service = Recorder(failures=3)
    assert follow(folder, service) == 0
    assert [point.iteration for point in service.points] == [1, 2]


def test_what_a_tracker_never_took_is_said(folder, monkeypatch, caplog):
    monkeypatch.setattr("runbook.training.trackers.follower.LAST_TRIES_SECONDS", 0.0)
    write_steps(folder, 1, 2)
    size = (folder / "metrics.jsonl").stat().st_size
    assert follow(folder, Recorder(failures=1)) == 1
    assert says(
        caplog.text,
        TrainingMessage.TRACKER_NEVER_TOOK,
        unsent=size,
        size=size,
        file="metrics.jsonl",
    )


def test_a_service_is_made_under_the_lock(folder):
    def make_service():
        with (folder / "trackers" / "wandb.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Recorder()

    ended = Event()
    ended.set()
    spec = schema.parse(specs.spec(), folder)
    assert Follower(spec, "wandb", make_service, ended).run() == 0


def test_lines_are_read_whole_and_only_finite_numbers_are_sent(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n{"iter')
    assert read_lines(path, 0) == [b'{"iteration": 1}\n'] and read_lines(path, 17) == []
    line = b'{"iteration": 4, "time": 2.0, "loss": null, "mfu": 0.5, "host": "n1"}\n'
    assert point_of(line, "metrics") == TrackedPoint(4, 2.0, {"mfu": 0.5})
    assert point_of(b"torn\n", "metrics") is None


def test_what_is_told_of_a_training_has_no_path_of_it():
    values = settings_of(schema.parse(specs.spec()))
    assert values["model.layers"] == 4 and values["seed"] == 1234
    assert not [value for value in values.values() if "/" in str(value)]


def test_a_run_file_names_trackers_and_neither_addresses_nor_unknown_ones():
    from runbook.params import load

    assert sorted(SERVICES) == sorted(TRACKERS)
    assert load("local", set_words=["training.trackers=mlflow, wandb"]).run.training.trackers
    for words in ("neptune", "mlflow:https://ada:secret@example.org"):
        with pytest.raises(ParamsError) as caught:
            load("local", set_words=[f"training.trackers={words}"])
        values = {"name": words, "trackers": ", ".join(TRACKERS)}
        problems = caught.value.problems
        assert {problem.key for problem in problems} == {"training.trackers"}
        assert any(has_rule(problem, ParamsMessage.NO_TRACKER, **values) for problem in problems)


def wait_until_sent(run, name):
    """Wait for a follower that still has its lock: on a busy machine, it ends after training."""
    with (run / "trackers" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def add_package(folder, name, text):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)


def test_the_end_of_a_training_waits_for_a_hanging_tracker_a_moment_only(folder, monkeypatch):
    add_package(folder / "packages", "trackio", HANGS)
    monkeypatch.setenv("PYTHONPATH", str(folder / "packages"))
    monkeypatch.setattr(tracker_processes, "CLOSE_SECONDS", 0.2)
    specs.write_plan(folder, specs.spec(log={"trackers": ["trackio"]}), "04-training")
    write_steps(folder, 1)
    said = []
    trackers = tracker_processes.TrackerProcesses(said.append)
    trackers.start(schema.read_plan(folder / "plan.json", "04-training"))
    (process,) = trackers._running.values()
    while not (folder / "hangs").exists():
        trackers.check()
        assert len(said) == 1
        time.sleep(0.05)
    trackers.close()
    assert said == [
        TrainingMessage.TRACKER_FOLLOWS.fill(tracker="trackio", log="trackers/trackio.log"),
        TrainingMessage.TRACKER_STILL_SENDS.fill(tracker="trackio"),
    ]
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.training
def test_a_training_feeds_one_tracker_and_goes_on_without_a_missing_one(zygote, run):
    packages = run / "packages"
    add_package(packages, "wandb", WANDB)
    add_package(packages, "mlflow", MISSING)
    extra = {
        "PYTHONPATH": f"{packages}:{os.environ.get('PYTHONPATH', '')}",
        "KEPT": str(run / "kept"),
        "HOME": str(run),
    }
    log = {"trackers": ["wandb", "mlflow"]}
    job = zygote.train(run, specs.spec(iterations=8, log=log), extra=extra)
    assert job.code == 0, job.err
    wait_until_sent(run, "wandb")
    begun, *steps, finished = [json.loads(line) for line in (run / "kept").read_text().splitlines()]
    assert begun["init"]["mode"] == "offline" and begun["init"]["project"] == "gpt3-runbook"
    sent = [step["loss"] for step in steps if "loss" in step]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert sent == [json.loads(line)["loss"] for line in lines] and len(sent) == 8
    assert finished == {"finished": begun["init"]["id"]}
    # On a busy machine, it ends after training.
    endings = ("mlflow ended with exit code 1.", "mlflow is still sending its last numbers.")
    assert any(f"training.trackers: {ending}" in job.out for ending in endings), job.out
    remedy = "pip install 'gpt3-runbook[mlflow]'"
    log_of_tracker = run / "trackers/mlflow.log"
    assert wait_until(lambda: remedy in log_of_tracker.read_text(), 120)
