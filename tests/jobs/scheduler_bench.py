"""A run folder in which jobs run a few lines of Python instead of the trainer."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from runbook.core import processes
from runbook.jobs import job_folder
from runbook.jobs.job_folder import JobFolder, JobStatus
from runbook.jobs.local import LocalScheduler
from runbook.jobs.render.training_job import render_job, write_job
from runbook.params import Settings
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.run_file import Job, Jobs, Run
from runbook.params.schema.site import Hardware, Site

SLEEP = "time.sleep(300)"
SAVE_ON_TERM = """
def save(*_):
    open(f'saved-{rank}', 'a').write('saved\\n')
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(300)
"""
CLOCK_THAT_JUMPS = (
    'eval "machine_$(declare -f read_clock)"; '
    "read_clock() { machine_read_clock; "
    "if [[ -e hour-is-over ]]; then now=$((now + 3600)); fi; }"
)
"""A set-up command that sets the clock in the script forward by an hour once the file
`hour-is-over` exists.
"""
WAIT_FOR_GO = "while not os.path.exists('go'): time.sleep(0.02)"
"""A rank waits until the test calls `Bench.let_ranks_go`."""
IGNORE_TERM = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
)


class Bench:
    """A run folder in which jobs run a few lines of Python instead of the trainer."""

    def __init__(self, run_folder: Path, program: Path) -> None:
        self.run_folder = run_folder
        self.program = program
        self.scheduler = LocalScheduler()
        self.folders: list[JobFolder] = []

    def watch(self, folder: JobFolder) -> Iterator[JobStatus]:
        """Yield the job status repeatedly until it has ended. The last one is final."""
        while True:
            status = self.scheduler.state(folder)
            yield status
            if status.final:
                return
            time.sleep(0.1)

    def site(self, lines: str, setup: list[str]) -> Site:
        return Site(
            site="local",
            title="This machine",
            scheduler="local",
            hardware=Hardware(device="cpu", devices_per_node=2),
            environment={"test": {"LINES_TO_RUN": lines}},
            setup=setup,
        )

    def write(
        self, lines: str, *, ranks: int = 2, name: str = "04-training", walltime: int = 0, setup=()
    ) -> JobFolder:
        """Write a job in which ranks run `lines`, which can use os, signal, sys, time and rank."""
        job = Job(walltime=walltime)
        model = Model(label="tiny", layers=4, hidden=128, heads=4, source="test")
        settings = Settings(
            run=Run(run="bench", model="tiny", jobs=Jobs(smoke=job, training=job)),
            site=self.site(lines, list(setup)),
            model=model,
            smoke_model=model,
            smoke_model_name="tiny",
            dataset=Dataset(title="Corpus", kind="corpus", licence="CC0", source="test"),
            origins={},
            project=Path("/project"),
        )
        spec = SimpleNamespace(  # what the job reads from a plan
            phase="04-training",
            parallel=SimpleNamespace(world_size=ranks),
            limits=SimpleNamespace(process_group_timeout_seconds=600),
            deepspeed=None,
        )
        plan = SimpleNamespace(phases={"04-training": spec})
        folder = JobFolder(self.run_folder / "jobs" / name)
        write_job(folder, render_job(settings, plan, "04-training", python=str(self.program)))
        self.folders.append(folder)
        return folder

    def submit(self, lines: str, **others) -> JobFolder:
        """Write and submit a job. If its ranks report that they are ready, wait for that."""
        folder = self.write(lines, **others)
        self.scheduler.submit(folder)
        if "ready" in lines:
            ranks = others.get("ranks", 2)
            assert processes.wait_until(lambda: folder.out.read_text().count("ready") == ranks, 60)
        return folder

    def let_ranks_go(self) -> None:
        """Let ranks that run WAIT_FOR_GO continue."""
        (self.run_folder / "go").touch()

    def wait(self, folder: JobFolder, seconds: float = 300):
        """Wait for a job to end, and return its final status."""
        assert processes.wait_until(lambda: self.scheduler.state(folder).final, seconds), (
            folder.err.read_text()
        )
        return self.scheduler.state(folder)

    def pids(self, folder: JobFolder) -> list[int]:
        """Return the running processes of a job."""
        return [
            process.pid for process in processes.process_tree(self.scheduler.state(folder).job_id)
        ]

    def script_pid(self, folder: JobFolder) -> int:
        """Return the process that runs job.sh."""
        return job_folder.read_started(folder).identity.pid

    def close(self) -> list[int]:
        """End all jobs, and return the processes that were left."""
        left = []
        for folder in self.folders:
            for path in (folder.started, folder.record):
                if path.exists():
                    job_id = self.scheduler.state(folder).job_id
                    left += [process.pid for process in processes.process_tree(job_id)]
                    processes.kill_until_none(lambda job_id=job_id: processes.process_tree(job_id))
                    break
        return left
