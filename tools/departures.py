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


class DepartureFile(Strict):
    """A file of params/differs."""

    differs: list[Departure]


def read_departures(run: str, project: Path) -> list[Departure]:
    """The list of a run's document (or of every document), in the file's order."""
    where = f"params/differs/{run}.yaml"
    try:
        return DepartureFile.model_validate(read_file(project / where, where).values).differs
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ParamsError(
            f"{where}: {place}: {first['msg']}. An entry has why, and names or pairs of values."
        ) from error
