"""Steps in a phase. A step is a notebook cell, with its input values and its work.

A phase lists its steps in order. The phase notebook calls the steps, and a resumed run looks up
which of them are done.
"""

from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from typing import Any, Generic, TypeVar, TypeVarTuple

from runbook.phases.open_phase import OpenPhase
from runbook.phases.phase_steps import StepWork
from runbook.planning import Plan
from runbook.runs.planned_run import PlannedRun

Values = TypeVarTuple("Values")
Result = TypeVar("Result")


class PhaseStep(Generic[Result]):
    """A step in a phase. Its function receives only the values that it declares."""

    def __init__(
        self,
        takes: Callable[[OpenPhase], tuple[Any, ...]],
        run: Callable[..., Result],
        work: StepWork | None,
    ) -> None:
        self.takes = takes
        """Used to select the arguments for `run` from the phase that is open in the notebook."""
        self.run = run
        """Function called to perform the step, with the selected arguments.

        Tests call it without a notebook.
        """
        self.work = work
        """The inputs, outputs and done marker. None if the step has no marker and always runs."""
        # Give the step the function name and docstring, so that `phase.STEP?` in JupyterLab shows
        # them.
        update_wrapper(self, run)
        # JupyterLab then shows a signature with the open phase as argument and the result of `run`.
        del self.__dict__["__wrapped__"]
        returns = signature(run).return_annotation
        self.__signature__ = signature(self).replace(return_annotation=returns)

    def __call__(self, open_phase: OpenPhase, *arguments: Any, **options: Any) -> Result:
        """Run the step for an open phase. The cell may pass additional arguments."""
        return self.run(*self.takes(open_phase), *arguments, **options)


def step(
    takes: Callable[[OpenPhase], tuple[*Values]], work: StepWork | None = None
) -> Callable[[Callable[[*Values], Result]], PhaseStep[Result]]:
    """Return a decorator that turns a function into a step with these input values."""

    def make(run: Callable[[*Values], Result]) -> PhaseStep[Result]:
        return PhaseStep(takes, run, work)

    return make


def plan_only(open_phase: OpenPhase) -> tuple[Plan]:
    """Select the plan."""
    return (open_phase.plan,)


def run_only(open_phase: OpenPhase) -> tuple[PlannedRun]:
    """Select the parameters, the plan and the run folder."""
    return (open_phase.run,)
