"""What Megatron-LM and Megatron-DeepSpeed call alike: lists of options, numbers as text, schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runbook.errors import ParamsError
from runbook.params import Settings


class Options:
    """An ordered list of options; a name given again replaces the earlier one, so that a site can have its own."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}

    def add(self, name: str, *values: object) -> None:
        """An option and what follows it."""
        self._values[name] = [text(value) for value in values]

    def flag(self, name: str, wanted: bool) -> None:
        """An option without a value, where it is wanted."""
        if wanted:
            self.add(name)

    def document(self, options: Mapping[str, str | int | float | bool]) -> None:
        """Options of the site's document, by name without dashes; false takes one out."""
        for name, value in options.items():
            if value is False:
                self._values.pop(f"--{name}", None)
            elif value is True:
                self.add(f"--{name}")
            else:
                self.add(f"--{name}", value)

    def words(self) -> list[str]:
        """The list as the program gets it."""
        return [word for name, values in self._values.items() for word in (name, *values)]


def text(value: object) -> str:
    """A number as a person would write it; anything else as it is.

    >>> text(6e-05), text(0.1), text(1.0), text(4294967296.0), text("a b")
    ('6e-05', '0.1', '1.0', '4294967296', 'a b')
    """
    if isinstance(value, float) and abs(value) >= 10 and value == int(value):
        return str(int(value))
    return str(value)


def common(settings: Settings, spec: Mapping[str, Any]) -> Options:
    """Model, batch, length, rates, optimizer, precision: named alike by Megatron-LM and Megatron-DeepSpeed."""
    model, parallel = spec["model"], spec["parallel"]
    options = Options()
    options.add("--num-layers", model["layers"])
    options.add("--hidden-size", model["hidden"])
    options.add("--num-attention-heads", model["heads"])
    if model["ffn_hidden"] != 4 * model["hidden"]:
        options.add("--ffn-hidden-size", model["ffn_hidden"])
    options.add("--seq-length", model["sequence_length"])
    options.add("--max-position-embeddings", model["positions"])
    options.flag("--swiglu", model["activation"] == "swiglu")
    options.flag("--disable-bias-linear", not model["biases"])
    options.flag("--untie-embeddings-and-output-weights", not model["tied_embeddings"])
    options.add("--tensor-model-parallel-size", parallel["tensor"])
    options.add("--pipeline-model-parallel-size", parallel["pipeline"])
    options.flag("--sequence-parallel", parallel["sequence"])
    options.add("--micro-batch-size", spec["batch"]["micro"])
    options.add("--global-batch-size", spec["batch"]["global"])
    if ramp := spec["batch"].get("ramp"):
        options.add("--rampup-batch-size", ramp["start"], ramp["increment"], ramp["samples"])
    _length(options, settings, spec)
    _optimizer(options, spec)
    _precision(options, settings, spec)
    options.add("--init-method-std", model["init_std"])
    options.add("--hidden-dropout", model["dropout"])
    options.add("--attention-dropout", model["dropout"])
    options.add("--seed", spec["seed"])
    options.add("--distributed-timeout-minutes", max(1, round(spec["limits"]["process_group_timeout_seconds"] / 60)))
    return options


def data(options: Options, settings: Settings, spec: Mapping[str, Any]) -> None:
    """Token files and tokenizer; the two files of GPT-2's tokenizer are never the same file."""
    files = spec["data"]
    held_out = files["validation"] or files["test"]
    if held_out:
        for part, name in (("train", "train"), ("validation", "valid"), ("test", "test")):
            if files[part]:
                options.add(f"--{name}-data-path", *weighted(files[part]))
    elif files["train"]:
        options.add("--data-path", *weighted(files["train"]))
        options.add("--split", files["split"])
    vocabulary, merges = tokenizer_files(settings)
    options.add("--tokenizer-type", "GPT2BPETokenizer")
    options.add("--vocab-file", vocabulary)
    options.add("--merge-file", merges)


