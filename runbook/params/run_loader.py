"""Loads a run from its files and layers, and reports all problems together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runbook.core.errors import ParamsError
from runbook.params import catalogues
from runbook.params.catalogues import SMOKE_MODEL, Catalogue
from runbook.params.layers import (
    GIVEN_BEFORE,
    Layer,
    LayerStack,
    Origin,
    document_layer,
    take_name,
    words_layer,
)
from runbook.params.local_gpus import with_visible_gpus
from runbook.params.messages import ParamsMessage
from runbook.params.problems import (
    InvalidParams,
    Problem,
    differences,
    hidden_in,
    marks_in,
    statement_of,
    tokens_in,
)
from runbook.params.project import RunFile, find_run_file, shown_path
from runbook.params.scale_down import scale_down
from runbook.params.schema.entries import Dataset, Model, TextShare, with_shape
from runbook.params.schema.keys import DURATION
from runbook.params.schema.run_file import SHAPE_FIELDS, Run
from runbook.params.schema.site import Site
from runbook.params.schema.value_types import is_name, parse_blend, suggested_name
from runbook.params.settings import Settings, with_shared_folder
from runbook.params.yaml12 import YamlDocument, read_mapping, read_text
from runbook.plan_file.diagnostics import Statement

Found = TypeVar("Found")


def load(
    name: str,
    *,
    overrides: Mapping[str, object] | None = None,
    set_words: Sequence[str] = (),
    project: Path | None = None,
    before: YamlDocument | None = None,
    portable: bool = False,
) -> Settings:
    """Return the run that `name` refers to: a stem in params/, `stem:variant`, or a path.

    `overrides` (nested as in a run file) take precedence over the file, and `set_words`
    (`key=value`) over both. `before` has the values given to this run earlier, which take
    precedence only over the file. Raise `ParamsError`, which lists everything that is wrong. If the
    run file must be `portable`, this includes everything that YAML 1.1 (papermill -f) would read
    differently.
    """
    return RunLoading(find_run_file(name, project), portable, before).load(
        overrides or {}, set_words
    )


@dataclass
class RunLoading:
    """Loads a run file that exists.

    `problems` are the problems that the caller has found. These are reported together with the
    problems in the file.
    """

    file: RunFile
    portable: bool = False
    before: YamlDocument | None = None
    stack: LayerStack = field(default_factory=LayerStack)
    problems: list[Problem] = field(default_factory=list)
    given_name: str = ""

    def load(self, overrides: Mapping[str, object], set_words: Sequence[str]) -> Settings:
        """Load the run with these values on top of its file, as the function `load` does."""
        layers = [self._run_file_layer()]
        if self.file.variant:
            layers.append(self._keeps_name(self._variant_layer()))
        if self.before is not None:
            layers.append(document_layer(GIVEN_BEFORE, self.before))
        notebook = Layer("notebook").take(overrides, lambda path: f"notebook {path[0]}")
        layers.append(self._keeps_name(notebook))
        self.given_name, other_words = take_name(set_words, self.problems)
        layers.append(self._keeps_name(words_layer(other_words)))
        # Values from the site lie below the run file, so the site name must be read first, and only
        # these layers contain it.
        site = self._site(layers)
        for layer in layers:
            self.stack.lay(layer)
        self.problems += self.stack.problems
        settings = self._bind(site)
        if self.problems or settings is None:
            raise InvalidParams(f"Parameters of run {self.file.shown_name}", self.problems)
        return settings

    def _report(
        self,
        key: str,
        where: str,
        rule: Statement,
        value: Any = ...,
    ) -> None:
        self.problems.append(Problem(key, where, rule, value))

    def _run_file_layer(self) -> Layer:
        document = self._read(self.file.path)
        if self.portable:
            self.problems += differences(read_text(self.file.path, document.where), document.where)
        if not self.file.is_record:
            if document.values.keys() >= {"site", "scheduler"}:
                raise ParamsError(ParamsMessage.SITE_FILE_NAMED, where=document.where)
            self._check_name(document)
        return document_layer("run file", document)

    def _check_name(self, document: YamlDocument) -> None:
        """Report a run file whose first key is not its own name."""
        name = document.values.get("run", ...)
        where = document.origin(("run",))
        if not is_name(self.file.stem):
            rule = ParamsMessage.NOT_A_FILE_NAME.of(
                file=self.file.path.name, suggested=suggested_name(self.file.stem), key="run"
            )
            self._report("run", where, rule, name)
        elif name != self.file.stem:
            self._report(
                "run", where, ParamsMessage.NOT_THE_FILES_NAME.of(name=self.file.stem), name
            )
        elif next(iter(document.values)) != "run":
            self._report("run", where, ParamsMessage.RUN_NOT_FIRST.of(), name)

    def _variant_layer(self) -> Layer:
        layer = Layer("variant")
        variant = self.file.variant
        path = self.file.variants_path
        if not path.is_file():
            where = shown_path(path, self.file.project)
            rule = ParamsMessage.RUN_WITHOUT_VARIANTS.of()
            self._report("variant", where, rule, variant)
            return layer

        document = self._read(path)
        values = document.values.get(variant)
        if variant not in document.values:
            rule = catalogues.no_such(variant, list(document.values), document.where)
            self._report("variant", document.where, rule, variant)
        elif isinstance(values, Mapping):
            layer.take(values, lambda path: document.origin((variant, *path)))
        elif values is not None:
            where = document.origin((variant,))
            self._report("variant", where, ParamsMessage.NOT_A_MAPPING.of(), values)

        return layer

    def _keeps_name(self, layer: Layer) -> Layer:
        origin = layer.leaves.pop("run", None)
        if origin:
            rule = ParamsMessage.NAME_OUTSIDE_RUN_FILE.of()
            self._report("run", origin.where, rule, origin.value)

        return layer

    def _read(self, path: Path) -> YamlDocument:
        where = shown_path(path, self.file.project)
        text = read_text(path, where)
        self.problems += [
            *tokens_in(text, where),
            *hidden_in(text, where),
            *marks_in(text, where),
        ]
        return read_mapping(text, where)

    def _site(self, upper: Sequence[Layer]) -> Site | None:
        named = [layer.leaves["site"] for layer in upper if "site" in layer.leaves]
        origin = named[-1] if named else self.stack.chains["site"][-1]
        if not is_name(origin.value):
            # Ignore a wrong value here, because it is reported when its layer is checked.
            return None

        site_and_layer = self._find(
            "site", origin, lambda: catalogues.read_site(origin.value, self.file.project)
        )
        if site_and_layer is None:
            return None
        site, layer = site_and_layer
        self.stack.lay(layer)
        return self._find("site", origin, lambda: with_visible_gpus(site))

    def _bind(self, site: Site | None) -> Settings | None:
        """Return the settings, or None if something is missing. Missing values are reported."""
        project = self.file.project
        models_file = Origin("", "params/models.yaml", ...)
        models = self._find("model", models_file, lambda: catalogues.read_models(project))
        datasets_file = Origin("", "params/datasets.yaml", ...)
        datasets = self._find(
            "data.dataset", datasets_file, lambda: catalogues.read_datasets(project)
        )
        model = self._model(models)
        dataset = self._entry("data.dataset", datasets)
        blend = self._blend(datasets)
        smoke = self._smoke(models, model)
        self._require()
        if self.problems or not (site and model and dataset and smoke):
            return None
        smoke_name, smoke_model = smoke
        texts = [dataset, *(text.dataset for text in blend)]
        self.stack.lay(
            scale_down(
                self.stack,
                site,
                model,
                smoke_model,
                texts,
            )
        )
        run = Run.model_validate(self.stack.nested())
        return Settings(
            run=run,
            site=with_shared_folder(site, run),
            model=model,
            smoke_model=smoke_model,
            smoke_model_name=smoke_name,
            dataset=self._entry("data.dataset", datasets),
            origins={key: tuple(chain) for key, chain in self.stack.chains.items()},
            project=project,
            variant=self.given_name or self.file.variant or self._recorded_variant(run.run),
            blend=blend if run.data.blend else (),
        )

    def _model(self, models: Catalogue[Model] | None) -> Model | None:
        """Return the model from the catalogue, with sizes changed by `training.shape`."""
        model: Model | None = self._entry("model", models)
        shape = {name: self.stack.value(f"training.shape.{name}") for name in SHAPE_FIELDS}
        # Skip a size with the wrong type here, because it is reported when its layer is checked.
        has_sizes = all(isinstance(value, int) and value >= 0 for value in shape.values())
        return with_shape(model, shape) if model and has_sizes else model

    def _recorded_variant(self, run_name: str) -> str:
        """Return the variant that the folder name of a recorded run contains, or ''."""
        name, dashes, variant = self.file.path.parent.name.partition("--")
        if self.file.is_record and dashes and name == run_name:
            return variant
        return ""

    def _blend(self, datasets: Catalogue[Dataset] | None) -> tuple[TextShare, ...]:
        """Return the texts listed in data.blend.

        Unknown names are reported here. Malformed text is reported when its layer is checked.
        """
        origin = self.stack.chains["data.blend"][-1]
        try:
            parts = dict(parse_blend(str(origin.value)))
        except ValueError:
            return ()

        main = self.stack.value("data.dataset")
        folder = self.stack.value("data.folder")
        if parts and main not in parts:
            rule = ParamsMessage.BLEND_WITHOUT_DATASET.of(main=main)
            self._report("data.blend", origin.where, rule, origin.value)

        texts = []
        for name, weight in parts.items():
            dataset = datasets and self._find("data.blend", origin, partial(datasets.get, name))
            if dataset and dataset.kind == "mock":
                rule = ParamsMessage.MADE_UP_IN_BLEND.of(name=name)
                self._report("data.blend", origin.where, rule, origin.value)
            elif dataset:
                # data.folder belongs to data.dataset. The other texts are in the folders from the
                # catalogue.
                text_folder = str(folder) if name == main else ""
                texts.append(TextShare(name, weight, dataset, text_folder))

        return tuple(texts)

    def _require(self) -> None:
        where = self.file.where
        if self.file.is_record and "run" not in self.stack.chains:
            self._report("run", where, ParamsMessage.VALUE_MISSING.of())
        if "model" not in self.stack.chains:
            self._report("model", where, ParamsMessage.MODEL_MISSING.of())
        reported = any(problem.key.startswith("training") for problem in self.problems)
        if not reported and not any(self.stack.value(key) for key in DURATION):
            rule = ParamsMessage.NO_LENGTH.of(duration=", ".join(DURATION))
            self._report("training", where, rule)

    def _entry(self, key: str, catalogue: Catalogue[Any] | None) -> Any:
        """Return the catalogue entry named by a key, or None if there is none.

        If the value is not a name, that is reported when its layer is checked.
        """
        origin = self.stack.origin(key)
        if catalogue and origin and is_name(origin.value):
            return self._find(key, origin, partial(catalogue.get, origin.value))
        return None

    def _smoke(
        self, models: Catalogue[Model] | None, run_model: Model | None
    ) -> tuple[str, Model] | None:
        key = "training.smoke.model"
        origin = self.stack.chains[key][-1]
        name = origin.value
        if name:
            if isinstance(name, str) and not is_name(name):
                self._report(key, origin.where, ParamsMessage.NOT_A_MODEL_NAME.of(), name)
            model = self._entry(key, models)
            return (name, model) if model else None

        built_in = Origin("", "built-in", SMOKE_MODEL)
        smoke = models and self._find(key, built_in, lambda: models.get(SMOKE_MODEL))
        if run_model and smoke:
            return catalogues.smaller_model(self.stack.value("model"), run_model, smoke)
        return None

    def _find(
        self,
        key: str,
        origin: Origin,
        find: Callable[[], Found],
    ) -> Found | None:
        """Read a file, or return None if it has a fault, which is then reported."""
        try:
            return find()
        except InvalidParams as error:
            self.problems += error.problems
        except ParamsError as error:
            self._report(key, origin.where, statement_of(error), origin.value)

        return None
