"""A one-minute training run, submitted to the tests' Slurm cluster as a chain or with spare nodes,
and not watched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from two_nodes import BIN, Cluster, lines_of, wait_until

from runbook import params
from runbook.jobs import get_scheduler
from runbook.jobs.job_folder import JobFolder, JobStatus, latest_job_folder
from runbook.phases.job_control import job_step
from runbook.phases.job_control.job_step import JobStep
from runbook.phases.job_control.training_jobs import training_step
from runbook.phases.open_phase import open_run_phase
from runbook.phases.phase_steps import TOKENIZE
from runbook.runs.step import write_mark
from runbook.tools.drills.bench import write_project, write_tokens

PHASE = "04-training"
SITE = """\
site: nodes
title: Nodes of the tests' own Slurm
scheduler: slurm
launcher: srun
python: {python}
hardware: {{device: cpu, nodes: {nodes}, devices_per_node: 1, cores_per_node: 1}}
environment:
  network: {{GLOO_SOCKET_IFNAME: eth0}}
  python: {{PYTHONDONTWRITEBYTECODE: "1"}}
defaults:
  jobs:
    training: {{partition: main}}
"""
WORDS = (
    "site=nodes",
    "training.iterations=14",
    "training.save_interval=4",
    "training.rehearsal_waived_by=the tests",
    "jobs.training.nodes=2",
)


def write_site(root: Path, nodes: int) -> None:
    """Write the parameter files for a project that runs on the cluster."""
    write_project(root, Path(sys.executable))
    text = SITE.format(python=BIN / "python", nodes=nodes)
    (root / "params" / "sites" / "nodes.yaml").write_text(text)


class ChainedRun:
    """A run in a chain of jobs, with its files and its state in the queue."""

    def __init__(self, root: Path, cluster: Cluster, name: str, *words: str) -> None:
        self.cluster = cluster
        settings = params.load("drill", set_words=[*WORDS, *words, f"as={name}"], project=root)
        self.open_phase = open_run_phase(settings, PHASE)
        self.folder = self.open_phase.folder
        self.scheduler = get_scheduler(settings.site)
        write_tokens(self.folder / self.open_phase.phase_plan.data.train[0].prefix)
        write_mark(self.folder, TOKENIZE, 1, "the tests", [])

    def training_job(self) -> JobStep:
        """Return the training run as a step that jobs carry out."""
        return training_step(self.open_phase.training, self.open_phase.session)

    def launch(self) -> None:
        """Submit the training. After that, none of our processes needs to keep running."""
        job_step.launch(self.training_job())

    @property
    def job(self) -> JobFolder:
        """Return the folder that all jobs of the chain share."""
        folder = latest_job_folder(self.folder, PHASE)
        assert folder is not None
        return folder

    def status(self) -> JobStatus:
        """Return the job status, as a person on a login node sees it."""
        return self.scheduler.state(self.job)

    def queue_ids(self) -> list[str]:
        """Return the queue numbers of the jobs in the chain."""
        ids = self.job.chain.read_text().split()
        return [job_id.partition("-")[2] for job_id in ids]

    def rows(self) -> list[dict[str, Any]]:
        """Return every step from every attempt."""
        return lines_of(self.folder / "metrics.jsonl")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events with this name in the run."""
        return [event for event in lines_of(self.folder / "events.jsonl") if event["event"] == name]

    def losses(self) -> dict[int, float]:
        """Return the loss by iteration. If an iteration was trained twice, use the last loss."""
        return {int(row["iteration"]): row["loss"] for row in self.rows()}

    def wait_for_step(self, step: int, attempt: int) -> None:
        """Wait until this attempt has completed this step."""

        def is_there() -> bool:
            has_begun = len(self.events("attempt_began")) >= attempt
            rows = self.rows()
            return has_begun and bool(rows) and rows[-1]["iteration"] >= step

        wait_until(lambda: is_there() or self.has_ended(), f"step {step} in attempt {attempt}")
        assert is_there(), self.said()

    def has_ended(self) -> bool:
        """Return whether all jobs in the run have left the queue."""
        return not self.cluster.ask("squeue", "-h", "--user=root", "-o", "%i").strip()

    def wait_for_end(self) -> None:
        """Wait until the queue is empty."""
        wait_until(self.has_ended, f"the end of the chain\n{self.said()}")

    def said(self) -> str:
        """Return everything the jobs printed, to be shown when a test fails."""
        files = [self.job.out, self.job.err, self.job.reason, self.job.decision]
        texts = [f"--- {path}\n{path.read_text()[-4000:]}" for path in files if path.exists()]
        return "\n".join(texts)
