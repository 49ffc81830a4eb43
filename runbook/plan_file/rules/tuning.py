"""Rules for how a step is computed, such as overlaps, recomputation and CUDA graphs."""

from collections.abc import Iterator
from dataclasses import replace

from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.rules.codes import RuleCode
from runbook.plan_file.schema import Layout, Tuning

_MEGATRON_KEYS = (
    "training.overlap_weights",
    "training.overlap_pipeline",
    "training.fuse_gradients",
    "training.engine",
)


def tuning_problems(
    tuning: Tuning,
    parallel: Layout,
    layers: int,
    recompute: str,
    *,
    deepspeed: bool,
) -> Iterator[RuleResult]:
    """Yield the tuning settings this layout does not allow."""
    can_overlap_weights = tuning.overlap_gradients and parallel.zero_stage == 1
    if tuning.overlap_weights and not can_overlap_weights:
        yield RuleResult(
            code=RuleCode.OVERLAP_WEIGHTS,
            holds=False,
            values={"zero_stage": parallel.zero_stage},
            keys=(
                "training.overlap_weights",
                "training.overlap_gradients",
                "parallel.zero_stage",
            ),
        )

    overlaps_whole_sequences = tuning.overlap_tensor and not parallel.sequence
    recomputes_graphs = tuning.cuda_graphs and recompute == "full"
    if overlaps_whole_sequences or recomputes_graphs:
        yield RuleResult(
            code=RuleCode.OVERLAP_TENSOR_OR_GRAPHS,
            holds=False,
            values={},
            keys=(
                "training.overlap_tensor",
                "parallel.sequence",
                "training.cuda_graphs",
                "training.recompute",
            ),
        )

    if recompute == "full" and tuning.recompute_method == "uniform":
        yield from _groups_problem(tuning, parallel, layers)
    if deepspeed:
        yield from _deepspeed_problem(tuning, parallel)


def _deepspeed_problem(tuning: Tuning, parallel: Layout) -> Iterator[RuleResult]:
    if _is_megatrons_own(tuning) or _has_uneven_stages(parallel):
        yield RuleResult(
            code=RuleCode.TUNING_WITH_DEEPSPEED,
            holds=False,
            values={},
            keys=_MEGATRON_KEYS,
        )


def _groups_problem(tuning: Tuning, parallel: Layout, layers: int) -> Iterator[RuleResult]:
    chunks = parallel.virtual_pipeline
    chunk_layers = [stage // chunks for stage in parallel.stage_layers(layers)]
    group = tuning.recompute_num_layers
    if any(count % group for count in chunk_layers):
        counts = " or ".join(map(str, sorted(set(chunk_layers))))
        unit = "layers a chunk" if chunks > 1 else "layers"
        yield RuleResult(
            code=RuleCode.RECOMPUTED_GROUPS,
            holds=False,
            values={"group": group, "stage_layers": f"{counts} {unit}"},
            keys=("training.recompute_num_layers", "training.recompute_method"),
        )


def _is_megatrons_own(tuning: Tuning) -> bool:
    """Return whether a tuning uses a feature that DeepSpeed does not have."""
    without_shared = replace(
        tuning,
        overlap_gradients=False,
        kernels="auto",
        gc_interval=0,
        broadcast_batches=False,
    )
    return without_shared != Tuning()


def _has_uneven_stages(parallel: Layout) -> bool:
    return bool(parallel.first_stage_layers or parallel.last_stage_layers)
