"""Differences between the rendered training jobs and their documents, listed in params/differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from runbook.core.errors import ParamsError
from runbook.params.schema.value_types import Strict
from runbook.params.yaml12 import read_file

DEPARTURE_KINDS = ("directives", "step", "starter", "arguments", "environment", "deepspeed")
"""Kinds of differences, in this order: options for the queue, for srun or mpiexec, for torchrun or
deepspeed, for the program, its variables, its DeepSpeed file.
"""

EVERY_DOCUMENT = "every-document"
"""Name for the list that applies to all five documents."""

ValuePair = tuple[str | None, str | None]
"""The value in a document and our value. None means that there is no value."""


class Departure(Strict):
    """Settings that differ from the document and share one reason."""

    why: str
    """The reason, as a sentence."""

    variants: list[str] = []
    """Variants that have these differences ("" is the run itself). If empty, all variants do."""

    variants_without: list[str] = []
    """Variants that do not have these differences."""

    directives: Mapping[str, ValuePair] | list[str] = []
    step: Mapping[str, ValuePair] | list[str] = []
    starter: Mapping[str, ValuePair] | list[str] = []
    arguments: Mapping[str, ValuePair] | list[str] = []
    environment: Mapping[str, ValuePair] | list[str] = []
    deepspeed: Mapping[str, ValuePair] | list[str] = []

    prose: list[str] = []
    """Steps in the document text that no script contains."""

    def is_about(self, variant: str) -> bool:
        """Return whether this departure applies to a variant."""
        return (
            not self.variants or variant in self.variants
        ) and variant not in self.variants_without

    def items(self) -> Iterator[tuple[str, str, ValuePair | None]]:
        """Yield the kind, the name and both values of each setting.

        The values are None if they belong to the machine or the job.
        """
        for kind in DEPARTURE_KINDS:
            given = getattr(self, kind)
            for name in given:
                yield kind, name, given[name] if isinstance(given, Mapping) else None


class DataDeparture(Strict):
    """Differences from the document in text and tokens that have the same reason."""

    why: str
    """The reason, as a sentence."""

    what: Mapping[str, ValuePair] = {}
    """The value in the document and ours by name, as in tests/samples/documents/data.json and in
    the run.
    """

    prose: list[str] = []
    """What programs in the document do, if there is no value to compare."""


class DepartureFile(Strict):
    """A file in params/differs."""

    differs: list[Departure]

    data: list[DataDeparture] = []
    """Differences in the training text."""


def read_departures(run: str, project: Path) -> list[Departure]:
    """Return how a run differs from its document (or from every document), in file order."""
    return _read(run, project).differs


def read_data_departures(run: str, project: Path) -> list[DataDeparture]:
    """Return how the text for a run differs from the text in its document, in file order."""
    return _read(run, project).data


def _read(run: str, project: Path) -> DepartureFile:
    where = f"params/differs/{run}.yaml"
    try:
        return DepartureFile.model_validate(read_file(project / where, where).values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ParamsError(
            f"{where}: {place}: {first['msg']}. An entry has why, and names or pairs of values."
        ) from error
