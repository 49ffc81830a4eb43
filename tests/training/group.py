"""Starts trainer ranks in fractions of a second by forking a process with everything imported."""

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from suite.ports import free_port

from runbook.jobs.fork_server import RankRequest
from runbook.jobs.warm_trainer import WarmTrainer

from . import specs

PATCH = "RUNBOOK_TEST_PATCH"
"""Environment variable that names the function that a rank calls first."""


class Zygote:
    """The drills' warm trainer, with DeepSpeed imported as well. patched.py says what its ranks
    run.
    """

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="runbook-warm-")
        self._warm = WarmTrainer(Path(self._folder.name))
        self._warm.start("training.patched", cwd=Path(__file__).parents[1])

    def close(self):
        self._warm.close()
        self._folder.cleanup()

    def start(
        self,
        folder,
        content,
        *,
        world_size=None,
        phase="04-training",
        patch="",
        extra=None,
        arguments=(),
    ):
        """Start the ranks of one job in `folder`.

        If `content` is None, the plan.json in it is used.
        """
        folder = Path(folder)
        if content is not None:
            specs.write_plan(folder, content, phase)
            world_size = world_size or content["parallel"]["world_size"]
        words = [str(folder / "plan.json"), "--phase", phase, *arguments]
        shared = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
        }
        shared |= {"MASTER_PORT": str(free_port()), PATCH: patch, **(extra or {})}
        with (folder / "out").open("ab") as out, (folder / "err").open("ab") as err:
            ranks = []
            for rank in range(world_size):
                environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}
                request = RankRequest("training.patched:main", words, environment, str(folder))
                ranks.append(
                    Rank(request.send(str(self._warm.socket_path), [out.fileno(), err.fileno()]))
                )
        return Job(folder, ranks)

    def train(self, folder, content, **options):
        """Run one job to completion."""
        return self.start(folder, content, **options).wait()


class Rank:
    """A forked rank, which is killed when its connection closes."""

    def __init__(self, connection):
        with connection:
            self._answers = connection.makefile("r")
        self.pid = json.loads(self._answers.readline())["pid"]

    def wait(self):
        with self._answers:
            return json.loads(self._answers.readline())["code"]


@dataclass
class Job:
    """Ranks that are running or have ended."""

    folder: Path
    ranks: list
    codes: list = None

    @property
    def pids(self):
        return [rank.pid for rank in self.ranks]

    def wait(self):
        self.codes = [rank.wait() for rank in self.ranks]
        return self

    @property
    def code(self):
        """Return the exit code that all ranks share."""
        assert len(set(self.codes)) == 1, f"{self.codes}\n{self.err[-3000:]}"
        return self.codes[0]

    @property
    def out(self):
        return (self.folder / "out").read_text()

    @property
    def err(self):
        return (self.folder / "err").read_text()

    @property
    def metrics(self):
        return specs.metrics(self.folder)

    def losses(self):
        assert self.code == 0, self.err[-3000:]
        return [line["loss"] for line in self.metrics]

    def events(self, *names):
        events = specs.metrics(self.folder, "events.jsonl")
        return [event for event in events if not names or event["event"] in names]

    def until(self, condition, seconds=300):
        """Wait until something appears in the job folder."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError(f"not seen in {seconds} s: {self.out[-1000:]}{self.err[-2000:]}")

    def has_line(self, count):
        path = self.folder / "metrics.jsonl"
        return path.exists() and path.read_text().count("\n") >= count
