"""The package's former name, kept for notebooks that were copied from an older version."""


def __getattr__(name: str) -> object:
    """Say how an older copy of a notebook is replaced."""
    raise ImportError(
        f"runbook.workflow.{name} has moved to runbook.phases, and this notebook is a copy of an "
        "older version. Run `runbook lab RUN --fresh`, which copies the notebooks again and "
        "moves your copies to lab/before-TIME."
    )
