"""Start ranks of the trainer in fractions of a second, by forking a process that has imported everything."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from . import specs


class Zygote:
    """The process that forks; see zygote.py."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
        )  # fmt: skip
        assert json.loads(self._process.stdout.readline()) == {"ready": True}

    def ask(self, **command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()

    def start(self, folder, content, *, world_size=None, phase="04-training", patch="", extra=None):
        """Start the ranks of one job in `folder`; with `content` None plan.json is taken as it lies there."""
        folder = Path(folder)
        if content is not None:
            specs.write_plan(folder, content, phase)
            world_size = world_size or content["parallel"]["world_size"]
        port = free_port()
        pids = []
        for rank in range(world_size):
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(extra or {}),
            }  # fmt: skip
            out, err = str(folder / "out"), str(folder / "err")
            arguments = [str(folder / "plan.json"), "--phase", phase]
            pids.append(self.ask(environment=environment, arguments=arguments, out=out, err=err, patch=patch)["pid"])
        return Job(self, folder, pids)

    def train(self, folder, content, **options):
        """Run one job to its end."""
        return self.start(folder, content, **options).wait()


@dataclass
class Job:
    """Ranks that run, or have run."""

    zygote: Zygote
    folder: Path
    pids: list
    codes: list = None

    def wait(self):
        self.codes = [self.zygote.ask(wait=pid)["code"] for pid in self.pids]
        return self

    @property
    def code(self):
        """The one exit code of all ranks."""
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

    def until(self, condition, seconds=60):
        """Wait for something to be seen in the job's folder."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError(f"not seen in {seconds} s: {self.out[-1000:]}{self.err[-2000:]}")

    def has_line(self, count):
        path = self.folder / "metrics.jsonl"
        return path.exists() and path.read_text().count("\n") >= count


def free_port():
    """A port nobody listens on, below the range the kernel hands out by itself."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
