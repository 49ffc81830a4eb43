"""Explains a key for `runbook why`: where its value comes from, and what it affects."""

from collections.abc import Sequence

from runbook import params
from runbook.params import Settings
from runbook.params.unknown_keys import document_name
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.planning import Plan


def why_facts(run: str, key: str, set_words: Sequence[str]) -> list[dict[str, object]]:
    """Return where a value comes from, and the numbers that the plan derives from it.

    If a name in the documents stands for more than one key, each key has an entry.
    """
    settings, plan = load_plan(run, set_words)
    explained = document_name(key)
    names: Sequence[str] = [params.key_meant(key)] if not explained else explained.keys
    facts = []
    for name in names:
        derived = _derived_text(name, plan)
        facts.append({**params.origin_facts(settings, name), "plan_makes_of_it": derived})

    return facts


def why_text(run: str, key: str, set_words: Sequence[str]) -> str:
    """Return the chain of origins for a value, and the numbers that the plan derives from it."""
    settings, plan = load_plan(run, set_words)
    explained = document_name(key)
    if explained:
        keys = [_why_key(settings, plan, name) for name in explained.keys]
        return "\n".join([f"{key}: {explained.meaning}", *keys])

    return _why_key(settings, plan, params.key_meant(key))


def _why_key(settings: Settings, plan: Plan, name: str) -> str:
    derived = _derived_text(name, plan)
    origins = params.why(settings, name)
    if not derived:
        return origins
    return PhaseMessage.PLAN_MAKES.fill(origins=origins, derived="; ".join(derived))


LENGTH_KEYS = (
    "iterations",
    "samples",
    "tokens",
    "global_batch",
    "micro_batch",
    "sequence_length",
)
"""Keys that determine how long training is."""


def _derived_text(key: str, plan: Plan) -> list[str]:
    phase_plan = plan.phases[SMOKE if "smoke" in key else FULL]
    model = phase_plan.model
    parallel = phase_plan.parallel
    duration = phase_plan.duration
    section, _, name = key.rpartition(".")
    if section == "training.shape":
        return [f"{getattr(model.shape, name):,}, of model {model.name}"]
    if name == "model":
        return [
            f"{model.parameters:,} parameters",
            f"{model.shape.layers} layers x {model.shape.hidden}",
        ]
    if key.startswith("parallel.") or name in ("nodes", "devices_per_node", "tensor", "pipeline"):
        return [f"world size {parallel.world_size}", f"{parallel.data} data-parallel replicas"]
    if name in LENGTH_KEYS:
        length = (
            f"{duration.iterations:,} iterations, {duration.samples:,} sequences, "
            f"{duration.tokens:,} tokens"
        )
        return [
            length,
            (f"{phase_plan.batch.num_microbatches} micro-batches per step on each replica"),
        ]

    if name.startswith(("warmup", "decay")):
        rate = phase_plan.learning_rate
        return [
            f"warm-up over {rate.warmup_samples:,} sequences, decay over {rate.decay_samples:,}"
        ]

    return []
