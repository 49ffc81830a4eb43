"""Shows the gap between the expected and the reached step time, as a table and a figure."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.display import View
from runbook.log_readers.read import is_binary, open_log, parse_files
from runbook.params import Settings
from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.phases.steps import run_only, step
from runbook.phases.training_results import read_results
from runbook.plan_file.phase_names import FULL
from runbook.planning.choice import full_choice
from runbook.results.figures.run_figures import waterfall
from runbook.runs.planned_run import PlannedRun
from runbook.tools.speed.explain import Explanation, explain
from runbook.tools.speed.facts import facts_of_run, read_facts, read_words
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.similar_stories import public_index

READ_FOR_FACTS = 4 * 2**20
"""Bytes at the start of a log to search for arguments and sentences."""


@step(takes=run_only)
def show_gap(run: PlannedRun) -> View:
    """Show why a training step in the run takes longer than expected.

    Return a figure, and a table whose parts add up to the gap.
    """
    training = read_results(run.folder, run.plan, FULL)
    metrics = run.folder / training.phase_plan.log.metrics
    set_words = []
    # On a CPU, the planned step time is based on measurements, because there is no step model for
    # CPUs.
    planned_seconds = training.planned.seconds_per_iteration
    if full_choice(run.settings).on_cpu and planned_seconds:
        set_words.append(f"expected.seconds={planned_seconds:f}")
    explanation = explain_log(metrics, run.settings, set_words)
    caption = "From the expected to the reached step time."
    return View([(gap_figure(explanation), caption), explanation.as_table()])


def explain_log(path: Path, settings: Settings | None, set_words: Sequence[str]) -> Explanation:
    """Explain the gap in a training run from its log.

    The run settings supply the values that the log does not contain. Raise `DataError` if the file
    is empty or binary.
    """
    facts = facts_of_run(full_choice(settings)) if settings else {}
    with _read_twice(path) as file:
        log = parse_files([file])
        with open_log(file) as stream:
            head = stream.read(READ_FOR_FACTS)
    if not head.strip():
        raise DataError(SpeedMessage.NO_TEXT, reason=f"{path} is empty")
    if is_binary(head[:8192]):
        raise DataError(SpeedMessage.NO_TEXT, reason=f"{path} is binary data")
    text = head.decode("utf-8", "replace")
    facts |= read_facts(text, log.arguments)
    facts |= read_words(set_words)
    catalogue = read_models(settings.project if settings else project_root())
    models = {name: catalogue.get(name) for name in catalogue.names}
    return explain(text, log, facts, models, public_index())


@contextmanager
def _read_twice(path: Path) -> Iterator[Path]:
    """Yield the path of a file, or of a copy of what a pipe, such as /dev/stdin, contains."""
    is_pipe = path.exists() and not path.is_file() and not path.is_dir()
    if not is_pipe:
        yield path
        return
    with tempfile.NamedTemporaryFile() as copy, path.open("rb") as pipe:
        shutil.copyfileobj(pipe, copy)
        copy.flush()
        yield Path(copy.name)


def gap_figure(explanation: Explanation) -> Any:
    """Draw a waterfall chart from the expected to the reached step time."""
    parts = explanation.parts
    names = ["expected", *(part.name for part in parts), "reached"]
    expected = explanation.expected or 0.0
    reached = explanation.reached or 0.0
    seconds = [expected, *(part.seconds for part in parts), reached]
    starts = [0.0, *accumulate(seconds[:-2])]
    bars = [*zip(starts, seconds[:-1], strict=True), (0.0, reached)]
    labels = [f"{name}: {length:.3g} s" for name, length in zip(names, seconds, strict=True)]
    return waterfall("Why a step takes longer than expected", labels, bars, "step time (s)")
