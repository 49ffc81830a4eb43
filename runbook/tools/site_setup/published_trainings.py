"""`runbook init --model`: writes a run file with sourced values from a published run.

A recipe contains values from a real training run, to start a first run from numbers that worked.
Values that belong together (batch, learning rate, warm-up) come from one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runbook.core.errors import ParamsError
from runbook.core.files import write_text
from runbook.params.catalogues import read_models
from runbook.params.yaml12 import write_scalar
from runbook.plan_file.schema import Layout
from runbook.tools.site_setup.messages import SiteSetupMessage

LOCAL_SITE = "local-gpu"
"""The default site for a recipe. This site scales any run down to the available GPUs."""

GPT3_TABLE = "Brown et al. 2020, arXiv:2005.14165, table 2.1"
GPT3_APPENDIX = "Brown et al. 2020, arXiv:2005.14165, appendix B"
NEMO = "NeMo-Framework-Launcher 26e42fa, conf/training/gpt3"
NEMO_LLAMA = "NeMo-Framework-Launcher 26e42fa, conf/training/llama/llama3_70b.yaml"
MEGATRON_LLAMA = "Megatron-LM d98e8a6, examples/llama/train_llama3_8b_h100_fp8.sh"
LLAMA_TABLE = "arXiv:2407.21783, table 3"


class RecipeValue(NamedTuple):
    """A key in the `training` section of the run file."""

    key: str
    value: int | float | str
    source: str


@dataclass(frozen=True)
class RecipeLayout:
    """Tensor and pipeline parallel sizes and micro-batch, with their source.

    Other machines need different values.
    """

    parallel: Layout
    micro_batch: int
    nodes: int
    """How many nodes with eight devices each are needed to hold a replica."""
    source: str


@dataclass(frozen=True)
class Recipe:
    """The values that a model was trained with."""

    model: str
    values: Sequence[RecipeValue]
    layout: RecipeLayout
    remark: str = ""
    """Notes that should be read before these values are used."""


ONE_DEVICE = RecipeLayout(
    parallel=Layout(),
    micro_batch=4,
    nodes=1,
    source=f"{NEMO}/126m.yaml and 5b.yaml: no model parallelism",
)
TWENTY_BILLION = RecipeLayout(
    parallel=Layout(tensor=2),
    micro_batch=2,
    nodes=1,
    source=f"{NEMO}/20b.yaml",
)
LARGEST = RecipeLayout(
    parallel=Layout(tensor=4, pipeline=8),
    micro_batch=1,
    nodes=4,
    source=f"{NEMO}/175b.yaml",
)


class Gpt3Size(NamedTuple):
    """A row in the table from the paper."""

    model: str
    learning_rate: float
    """Peak learning rate."""
    global_batch: int
    """Number of sequences, 2,048 tokens each."""
    shown_batch: str
    """The batch size as the paper writes it."""
    eval_iterations: int
    layout: RecipeLayout


GPT3_SIZES = (
    Gpt3Size(
        model="125m",
        learning_rate=6.0e-4,
        global_batch=256,
        shown_batch="0.5M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="350m",
        learning_rate=3.0e-4,
        global_batch=256,
        shown_batch="0.5M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="760m",
        learning_rate=2.5e-4,
        global_batch=256,
        shown_batch="0.5M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="1.3b",
        learning_rate=2.0e-4,
        global_batch=512,
        shown_batch="1M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="2.7b",
        learning_rate=1.6e-4,
        global_batch=512,
        shown_batch="1M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="6.7b",
        learning_rate=1.2e-4,
        global_batch=1024,
        shown_batch="2M tokens",
        eval_iterations=50,
        layout=ONE_DEVICE,
    ),
    Gpt3Size(
        model="13b",
        learning_rate=1.0e-4,
        global_batch=1024,
        shown_batch="2M tokens",
        eval_iterations=50,
        layout=TWENTY_BILLION,
    ),
    Gpt3Size(
        model="175b",
        learning_rate=0.6e-4,
        global_batch=1536,
        shown_batch="3.2M tokens",
        eval_iterations=20,
        layout=LARGEST,
    ),
)


def _gpt3(size: Gpt3Size) -> Recipe:
    """Return the recipe for a GPT-3 size. Values that the paper omits are taken from NeMo."""
    minimum = float(f"{size.learning_rate / 10:g}")
    values = (
        RecipeValue("tokens", 300_000_000_000, f"{GPT3_TABLE}: 300 billion tokens"),
        RecipeValue("global_batch", size.global_batch, f"{GPT3_TABLE}: {size.shown_batch}"),
        RecipeValue("learning_rate", size.learning_rate, GPT3_TABLE),
        RecipeValue("min_learning_rate", minimum, f"{GPT3_APPENDIX}: 10 % of the peak"),
        RecipeValue("schedule", "cosine", GPT3_APPENDIX),
        RecipeValue("warmup_tokens", 375_000_000, f"{GPT3_APPENDIX}: the first 375 million"),
        RecipeValue("decay_tokens", 260_000_000_000, f"{GPT3_APPENDIX}: over 260 billion"),
        RecipeValue("adam_beta1", 0.9, GPT3_APPENDIX),
        RecipeValue("adam_beta2", 0.95, GPT3_APPENDIX),
        RecipeValue("adam_epsilon", 1.0e-8, GPT3_APPENDIX),
        RecipeValue("weight_decay", 0.1, GPT3_APPENDIX),
        RecipeValue("clip_gradient", 1.0, GPT3_APPENDIX),
        RecipeValue("save_interval", 2000, f"{NEMO}: at each validation"),
        RecipeValue("eval_interval", 2000, f"{NEMO}: val_check_interval"),
        RecipeValue("eval_iterations", size.eval_iterations, f"{NEMO}: limit_val_batches"),
    )
    remark = (
        "The paper increased the batch from 32k tokens; training.rampup_* can do that, but is not "
        "set here."
    )
    return Recipe(size.model, values, size.layout, remark)


LLAMA_3_8B = Recipe(
    "llama-3-8b",
    (
        RecipeValue("samples", 1_953_125_000, f"{MEGATRON_LLAMA}: 16 T tokens"),
        RecipeValue("global_batch", 128, MEGATRON_LLAMA),
        RecipeValue(
            "learning_rate", 1.5e-4, f"{MEGATRON_LLAMA}; Meta's own peak: 3e-4 ({LLAMA_TABLE})"
        ),
        RecipeValue("min_learning_rate", 1.0e-5, MEGATRON_LLAMA),
        RecipeValue("schedule", "cosine", MEGATRON_LLAMA),
        RecipeValue("warmup_samples", 3_906_252, MEGATRON_LLAMA),
        RecipeValue("decay_samples", 1_949_218_748, MEGATRON_LLAMA),
        RecipeValue("adam_beta1", 0.9, MEGATRON_LLAMA),
        RecipeValue("adam_beta2", 0.95, MEGATRON_LLAMA),
        RecipeValue("weight_decay", 0.1, MEGATRON_LLAMA),
        RecipeValue("clip_gradient", 1.0, MEGATRON_LLAMA),
        RecipeValue("init_std", 0.0134, MEGATRON_LLAMA),
        RecipeValue("save_interval", 1000, MEGATRON_LLAMA),
        RecipeValue("eval_interval", 100, MEGATRON_LLAMA),
        RecipeValue("eval_iterations", 32, MEGATRON_LLAMA),
    ),
    RecipeLayout(
        parallel=Layout(),
        micro_batch=1,
        nodes=1,
        source=MEGATRON_LLAMA,
    ),
    "Meta has not published the batch size of the 8B model; all values except the shape are "
    "NVIDIA's recipe.",
)

LLAMA_3_70B = Recipe(
    "llama-3-70b",
    (
        RecipeValue("iterations", 300_000, NEMO_LLAMA),
        RecipeValue("global_batch", 2048, NEMO_LLAMA),
        RecipeValue("learning_rate", 1.5e-4, f"{NEMO_LLAMA}, and Meta's own peak ({LLAMA_TABLE})"),
        RecipeValue("min_learning_rate", 1.0e-5, NEMO_LLAMA),
        RecipeValue("schedule", "cosine", NEMO_LLAMA),
        RecipeValue("warmup_iterations", 2000, NEMO_LLAMA),
        RecipeValue("adam_beta1", 0.9, NEMO_LLAMA),
        RecipeValue("adam_beta2", 0.95, NEMO_LLAMA),
        RecipeValue("weight_decay", 0.1, NEMO_LLAMA),
        RecipeValue("clip_gradient", 1.0, NEMO_LLAMA),
        RecipeValue("init_std", 0.008944, NEMO_LLAMA),
        RecipeValue("save_interval", 2000, f"{NEMO_LLAMA}: at each validation"),
        RecipeValue("eval_interval", 2000, f"{NEMO_LLAMA}: val_check_interval"),
        RecipeValue("eval_iterations", 32, f"{NEMO_LLAMA}: limit_val_batches"),
    ),
    RecipeLayout(
        parallel=Layout(tensor=4, pipeline=4),
        micro_batch=1,
        nodes=2,
        source=NEMO_LLAMA,
    ),
)

RECIPES = {recipe.model: recipe for recipe in (*map(_gpt3, GPT3_SIZES), LLAMA_3_8B, LLAMA_3_70B)}


def find_recipe(model: str) -> Recipe:
    """Return the recipe for a model in params/models.yaml."""
    recipe = RECIPES.get(model.lower())
    if recipe is None:
        raise ParamsError(SiteSetupMessage.NO_SUCH_RECIPE, model=model, recipes=", ".join(RECIPES))

    return recipe


def write_recipe(project: Path, recipe: Recipe, site: str) -> tuple[Path, bool]:
    """Write params/<model>.yaml for a site.

    Return the file path, and whether it was written. An existing file is kept.
    """
    name = recipe.model if site == LOCAL_SITE else f"{site}-{recipe.model}"
    path = project / "params" / f"{name}.yaml"
    if path.exists():
        return path, False
    write_text(path, recipe_text(recipe, name, site, project))
    return path, True


def recipe_text(
    recipe: Recipe,
    name: str,
    site: str,
    project: Path,
) -> str:
    """Return the text for the run file."""
    model = read_models(project).get(recipe.model)
    layout = recipe.layout
    remark = f"# {recipe.remark}\n" if recipe.remark else ""
    training = "".join(
        f"  {row.key}: {write_scalar(row.value)}  # {row.source}\n" for row in recipe.values
    )
    sequence = "true" if layout.parallel.tensor > 1 else "false"
    return f"""\
# {model.label} as it was trained elsewhere, written by runbook init --model {recipe.model}. Each value has its source.
{remark}# You can change every value: runbook check {name} checks it, runbook plan {name} shows what it costs.
run: {name}
site: {site}
model: {recipe.model}  # {model.source}

data:
  dataset: corpus  # shipped, far too small for this model: name your text (params/datasets.yaml)

parallel:  # runbook plan {name} --search ranks the layouts of your machine
  tensor: {layout.parallel.tensor}  # {layout.source}
  pipeline: {layout.parallel.pipeline}
  sequence: {sequence}
  zero_stage: 1

training:
  precision: bf16
  micro_batch: {layout.micro_batch}  # {layout.source}
{training}
jobs:
  smoke:
    nodes: {layout.nodes}
  training:
    nodes: {layout.nodes}  # the fewest nodes of eight devices that hold one replica
"""