def weighted(files: list[dict[str, Any]]) -> list[str]:
    """Weight and prefix of each file, in turn; a single file goes without a weight."""
    if len(files) == 1:
        return [str(files[0]["prefix"])]
    return [word for entry in files for word in (text(entry["weight"]), str(entry["prefix"]))]


def tokenizer_files(settings: Settings) -> tuple[str, str]:
    """GPT-2's vocabulary and merges: where the site keeps them, else in the run's folder."""
    if settings.run.data.tokenizer != "gpt2":
        raise ParamsError(
            f"data.tokenizer={settings.run.data.tokenizer} with training.framework={settings.run.training.framework}: "
            "only GPT-2's vocabulary and merges are rendered for it. Set data.tokenizer to gpt2."
        )
    folder = settings.site.paths.get("tokenizer", "data/gpt2").rstrip("/")
    return f"{folder}/vocab.json", f"{folder}/merges.txt"


def outputs(options: Options, spec: Mapping[str, Any]) -> None:
    """Logging, evaluation, checkpoints: load and save are one place, so that a job that is run again goes on."""
    log, checkpoint, evaluation = spec["log"], spec["checkpoint"], spec["evaluation"]
    options.add("--log-interval", log["interval"])
    options.add("--eval-interval", evaluation["interval"] or spec["duration"]["iterations"])
    options.add("--eval-iters", evaluation["iterations"] if evaluation["interval"] else 0)
    options.add("--save-interval", checkpoint["interval"] or spec["duration"]["iterations"])
    options.add("--save", checkpoint["folder"])
    options.add("--load", checkpoint["folder"])
    options.add("--tensorboard-dir", log["tensorboard"])
    options.add("--exit-signal-handler")  # asked to stop, it saves and ends
    if spec["limits"].get("exit_interval"):
        options.add("--exit-interval", spec["limits"]["exit_interval"])
    if spec["limits"]["exit_duration_seconds"]:
        options.add("--exit-duration-in-mins", max(1, spec["limits"]["exit_duration_seconds"] // 60))


def _length(options: Options, settings: Settings, spec: Mapping[str, Any]) -> None:
    """By iterations where everything is a whole number of them, else by samples: Megatron takes no mixture."""
    rate, duration, size = spec["learning_rate"], spec["duration"], spec["batch"]["global"]
    counts = (duration["samples"], rate["warmup_samples"], rate["decay_samples"])
    by_samples = bool(settings.run.training.samples or spec["batch"].get("ramp"))
    by_iterations = not by_samples and all(count % size == 0 for count in counts)
    unit, divisor = ("iters", size) if by_iterations else ("samples", 1)
    options.add(f"--train-{unit}", math.ceil(duration["samples"] / divisor))
    options.add("--lr", rate["peak"])
    options.add("--min-lr", rate["minimum"])
    options.add("--lr-decay-style", rate["schedule"])
    options.add(f"--lr-decay-{unit}", rate["decay_samples"] // divisor)
    options.add(f"--lr-warmup-{unit}", rate["warmup_samples"] // divisor)


def _optimizer(options: Options, spec: Mapping[str, Any]) -> None:
    optimizer = spec["optimizer"]
    options.add("--adam-beta1", optimizer["beta1"])
    options.add("--adam-beta2", optimizer["beta2"])
    options.add("--adam-eps", optimizer["epsilon"])
    options.add("--weight-decay", optimizer["weight_decay"])
    options.add("--clip-grad", optimizer["clip_gradient"])


def _precision(options: Options, settings: Settings, spec: Mapping[str, Any]) -> None:
    precision = spec["precision"]
    if precision["format"] == "fp32":
        return
    options.add(f"--{precision['format']}")
    if precision["format"] == "fp16":
        options.add("--initial-loss-scale", precision["initial_loss_scale"])
        options.add("--loss-scale-window", precision["loss_scale_window"])
        options.add("--hysteresis", settings.run.training.loss_scale_hysteresis)
        if precision.get("static_loss_scale"):
            options.add("--loss-scale", precision["static_loss_scale"])
        if "minimum_loss_scale" in precision:
            options.add("--min-loss-scale", precision["minimum_loss_scale"])
