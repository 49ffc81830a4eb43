"""Reads the catalogues: params/models.yaml, params/datasets.yaml, params/sites/*.yaml."""

from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from runbook.core.errors import ParamsError
from runbook.core.nearest_names import nearest_names
from runbook.params.layers import Layer, rule_of
from runbook.params.messages import ParamsMessage
from runbook.params.problems import InvalidParams, Problem, hidden_in, marks_in, tokens_in
from runbook.params.project import shown_path, site_names
from runbook.params.schema.entries import Dataset, Model
from runbook.params.schema.site import Site
from runbook.params.schema.value_types import Strict
from runbook.params.yaml12 import YamlDocument, read_mapping, read_text
from runbook.plan_file.diagnostics import Statement

SMOKE_MODEL = "375m"
Entry = TypeVar("Entry", bound=Strict)


class Catalogue(Generic[Entry]):
    """A file with named entries. Each entry is checked when it is requested."""

    def __init__(
        self,
        kind: type[Entry],
        file: str,
        project: Path,
    ) -> None:
        self.kind = kind
        self.document = _read(project / "params" / file, project)

    @property
    def names(self) -> list[str]:
        """Return all names, in file order."""
        return list(self.document.values)

    def get(self, name: str) -> Entry:
        """Return the entry with that name.

        Raise `ParamsError` if the entry does not exist or is unusable.
        """
        if name not in self.document.values:
            raise ParamsError(no_such(name, self.names, self.document.where))
        return _entry(self.kind, self.document, self.document.values[name], (name,))


read_models = partial(Catalogue, Model, "models.yaml")
read_datasets = partial(Catalogue, Dataset, "datasets.yaml")
"""Function used to read the dataset catalogue in a project folder."""


def read_site(name: str, project: Path) -> tuple[Site, Layer]:
    """Return a site, and a layer with its `defaults`. Raise `ParamsError` if it cannot be used."""
    path = project / "params" / "sites" / f"{name}.yaml"
    if not path.is_file():
        raise ParamsError(no_such(name, site_names(project), "params/sites"))
    document = _read(path, project)
    site = _entry(Site, document, document.values, ())
    if site.site != name:
        rule = ParamsMessage.NOT_THE_FILES_NAME.of(name=name)
        raise InvalidParams(
            f"Site {name}", [Problem("site", document.origin(("site",)), rule, site.site)]
        )

    layer = Layer("site").take(site.defaults, lambda path: document.origin(("defaults", *path)))
    for key in ("run", "site"):
        if key in layer.leaves:
            rule = ParamsMessage.NOT_A_DEFAULT.of()
            layer.problems.append(Problem(f"defaults.{key}", layer.leaves.pop(key).where, rule))

    return site, layer


def smaller_model(run_model_name: str, run_model: Model, smoke: Model) -> tuple[str, Model]:
    """Choose the model for the smoke test if the run file does not name one.

    The default is the 12 x 512 model from the documents, or the model of the run if that is
    smaller. Sizes are compared with the formula 12 x layers x hidden^2 + vocabulary x hidden, which
    is accurate enough to order them; the plan computes exact counts.
    """
    weight, limit = (
        12 * model.layers * model.hidden**2 + model.vocabulary * model.hidden
        for model in (run_model, smoke)
    )
    if weight < limit:
        return run_model_name, run_model
    return SMOKE_MODEL, smoke


def no_such(name: str, names: list[str], where: str) -> Statement:
    """Return the message for an unknown name, with the closest valid names."""
    near = nearest_names(name, names, likeness=0.5)
    first_names = ", ".join(names[:12])
    if len(names) > 12:
        first_names += f" and {len(names) - 12} more"
    if near:
        suggestion = f"Did you mean {' or '.join(near)}?"
    else:
        suggestion = f"It has {first_names or 'nothing yet'}."

    return ParamsMessage.NO_SUCH_NAME.of(where=where, name=name, suggestion=suggestion)


def _read(path: Path, project: Path) -> YamlDocument:
    where = shown_path(path, project)
    text = read_text(path, where)
    problems = [*tokens_in(text, where), *hidden_in(text, where), *marks_in(text, where)]
    if problems:
        raise InvalidParams(where, problems)
    return read_mapping(text, where)


def _entry(
    kind: type[Entry],
    document: YamlDocument,
    values: Any,
    path: tuple[str, ...],
) -> Entry:
    try:
        return kind.model_validate(values)
    except ValidationError as errors:
        problems = []
        for error in errors.errors(include_url=False):
            key_path = (*path, *map(str, error["loc"]))
            unknown = error["type"] == "extra_forbidden"
            rule = rule_of(error, "", list(kind.model_fields))
            if unknown or error["type"] == "missing":
                value = ...
            else:
                value = error["input"]

            problems.append(Problem(".".join(key_path), document.origin(key_path), rule, value))

        raise InvalidParams(document.where, problems) from errors
