"""Loads a run: finds its files, lays the layers, and says all that is wrong at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runbook.errors import ParamsError
from runbook.params import catalogues
from runbook.params.blend import parse_blend
from runbook.params.catalogue import Model, Site
from runbook.params.catalogues import SMOKE_MODEL, Catalogue, no_such, read_datasets, read_models, read_site
from runbook.params.dataset import Dataset, Text
from runbook.params.keys import DURATION
from runbook.params.layers import Layer, Stack, document_layer, mapping_layer
from runbook.params.own_shape import FIELDS, with_own_shape
from runbook.params.portable import differences
from runbook.params.problems import Problem, Refused, tokens_in
from runbook.params.project import RunFile, find_run_file, shown
from runbook.params.rehearsal import rehearse
from runbook.params.schema import Run, is_name
from runbook.params.settings import Settings
from runbook.params.stage import with_stage
from runbook.params.words import take_name, words_layer
from runbook.params.yaml12 import Document, read_mapping, read_text

Found = TypeVar("Found")


def load(
    name: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    set_words: Sequence[str] = (),
    project: Path | None = None,
) -> Settings:
    """The run that `name` means: a stem in params/, `stem:variant`, or a path to a run file.

    `overrides` (nested as in a run file) wins over the file, `set_words` (`key=value`) over both. `ParamsError` lists
    everything that is wrong.
    """
    return load_file(find_run_file(name, project), overrides or {}, set_words)


def check(name: str, *, set_words: Sequence[str] = (), project: Path | None = None) -> Settings:
    """As `load`, and refuses too what YAML 1.1 (papermill -f) would read differently in the run file."""
    return _Loading(find_run_file(name, project), portable=True).load({}, set_words)


def load_file(
    file: RunFile, overrides: Mapping[str, Any], set_words: Sequence[str], problems: Sequence[Problem] = ()
) -> Settings:
    """As `load`, of a run file that was found; tells the caller's own problems with those it finds."""
    return _Loading(file, problems=list(problems)).load(overrides, set_words)


