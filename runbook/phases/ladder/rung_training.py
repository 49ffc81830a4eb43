"""Trains a rung as a recorded run, in the ladder process and without notebooks.

The steps are the same as in the notebooks 02-data and 04-training, and leave the same files:
run.yaml, plan.json, the job with its output, metrics, events, checkpoint, done markers and the JSON
records. The executed notebooks are missing, and so are the results that only notebooks produce: the
record for 00, sealed forecasts and sample text. Executing the notebooks took three kernels and most
of the time needed by a small rung. `runbook run RUN --as RUNG` still produces them, without
training again.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from runbook import params
from runbook.core.errors import RunbookError
from runbook.jobs.warm_trainer import WarmTrainer
from runbook.params import Settings
from runbook.params.settings import require_values
from runbook.phases.job_control import training_jobs
from runbook.phases.ladder.climb import Say, TrainRung, rung_folder, share_tokens
from runbook.phases.ladder.ladder_plan import Ladder, PlannedRung
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import open_run_phase, with_values_given_before
from runbook.phases.p02_data import phase as data_phase
from runbook.phases.p04_training import phase as training_phase
from runbook.phases.phase_steps import TOKENIZE
from runbook.phases.runner import RunRequest, run_phases
from runbook.plan_file.phase_names import DATA, ENVIRONMENT, FULL, PLAN
from runbook.records.done_marks import read_mark
from runbook.records.session import Session
from runbook.runs import run_files

OUTPUT_FILE = "rungs.log"
"""File in the ladder folder with output from the steps of all rungs."""
PYTHON_FILE = "python"
"""File in the ladder folder that rung jobs use in place of Python to start ranks; see
`WarmTrainer.write_python`.
"""

PROMPT = "training.sample_prompt"
"""Key for the text that the model continues before and after training.

For a rung, it is empty.
"""


@contextmanager
def rung_trainer(settings: Settings, folder: Path) -> Iterator[TrainRung]:
    """Yield a function to train rungs, one after another. `folder` is the ladder folder.

    On CPUs in this machine, torch and megatron-core are imported once for all rungs.
    """
    with contextlib.ExitStack() as stack:
        trainer = RungTrainer(folder)
        if can_fork_ranks(settings):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="runbook-ladder-"))
            trainer.warm = WarmTrainer(Path(home), keeps_ranks=True)
            stack.callback(trainer.warm.close)
        yield trainer.train


def can_fork_ranks(settings: Settings) -> bool:
    """Return whether ranks on this machine can be forked from a process that has imported torch.

    An interpreter, modules and variables set by the site take effect only when a process starts,
    and a GPU context does not survive a fork. Systems other than Linux lack calls needed by the
    fork server.
    """
    if sys.platform != "linux":
        return False
    site = settings.site
    starts_plainly = not (site.python or site.modules or site.setup or site.environment)
    return (
        site.scheduler == "local"
        and site.hardware.device == "cpu"
        and starts_plainly
        and not settings.run.jobs.environment_copy
    )


@dataclass
class RungTrainer:
    """The rungs' trainer. It starts its fork server with the first rung that it trains."""

    folder: Path
    """The ladder folder."""
    warm: WarmTrainer | None = None
    """None if every rank in every rung imports torch itself."""

    def train(self, ladder: Ladder, planned: PlannedRung, say: Say) -> None:
        """Train a rung, or continue it. Raise `RunbookError` if that fails."""
        request = request_of(ladder, planned, say)
        settings = _settings_of(request, say)
        if settings.site.scheduler != "local" and planned == ladder.rungs[0]:
            # Nodes behind a queue may lack software that this machine has, so their environment is
            # checked first. On this machine, the rung itself would fail just as quickly.
            outcome, folder = run_phases(request, say)
            if outcome.exit_code:
                raise _stopped(folder, ENVIRONMENT, outcome.message)

        rung_path = rung_folder(ladder, settings, planned)
        share_tokens(settings, ladder, rung_path)
        with (
            (self.folder / OUTPUT_FILE).open("a", encoding="utf-8") as log,
            redirect_stdout(RungOutput(log, say)),
        ):
            self._train(settings, rung_path)

    def _train(self, settings: Settings, rung_path: Path) -> None:
        """Make the token files, unless another rung already has, and train."""
        if not has_token_files(rung_path):
            _make_tokens(settings)
        opened = open_run_phase(settings, FULL)
        with _recorded(opened.session):
            # This only finds files from another rung, and marks them as belonging to this rung.
            data_phase.tokenize(opened)
            training_phase.check_ready(opened)
            job = training_jobs.training_step(
                opened.training, opened.session, python=self._python()
            )
            training_phase.launch.run(job)
            training_phase.watch.run(opened.training, job)
            training_phase.judge(opened)
            training_phase.finish(opened)

    def _python(self) -> str:
        """Return the Python used to start ranks; empty means the one from the site."""
        if self.warm is None:
            return ""
        if not self.warm.pid:
            self.warm.start()
        path = self.folder.absolute() / PYTHON_FILE
        self.warm.write_python(path)
        return str(path)


def request_of(ladder: Ladder, planned: PlannedRung, say: Say) -> RunRequest:
    """Return the request to `runbook run` that checks the environment for a rung.

    A rung started by an earlier version has the prompt from the run, and keeps it.
    """
    set_words = (*ladder.set_words, *planned.rung.words())
    request = RunRequest(ladder.run, set_words, planned.name, PLAN, ENVIRONMENT)
    settings = _settings_of(request, say)
    changes = run_files.changed_values(rung_folder(ladder, settings, planned), settings)
    if all(key != PROMPT for key, _, _ in changes):
        return request
    return replace(request, set_words=tuple(word for word in set_words if word != f"{PROMPT}="))


def _settings_of(request: RunRequest, say: Say) -> Settings:
    """Return the values for a rung, including those that the user set for its folder."""
    load = partial(params.load, request.run, set_words=request.words())
    settings = with_values_given_before(load, say)
    require_values(settings)
    return settings


def has_token_files(rung_path: Path) -> bool:
    """Return whether a rung has token files, made by itself or linked from another run."""
    if read_mark(rung_path, TOKENIZE) is not None:
        return True
    data = rung_path / "data"
    return data.is_dir() and any(data.iterdir())


def _make_tokens(settings: Settings) -> None:
    """Fetch, check and tokenize the text and write the record, as 02-data does."""
    opened = open_run_phase(settings, DATA)
    with _recorded(opened.session):
        data_phase.fetch(opened)
        data_phase.show_source(opened)
        data_phase.tokenize(opened)
        data_phase.verify(opened)
        data_phase.finish(opened)


@contextmanager
def _recorded(session: Session) -> Iterator[None]:
    """If a phase stops, write the reason into its record, and raise an error that names the phase."""
    try:
        yield
    except RunbookError as error:
        session.fail(error)
        raise _stopped(session.run_folder, session.phase, str(error)) from error


def _stopped(folder: Path, phase: str, message: str) -> RunbookError:
    return RunbookError(
        PhaseMessage.RUNG_STOPPED,
        folder_name=folder.name,
        to_phase=phase,
        message=message,
    )


class RungOutput(io.TextIOBase):
    """Writes output from rung steps to a file, and reports progress lines from training."""

    def __init__(self, log: TextIO, say: Say) -> None:
        self._log = log
        self._outside = sys.stdout
        self._say = say
        self._line = ""

    def write(self, text: str) -> int:
        """Add text to the file, and report each progress line that it completes."""
        self._log.write(text)
        self._log.flush()
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.startswith(FULL) and "%" in line:
                with redirect_stdout(self._outside):
                    self._say(line)
        return len(text)
