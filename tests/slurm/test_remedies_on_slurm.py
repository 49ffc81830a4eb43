"""Remedies that need a queue: each failure is caused, recognized, and ended by following its
remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from two_nodes import Cluster, wait_until

from runbook.results.failures import kinds
from runbook.results.failures.finder import find_cause, find_failures

pytestmark = pytest.mark.slurm


SCRIPT = """\
#!/bin/bash
n=1
while [[ ! -e end ]]; do
  if [[ -e command.$n ]]; then
    bash command.$n </dev/null >said.$n 2>&1
    echo $? >code.part && mv code.part code.$n
    n=$((n + 1))
  fi
  sleep 0.1
done
"""


class Allocation:
    """Two nodes in the queue, and a job that runs the given commands."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        self.num_commands = 0
        script = folder / "job.sh"
        script.write_text(SCRIPT)
        words = ("--nodes=2", "--partition=main", "--no-kill", f"--chdir={folder}")
        cluster.ask("sbatch", "--parsable", *words, str(script))

    def run(self, command: str) -> tuple[int, str]:
        """Run a command on the first node, and return its exit code and output."""
        self.num_commands += 1
        number = self.num_commands
        part = self.folder / "command.part"
        part.write_text(f"{command}\n")
        part.rename(self.folder / f"command.{number}")
        code = self.folder / f"code.{number}"
        wait_until(code.exists, command, 200)
        return int(code.read_text()), (self.folder / f"said.{number}").read_text()


@pytest.fixture
def allocation(cluster: Cluster, tmp_path: Path) -> Iterator[Allocation]:
    cluster.wait_idle()
    yield Allocation(cluster, tmp_path)
    (tmp_path / "end").touch()
    cluster.wait_idle()


def cause_of(text: str) -> str:
    cause = find_cause(find_failures(text.splitlines()))
    assert cause is not None, text
    return cause.name


def test_node_out_of_reach_a_node_that_has_come_back_starts_the_ranks(
    allocation: Allocation, cluster: Cluster
):
    start = "srun --nodes=2 --ntasks=2 hostname"
    assert allocation.run(start)[0] == 0
    cluster.do("slurmd-kill", "node2")
    code, said = allocation.run(start)
    assert code != 0
    assert cause_of(said) == kinds.UNREACHED.name
    cluster.do("slurmd-start", "node2")
    wait_until(lambda: allocation.run(start)[0] == 0, "the ranks' start", 120)


def test_launcher_needs_ssh_srun_starts_ranks_where_no_node_answers_it(allocation: Allocation):
    code, said = allocation.run("ssh -o BatchMode=yes -o ConnectTimeout=10 node2 hostname")
    assert code != 0
    assert cause_of(said) == kinds.SSH.name
    code, _ = allocation.run("srun --nodes=1 --nodelist=node2 hostname")
    assert code == 0
