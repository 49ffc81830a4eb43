"""Where the rendered trainings depart from their documents: the lists in params/differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from runbook.core.errors import ParamsError
from runbook.params.schema.value_types import Strict
from runbook.params.yaml12 import read_file

DEPARTURE_KINDS = ("directives", "step", "starter", "arguments", "environment", "deepspeed")
"""Of the queue, of srun or mpiexec, of torchrun or deepspeed, of the program, its variables, its DeepSpeed file."""

EVERY_DOCUMENT = "every-document"
"""The list that holds for all five."""

ValuePair = tuple[str | None, str | None]
"""The document's value and ours; None: it is not there."""


class Departure(Strict):
    """Some things that are not as in the document, for one reason."""

    why: str
    """The reason, as a sentence."""

    variants: list[str] = []
    """The variants it is about, "" being the run itself; empty: all."""

    variants_without: list[str] = []
    """All variants but these."""

    directives: Mapping[str, ValuePair] | list[str] = []
    step: Mapping[str, ValuePair] | list[str] = []
    starter: Mapping[str, ValuePair] | list[str] = []
    arguments: Mapping[str, ValuePair] | list[str] = []
    environment: Mapping[str, ValuePair] | list[str] = []
    deepspeed: Mapping[str, ValuePair] | list[str] = []

    prose: list[str] = []
    """Steps of the document's text that no script has."""

    def is_about(self, variant: str) -> bool:
        """Whether it holds for a variant."""
        return (
            not self.variants or variant in self.variants
        ) and variant not in self.variants_without

    def items(self) -> Iterator[tuple[str, str, ValuePair | None]]:
        """Kind, name and both values of each thing; None where the values are the machine's or the job's own."""
        for kind in DEPARTURE_KINDS:
            given = getattr(self, kind)
            for name in given:
                yield kind, name, given[name] if isinstance(given, Mapping) else None


class DataDeparture(Strict):
    """Some things about the text and its tokens that are not as in the document, for one reason."""

    why: str
    """The reason, as a sentence."""

    what: Mapping[str, ValuePair] = {}
    """The document's value and ours by name, as tests/samples/documents/data.json and the run have them."""

    prose: list[str] = []
    """What the document's programs do that has no value to compare."""


class DepartureFile(Strict):
    """A file of params/differs."""

    differs: list[Departure]

    data: list[DataDeparture] = []
    """The same for the text that is trained on."""


def read_departures(run: str, project: Path) -> list[Departure]:
    """The list of a run's document (or of every document), in the file's order."""
    return _read(run, project).differs


def read_data_departures(run: str, project: Path) -> list[DataDeparture]:
    """The list of what is not as in a run's document about its text, in the file's order."""
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
