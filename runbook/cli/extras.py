"""Packages that an extra installs, and the remedy if one is missing."""

from runbook.cli.messages import CliMessage

EXTRAS = {
    "jupyter": "IPython ipykernel jupyter_client jupyter_core jupyterlab latex2mathml matplotlib "
    "nbclient nbconvert nbformat pandas papermill",
    "data": "backports fastokens msgspec numpy pyarrow requests sentencepiece tokenizers",
    "train": "tensorboard",
    "forecast": "scipy",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "evaluation": "lm_eval",
}
"""Packages imported only when needed, by the extra used to install them.

No command imports torch.
"""

ALL = ("jupyter", "data", "train", "forecast")
"""Packages in the extra `all`: everything that `runbook run` needs."""


def which_extra(error: ModuleNotFoundError) -> str:
    """Return the remedy for a missing package that an extra installs.

    If no extra installs the package, its absence is our own bug, and `error` is raised again.
    """
    package = (error.name or "").partition(".")[0]
    extra = _extra_of(package)
    if not extra:
        raise error
    if extra in ALL:
        remedy = CliMessage.ANY_EXTRA.fill(extra=extra)
    else:
        remedy = CliMessage.ONE_EXTRA.fill(extra=extra)

    return CliMessage.PACKAGE_MISSING.fill(package=package, remedy=remedy)


def _extra_of(package: str) -> str:
    """Return the extra that installs a package, or '' if none does."""
    for extra, packages in EXTRAS.items():
        if package in packages.split():
            return extra

    return ""