@dataclass
class _Loading:
    file: RunFile
    portable: bool = False
    stack: Stack = field(default_factory=Stack)
    problems: list[Problem] = field(default_factory=list)
    given_name: str = ""

    def load(self, overrides: Mapping[str, Any], set_words: Sequence[str]) -> Settings:
        upper = [self._run_file_layer()]
        if self.file.variant:
            upper.append(self._variant_layer())
        upper += [self._keeps_name(mapping_layer("notebook", overrides, "notebook "))]
        self.given_name, words = take_name(set_words, self.problems)
        upper += [self._keeps_name(words_layer(words))]
        site = self._site(upper)
        for layer in upper:
            self.stack.lay(layer)
        self.problems += self.stack.problems
        settings = self._bind(site)
        if self.problems or settings is None:
            raise Refused(f"Parameters of run {self.file.stem}", self.problems)
        return settings

    def _run_file_layer(self) -> Layer:
        document = self._read(self.file.path)
        if self.portable:
            self.problems += differences(read_text(self.file.path, document.where), document.where)
        layer = document_layer("run file", document)
        given, where = document.values.get("run"), document.origin(("run",))
        if self.file.is_record:
            return layer
        if given != self.file.stem:
            rule = f"must be {self.file.stem}, the file's own name."
            self.problems.append(Problem("run", where, rule, given if "run" in document.values else ...))
        elif next(iter(document.values)) != "run":
            self.problems.append(Problem("run", where, "must be the first key of a run file.", given))
        return layer

    def _variant_layer(self) -> Layer:
        layer = Layer("variant")
        path = self.file.variants_path
        if not path.is_file():
            where = shown(path, self.file.project)
            self.problems.append(
                Problem("variant", where, "there is no such file, so the run has no variants.", self.file.variant)
            )
            return layer
        document = self._read(path)
        values = document.values.get(self.file.variant)
        if self.file.variant not in document.values:
            rule = no_such(self.file.variant, list(document.values), document.where)
            self.problems.append(Problem("variant", document.where, rule, self.file.variant))
        elif isinstance(values, Mapping):
            layer.take(values, lambda path: document.origin((self.file.variant, *path)))
        elif values is not None:
            where = document.origin((self.file.variant,))
            self.problems.append(Problem("variant", where, "must be a mapping of keys to values.", values))
        return self._keeps_name(layer)

    def _keeps_name(self, layer: Layer) -> Layer:
        if "run" in layer.leaves:
            origin = layer.leaves.pop("run")
            rule = "only the run file says its name. Leave this out; --as NAME names a set of overrides."
            self.problems.append(Problem("run", origin.where, rule, origin.value))
        return layer

    def _read(self, path: Path) -> Document:
        where = shown(path, self.file.project)
        text = read_text(path, where)
        self.problems += tokens_in(text, where)
        return read_mapping(text, where)

    def _site(self, upper: Sequence[Layer]) -> Site | None:
        named = [layer.leaves["site"] for layer in upper if "site" in layer.leaves]
        origin = named[-1] if named else self.stack.chains["site"][-1]
        if not is_name(origin.value):
            return None  # told when the layer is checked
        found = self._find("site", origin.where, origin.value, lambda: read_site(origin.value, self.file.project))
        if found is None:
            return None
        site, layer = found
        self.stack.lay(layer)
        return site

    def _bind(self, site: Site | None) -> Settings | None:
        models = self._find("model", "params/models.yaml", ..., lambda: read_models(self.file.project))
        datasets = self._find("data.dataset", "params/datasets.yaml", ..., lambda: read_datasets(self.file.project))
        model = self._own_shape(self._entry("model", models))
        dataset = self._entry("data.dataset", datasets)
        blend = self._blend(datasets)
        smoke = self._smoke(models, model)
        self._require()
        if self.problems or not (site and model and dataset and smoke):
            return None
        texts = [dataset, *(text.dataset for text in blend)]
        self.stack.lay(rehearse(self.stack, site, model, smoke[1], texts))
        run = Run.model_validate(self.stack.nested())
        return Settings(
            run=run,
            site=with_stage(site, run),
            model=model,
            smoke_model=smoke[1],
            smoke_model_name=smoke[0],
            dataset=self._entry("data.dataset", datasets),
            origins={key: tuple(chain) for key, chain in self.stack.chains.items()},
            project=self.file.project,
            variant=self.given_name or self.file.variant or self._recorded_variant(),
            blend=blend if run.data.blend else (),
        )

    def _blend(self, datasets: Catalogue[Dataset] | None) -> tuple[Text, ...]:
        """The texts of data.blend; what is wrong with its names is told, its form was when its layer was laid."""
        origin = self.stack.chains["data.blend"][-1]
        try:
            parts = parse_blend(str(origin.value))
        except ValueError:
            return ()
        main, folder = self.stack.value("data.dataset"), self.stack.value("data.folder")
        if parts and main not in dict(parts):
            rule = f"must name data.dataset ({main}) among its texts: add it, or set data.dataset to one of them."
            self.problems.append(Problem("data.blend", origin.where, rule, origin.value))
        texts = []
        for name, weight in parts:
            found = datasets and self._find("data.blend", origin.where, origin.value, partial(datasets.get, name))
            if found and found.kind == "mock":
                rule = f"{name} is made-up ids, which cannot be blended with text."
                self.problems.append(Problem("data.blend", origin.where, rule, origin.value))
            elif found:
                texts.append(Text(name, weight, found, str(folder) if name == main else ""))
        return tuple(texts)

    def _own_shape(self, model: Model | None) -> Model | None:
        values = {name: self.stack.value(f"training.shape.{name}") for name in FIELDS}
        fits = all(isinstance(value, int) and value >= 0 for value in values.values())
        return with_own_shape(model, values) if model and fits else model

    def _require(self) -> None:
        if self.file.is_record and "run" not in self.stack.chains:
            self.problems.append(Problem("run", self.file.where, "is missing."))
        if "model" not in self.stack.chains:
            self.problems.append(Problem("model", self.file.where, "is missing: name one of params/models.yaml."))
        told = any(problem.key.startswith("training") for problem in self.problems)
        if not told and not any(self.stack.value(key) for key in DURATION):
            rule = f"the length of the training is missing: give one of {', '.join(DURATION)}."
            self.problems.append(Problem("training", self.file.where, rule))

    def _entry(self, key: str, catalogue: Catalogue[Any] | None) -> Any:
        chain = self.stack.chains.get(key)
        if catalogue is None or not chain or not is_name(chain[-1].value):
            return None
        name = chain[-1].value
        return self._find(key, chain[-1].where, name, lambda: catalogue.get(name))

    def _smoke(self, models: Catalogue[Model] | None, own: Model | None) -> tuple[str, Model] | None:
        name = self.stack.value("training.smoke.model")
        if name:
            if isinstance(name, str) and not is_name(name):
                where = self.stack.chains["training.smoke.model"][-1].where
                self.problems.append(Problem("training.smoke.model", where, "is not the name of a model.", name))
            model = self._entry("training.smoke.model", models)
            return (name, model) if model else None
        smoke = models and self._find("training.smoke.model", "built-in", SMOKE_MODEL, lambda: models.get(SMOKE_MODEL))
        return catalogues.smaller_of(self.stack.value("model"), own, smoke) if own and smoke else None

    def _find(self, key: str, where: str, value: Any, find: Callable[[], Found]) -> Found | None:
        try:
            return find()
        except Refused as error:
            self.problems += error.problems
        except ParamsError as error:
            self.problems.append(Problem(key, where, str(error), value))
        return None

    def _recorded_variant(self) -> str:
        run, dashes, variant = self.file.path.parent.name.partition("--")
        return variant if self.file.is_record and dashes and run == self.stack.value("run") else ""
