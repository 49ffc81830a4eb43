"""One training phase of plan.json, built from what a person chose."""

import dataclasses
from operator import attrgetter
from pathlib import PurePosixPath

from runbook.core.checks import Check, judge
from runbook.params.settings import Settings
from runbook.plan_file import schema
from runbook.plan_file.deepspeed import own_config
from runbook.plan_file.identity import fingerprint
from runbook.planning.cost.step_inputs import peak_of
from runbook.planning.layout import Choice
from runbook.planning.schedule import batch_of, duration, learning_rate
from runbook.planning.sizes import whole
from runbook.planning.token_files import GPT2_END_OF_DOCUMENT, DataPlan

OWN_PLACES = ("checkpoint folder", "log tensorboard", "data cache", "log metrics", "log validation", "log samples")
"""What smoke test and training must not share; events.jsonl is common, each line names its phase."""


def phase_plan(settings: Settings, choice: Choice, data: DataPlan) -> schema.PhasePlan:
    """What the trainer reads; paths are relative to the folder of plan.json unless absolute."""
    training, length = choice.training, duration(choice)
    phase = schema.PhasePlan(
        phase=choice.phase,
        engine=str(training.engine),
        seed=training.seed,
        device=choice.site.hardware.device,
        model=_model(choice),
        parallel=choice.parallel,
        batch=batch_of(choice),
        duration=length,
        learning_rate=learning_rate(choice, length),
        optimizer=schema.Optimizer(
            beta1=training.adam_beta1,
            beta2=training.adam_beta2,
            epsilon=training.adam_epsilon,
            weight_decay=training.weight_decay,
            clip_gradient=training.clip_gradient,
        ),
        precision=schema.PlannedPrecision(
            format=str(training.precision),
            initial_loss_scale=training.initial_loss_scale,
            loss_scale_window=training.loss_scale_window,
            hysteresis=training.loss_scale_hysteresis,
            static_loss_scale=training.static_loss_scale,
            minimum_loss_scale=training.min_loss_scale,
            fp8=str(training.fp8),
        ),
        recompute=str(training.recompute),
        data=_data(settings, choice, data),
        evaluation=_evaluation(choice, length),
        checkpoint=_checkpoint(settings, choice),
        log=_log(settings, choice),
        limits=schema.Limits(
            exit_duration_seconds=0 if choice.smoke else training.exit_duration,
            process_group_timeout_seconds=training.process_group_timeout,
            exit_interval=0 if choice.smoke else training.exit_interval,
            nan_policy=str(training.nan_policy),
            nan_limit=training.nan_limit,
        ),
        sampling=schema.Sampling(
            prompt="" if choice.smoke else training.sample_prompt,
            prompt_ids=(),
            tokens=training.sample_tokens,
            end_of_document=GPT2_END_OF_DOCUMENT if settings.run.data.tokenizer == "gpt2" else -1,
        ),
        fingerprint="",
        tuning=choice.tuning,
    )
    phase = dataclasses.replace(phase, fingerprint=fingerprint(phase))
    return dataclasses.replace(phase, deepspeed=own_config(phase) if choice.own_trainer and choice.deepspeed else {})


def check_folders(smoke: schema.PhasePlan, full: schema.PhasePlan) -> list[Check]:
    """Smoke test and training share no folder and no file, nor does a folder of one lie inside one of the other."""
    rule = "smoke test and training never share a place"
    remedy = "Give the site's paths their own place for each; a full run must never load the smoke test's checkpoint."
    checks = []
    for place in OWN_PLACES:
        small, large = map(attrgetter(place.replace(" ", ".")), (smoke, full))
        value = f"smoke test: {small}, training: {large}"
        checks.append(judge(f"smoke is not full: {place}", not overlapping(small, large), value, rule, remedy))
    return checks


def overlapping(first: str, second: str) -> bool:
    """Whether one path is the other or lies inside it.

    >>> overlapping("checkpoints", "checkpoints/smoke"), overlapping("smoke/checkpoints", "checkpoints")
    (True, False)
    """
    one, other = PurePosixPath(first), PurePosixPath(second)
    return one.is_relative_to(other) or other.is_relative_to(one)


def _model(choice: Choice) -> schema.PlannedModel:
    return schema.PlannedModel(
        **dataclasses.asdict(choice.shape),
        name=choice.model_name,
        label=choice.model.label,
        init_std=choice.training.init_std,
        dropout=choice.training.dropout,
        parameters=whole(choice.shape).total,
    )


def _data(settings: Settings, choice: Choice, data: DataPlan) -> schema.PlannedData:
    uses = ("train", "validation", "test")
    sources = {use: data.weighted(use) for use in uses}
    if not choice.own_trainer:  # the documents' programs know no tokens: their files have equal shares
        sources = {use: tuple(dataclasses.replace(file, text="") for file in files) for use, files in sources.items()}
    cache = _place(settings, choice, "data", "cache", in_run="data/cache")
    return schema.PlannedData(mock=data.mock, **sources, split=data.split, cache=cache)


def _evaluation(choice: Choice, length: schema.Duration) -> schema.Evaluation:
    interval, iterations = choice.training.eval_interval, choice.training.eval_iterations
    if not choice.smoke:
        return schema.Evaluation(interval, iterations)
    return schema.Evaluation(length.iterations, 1) if interval > 0 and iterations > 0 else schema.Evaluation(0, 0)


def _checkpoint(settings: Settings, choice: Choice) -> schema.Checkpoint:
    training, folder = choice.training, _place(settings, choice, "checkpoints", "checkpoints", in_run="checkpoints")
    if choice.smoke:
        return schema.Checkpoint(folder, interval=0, keep=1)
    return schema.Checkpoint(
        folder,
        interval=training.save_interval,
        keep=training.keep_checkpoints,
        keep_every=training.keep_every,
        asynchronous=training.async_save,
        resume_changed=training.resume_changed,
        saves=choice.own_trainer or training.save_interval > 0,
    )


def _log(settings: Settings, choice: Choice) -> schema.Log:
    folder = "smoke/" if choice.smoke else ""
    peak = peak_of(choice.site, str(choice.training.precision)) if choice.own_trainer else None
    return schema.Log(
        interval=1 if choice.smoke else choice.training.log_interval,
        metrics=f"{folder}metrics.jsonl",
        validation=f"{folder}validation.jsonl",
        samples=f"{folder}samples.jsonl",
        events="events.jsonl",
        tensorboard=_place(settings, choice, "tensorboard", "tensorboard", in_run="tensorboard"),
        peak_tflops=peak or 0.0,
    )


def _place(settings: Settings, choice: Choice, site_key: str, name: str, *, in_run: str) -> str:
    base = settings.site.paths.get(site_key, "")
    if not base:
        return f"smoke/{in_run}" if choice.smoke else in_run
    return f"{base.rstrip('/')}/{settings.name}/{'smoke-' if choice.smoke else ''}{name}"
