"""Kills ranks, nodes, node daemons and job scripts of a chain with a spare node at random (`make
kills`, opt-in).

    python tests/slurm/random_kills.py --kills 20 --seed 1 --nodes 4

It prints each kill with the machine load, the seconds from the last step before each restart to the
first step after it, split into parts, and how many restarts began from copies in node memory. All
losses are compared with those from an undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from chained_run import ChainedRun, write_site
from two_nodes import Cluster, wait_until

from runbook.jobs.job_folder import read_started
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.tools.drills.faults import VARIABLE as FAULTS

STEPS_BETWEEN_KILLS = (2, 6)
STEPS_FOR_A_KILL = 60
"""Training continues without the daemon on a node until Slurm misses it."""
MOST_SECONDS = 300.0
SLOWEST_STEP = 3.0
"""Seconds per step in the undisturbed run, on a busy machine."""


class Killer:
    """A disturbed run, and its kills."""

    def __init__(self, run: ChainedRun, nodes: int, seed: int) -> None:
        self.run = run
        self.cluster = run.cluster
        self.nodes = nodes
        self.draw = random.Random(seed)
        self.count = 0

    def current_job(self) -> str:
        """Return the number of the running job."""
        started = read_started(self.run.job)
        assert started is not None
        return started.job_id.partition("-")[2]

    def training_nodes(self) -> list[str]:
        """Return the nodes in the newest attempt, except the first in the allocation: losing that
        one ends the job.
        """
        return [node for node in self.run.job.hostfile.read_text().split() if node != "node1"]

    def kill_step(self) -> Callable[[], None]:
        """Kill all ranks in the newest step."""
        job = self.current_job()
        steps = self.cluster.ask("squeue", "-h", "-s", "-j", job, "-o", "%i").split()
        numbers = [step for step in steps if step.rpartition(".")[2].isdigit()]
        self.cluster.ask("scancel", "--signal=KILL", numbers[-1])
        return lambda: None

    def kill_script(self) -> Callable[[], None]:
        """Kill the job script. The next job of the chain continues."""
        self.cluster.ask("scancel", "--batch", "--signal=KILL", self.current_job())
        return lambda: None

    def crash_node(self) -> Callable[[], None]:
        """Cut the power to a node that trains. The node comes back."""
        node = self.draw.choice(self.training_nodes())
        self.cluster.do("crash", node)
        return lambda: self.cluster.do("boot", node)

    def kill_daemon(self) -> Callable[[], None]:
        """Kill the daemon on a node that trains.

        Its ranks continue training until Slurm misses the daemon.
        """
        node = self.draw.choice(self.training_nodes())
        self.cluster.do("slurmd-kill", node)
        return lambda: self.cluster.do("slurmd-start", node)

    def wait_for_steps(self) -> None:
        """Let the run complete some steps."""
        enough = len(self.run.rows()) + self.draw.randint(*STEPS_BETWEEN_KILLS)
        wait_until(lambda: len(self.run.rows()) >= enough or self.run.events("finished"), "steps")

    def kill(self) -> None:
        """Kill something, and wait for the first new step of another attempt."""
        kinds = [self.kill_step, self.kill_script, self.crash_node, self.kill_daemon]
        action = self.draw.choices(kinds, weights=[4, 2, 2, 2])[0]
        self.put_back_drained_nodes()
        attempts = len(self.run.events("attempt_began"))
        reached = self.run.rows()[-1]["iteration"]
        began = time.monotonic()
        mend = action()
        self.count += 1
        wait_until(
            lambda: self.was_noticed(attempts), f"{action.__name__} is noticed", MOST_SECONDS
        )
        mend()
        wait_until(lambda: self.has_gone_on(attempts), f"{action.__name__}", MOST_SECONDS)
        seconds = time.monotonic() - began
        print(
            f"{self.count}: {action.__name__} at step {reached}, over after {seconds:.0f} s, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    def put_back_drained_nodes(self) -> None:
        """Resume drained nodes, as an administrator does: Slurm drains a node where a step did not
        end.
        """
        for node in self.cluster.ask("sinfo", "-h", "-N", "-t", "drain", "-o", "%n").split():
            print(f"{node} was drained by Slurm and is put back", flush=True)
            self.cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")

    def was_noticed(self, attempts: int) -> bool:
        """Return whether an attempt has begun after these, or the job has ended."""
        has_begun = len(self.run.events("attempt_began")) > attempts
        return has_begun or self.run.job.exit_code.exists() or bool(self.run.events("finished"))

    def has_gone_on(self, attempts: int) -> bool:
        """Return whether an attempt after these has completed a step, or the run is done."""
        events = self.run.events("attempt_began")
        if self.run.events("finished"):
            return True
        if len(events) <= attempts:
            return False
        rows = self.run.rows()
        return bool(rows) and rows[-1]["time"] > events[-1]["time"]


def main() -> int:
    """Return 0 if every loss equals the one in the undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument(
        "--near", type=int, default=2, help="steps between copies in node memory; 0: none"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runbook-kills-") as folder:
        root = Path(folder)
        cluster = Cluster(root / "slurm", nodes=asked.nodes)
        try:
            cluster.do("start")
            return disturb(root, cluster, asked)
        finally:
            cluster.do("stop")


def disturb(root: Path, cluster: Cluster, asked: argparse.Namespace) -> int:
    """Train once with kills and once undisturbed for as many steps, and compare."""
    for name in ("PATH", "SLURM_CONF", "CLUSTER_DIR"):
        os.environ[name] = cluster.environment[name]
    os.environ[RUNS_VARIABLE] = str(root / "runs")
    write_site(root, asked.nodes)
    training_nodes = asked.nodes - 1
    iterations = STEPS_FOR_A_KILL * asked.kills
    words = (
        f"training.iterations={iterations}",
        f"training.global_batch={2 * training_nodes}",
        f"training.smoke.global_batch={2 * training_nodes}",
        f"jobs.training.nodes={training_nodes}",
    )
    unattended = [f"jobs.training.chain={asked.kills + 1}", "jobs.training.spares=1"]
    if asked.near:
        unattended.append(f"training.near_interval={asked.near}")
        # All nodes are on this machine, so each one gets a separate memory folder.
        unattended.append(f"training.near_folder={root}/memory/$SLURMD_NODENAME")
    run = ChainedRun(root, cluster, "disturbed", *words, *unattended)
    os.environ[FAULTS] = "slow:seconds=0.25"
    run.launch()
    killer = Killer(run, asked.nodes, asked.seed)
    run.wait_for_step(2, attempt=1)
    complaint = kill_again_and_again(killer, asked.kills)
    end_training(run)
    os.environ.pop(FAULTS)
    calm = ChainedRun(root, cluster, "calm", *words)
    calm.launch()
    last = max(run.losses())
    enough = MOST_SECONDS + last * SLOWEST_STEP
    wait_until(
        lambda: calm.rows() and calm.rows()[-1]["iteration"] >= last, "the same steps", enough
    )
    end_training(calm)
    code = report(run, calm)
    if complaint:
        print(f"ended early after {killer.count} kills: {complaint}")
        return 1

    return code


def kill_again_and_again(killer: Killer, kills: int) -> str:
    """Kill something this many times. Return what prevented the run from continuing, or an empty
    string.
    """
    try:
        for _ in range(kills):
            if killer.run.events("finished"):
                break
            killer.wait_for_steps()
            killer.kill()
        killer.wait_for_steps()
    except AssertionError as error:
        return str(error)

    return ""


def end_training(run: ChainedRun) -> None:
    """End a run and its chain."""
    run.scheduler.cancel(run.job)
    wait_until(run.has_ended, "an empty queue", 300)


def report(run: ChainedRun, calm: ChainedRun) -> int:
    """Print the measurements. Return 0 if the losses are equal."""
    for place, seconds in restart_seconds(run).items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(
            f"{place}: {len(seconds)} restarts, median {middle:.1f} s, longest {max(seconds):.1f} s"
        )
    print_parts(restart_parts(run))
    sources = Counter(event["source"].partition(" (")[0] for event in run.events("resumed"))
    print("began from: " + ", ".join(f"{count} {source}" for source, count in sources.items()))
    undisturbed = calm.losses()
    losses = run.losses()
    is_equal = all(loss == undisturbed[step] for step, loss in losses.items())
    print(f"{len(losses)} steps, losses bit-equal: {is_equal}")
    return 0 if is_equal else 1


def restart_seconds(run: ChainedRun) -> dict[str, list[float]]:
    """Return the seconds from the last step before each restart to the first step after it, by
    place.
    """
    moments = [row["time"] for row in run.rows()]
    seconds: dict[str, list[float]] = {}
    for before, after in pairwise(run.events("attempt_began")):
        earlier = [moment for moment in moments if moment < after["time"]]
        later = [moment for moment in moments if moment > after["time"]]
        if earlier and later:
            place = "in the allocation" if before["id"] == after["id"] else "in the next job"
            seconds.setdefault(place, []).append(min(later) - max(earlier))
    return seconds


PARTS = ("to the next attempt", "to all ranks' state", "to the first step")
"""The three parts of a restart: to detect the failure, decide and query the nodes; to start,
import, rendezvous and load; to take a step.
"""


def restart_parts(run: ChainedRun) -> list[tuple[float, float, float]]:
    """Return how many seconds each part took, for each restart in the allocation."""
    moments = [row["time"] for row in run.rows()]
    starts = [event["time"] for event in run.events("started")]
    parts = []
    for before, after in pairwise(run.events("attempt_began")):
        began = after["time"]
        last_step = max((moment for moment in moments if moment < began), default=None)
        started = min((moment for moment in starts if moment > began), default=None)
        if before["id"] != after["id"] or last_step is None or started is None:
            continue
        first_step = min((moment for moment in moments if moment > started), default=started)
        parts.append((began - last_step, started - began, first_step - started))
    return parts


def print_parts(parts: list[tuple[float, float, float]]) -> None:
    """Print the median and the maximum of each part."""
    for name, seconds in zip(PARTS, zip(*parts, strict=True), strict=False):
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"  {name}: median {middle:.1f} s, longest {max(seconds):.1f} s")


if __name__ == "__main__":
    sys.exit(main())
