"""A run's training rehearsed at full size on this machine: what each stage really needs, beside what the plan says."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core import shell
from runbook.core.errors import ProgramError, RunbookError
from runbook.core.table import Table
from runbook.params.schema.value_types import Framework
from runbook.params.settings import Settings
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.memory import RESERVE
from runbook.planning.cost.step_inputs import memory_of
from runbook.planning.plan import make_plan
from runbook.planning.plan_record import Plan
from runbook.workflow.prerequisites import machine

TOLERANCE = 0.05
"""A larger share between plan and rehearsal is a finding."""
SECONDS_A_RANK = 1800
MOST_RANKS_A_PROCESS = 4
"""More save little of the seconds that imports take, and progress is told when a process ends."""
_OWN = {"training.framework": "runbook", "training.offload": "false"}
_TRANSFORMER_ENGINE = "Transformer Engine's layers: megatron-core's own are rehearsed, with torch's attention"
_DEEPSPEED = "DeepSpeed's path on a GPU: its path on a CPU is, with the attention and the loss that a CPU has"
_FUSED = "fused kernels: their parts are counted one by one"


@dataclass(frozen=True)
class Stage:
    """One rank of the job: what its rehearsal counted, and the plan's figures for its stage."""

    stage: int
    rank: int
    peak_bytes: int
    planned_bytes: int
    peak_moment: str
    parts: dict[str, int]
    moments: dict[str, int]
    collectives: list[dict[str, Any]]
    flops: int
    planned_flops: int
    synchronizations: dict[str, int]
    saved_bytes: int
    save_host_bytes: int
    resume_bytes: int
    largest: list[dict[str, Any]]
    timeline: list[list[Any]]
    operators: int
    microbatches: int
    seconds: float


@dataclass(frozen=True)
class Rehearsal:
    """All stages of one phase."""

    run: str
    phase: str
    engine: str
    device: str
    limit_bytes: int
    """Memory of one device that may be planned with; 0: not known."""
    microbatches: int
    """Of a whole step."""
    changed: tuple[str, ...]
    """What was set so that our own trainer can be rehearsed."""
    not_rehearsed: tuple[str, ...]
    stages: tuple[Stage, ...]

    @property
    def fits(self) -> bool:
        """Whether no stage needs more than its device has."""
        return not self.limit_bytes or all(stage.peak_bytes <= self.limit_bytes for stage in self.stages)

    @property
    def findings(self) -> list[str]:
        """What a person should look at before booking."""
        found = []
        for stage in self.stages:
            where = f"stage {stage.stage} (rank {stage.rank})"
            if self.limit_bytes and stage.peak_bytes > self.limit_bytes:
                found.append(
                    f"{where} does not fit: it needs {_gib(stage.peak_bytes)} GiB, and {_gib(self.limit_bytes)} GiB of "
                    f"one {self.device} may be used"
                )
            for what, counted, planned in (
                ("memory", stage.peak_bytes, stage.planned_bytes),
                ("FLOPs", stage.flops, stage.planned_flops),
            ):
                if abs(planned - counted) > TOLERANCE * counted:
                    found.append(f"{where}: the plan's {what} is {planned / counted - 1:+.1%} off what was counted")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"fits": self.fits, "findings": self.findings}

    def tables(self) -> Iterator[Table]:
        """Memory, work and messages of each stage."""
        yield Table(
            [
                {
                    "stage": stage.stage,
                    "rank": stage.rank,
                    "peak (GiB)": _gib(stage.peak_bytes),
                    "planned (GiB)": _gib(stage.planned_bytes),
                    "plan is off": f"{stage.planned_bytes / stage.peak_bytes - 1:+.1%}",
                    **{f"{part} (GiB)": _gib(size) for part, size in stage.parts.items()},
                    "fullest in": stage.peak_moment,
                }
                for stage in self.stages
            ],
            title=f"Memory of one {self.device}",
            notes=[
                *(f"Set for the rehearsal: {change}" for change in self.changed),
                f"{self.stages[0].microbatches} of {self.microbatches} micro-batches were run; the others add nothing "
                "to the peak, and the same work each",
                *(f"Not rehearsed: {what}" for what in self.not_rehearsed),
            ],
        )
        yield Table(
            [
                {
                    "stage": stage.stage,
                    "rank": stage.rank,
                    "PFLOP a step": _digits(stage.flops / 1e15),
                    "planned": _digits(stage.planned_flops / 1e15),
                    "operators": stage.operators,
                    "waits for the device": sum(stage.synchronizations.values()),
                    "saves (GiB)": _gib(stage.saved_bytes),
                    "reads to resume (GiB)": _gib(stage.resume_bytes),
                    "host at a save (GiB)": _gib(stage.save_host_bytes),
                }
                for stage in self.stages
            ],
            title="Work of one step, and files",
        )
        yield Table(
            [
                {
                    "stage": stage.stage,
                    "group": sent["group"],
                    "operation": sent["op"],
                    "messages a step": sent["count"],
                    "GiB a step": _gib(sent["bytes"]),
                }
                for stage in (self.stages[0], *self.stages[-1:] * (len(self.stages) > 1))
                for sent in stage.collectives
            ],
            title="Messages of one step, first and last stage",
        )

    def as_text(self) -> str:
        """All tables, and the findings below them."""
        texts = [table.as_text() for table in self.tables()]
        return "\n\n".join([*texts, "\n".join(self.findings) or "Plan and rehearsal agree within 5 %."])


def rehearse_run(
    run: str, set_words: Sequence[str] = (), *, phase: str = "04-training", ranks: Sequence[int] = (), say: Any = None
) -> Rehearsal:
    """Rehearse the distinct ranks of one phase; `say` is told of each that is done."""
    if importlib.util.find_spec("torch") is None:
        raise RunbookError(
            "a rehearsal runs the trainer itself, and torch is not installed here: pip install 'gpt3-runbook[train]'"
        )
    settings, changed = _own_settings(run, set_words)
    plan = make_plan(settings, machine.measure_machine(settings.site))
    spec = plan.phases[phase]
    chosen = list(ranks) or distinct_ranks(spec)
    outside = [rank for rank in chosen if not 0 <= rank < spec.parallel.world_size]
    if outside:
        raise RunbookError(f"--ranks {outside[0]}: this job has ranks 0 to {spec.parallel.world_size - 1}")
    on_cpu = settings.site.hardware.device == "cpu"
    return Rehearsal(
        run=settings.name,
        phase=phase,
        engine=spec.engine,
        device=spec.device,
        limit_bytes=0 if on_cpu else round(RESERVE * memory_of(settings.site)),
        microbatches=spec.batch.num_microbatches,
        changed=changed,
        not_rehearsed=() if on_cpu else (_DEEPSPEED,) if spec.engine == "deepspeed" else (_TRANSFORMER_ENGINE, _FUSED),
        stages=tuple(_rehearsed(plan, phase, chosen, say or (lambda _: None))),
    )


def _own_settings(run: str, set_words: Sequence[str]) -> tuple[Settings, tuple[str, ...]]:
    """The run as our own trainer would do it, and what was changed for that."""
    settings = params.load(run, set_words=set_words)
    training = settings.run.training
    if training.framework is Framework.RUNBOOK:
        return settings, ()
    words = [f"{key}={value}" for key, value in _OWN.items() if key != "training.offload" or training.offload]
    return params.load(run, set_words=[*set_words, *words]), tuple(words)


def distinct_ranks(spec: PhasePlan) -> list[int]:
    """The first rank of each pipeline stage and, with several copies, the job's last: no other holds more."""
    stages, world = spec.parallel.pipeline, spec.parallel.world_size
    firsts = [stage * world // stages for stage in range(stages)]
    return firsts if spec.parallel.data == 1 else [*firsts, world - 1]


def planned_flops(spec: PhasePlan, stage: int) -> int:
    """Of one rank of this stage in a step: the plan's formula, and what is computed again."""
    model, parallel = spec.model, spec.parallel
    head = 6 * model.sequence_length * model.padded_vocabulary * model.hidden
    layers = (model.flops_per_sequence() - head) / parallel.pipeline
    again = 4 / 3 if spec.recompute == "full" else 1
    mine = layers * again + (head if stage == parallel.pipeline - 1 else 0)
    return round(mine * spec.batch.global_ / parallel.data / parallel.tensor)


def _rehearsed(plan: Plan, phase: str, ranks: Sequence[int], say: Any) -> Iterator[Stage]:
    """Each rank in a process of its own, as many at once as there are cores."""
    spec, planned = plan.phases[phase], plan.memory[phase].least_by_stage
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        share = max(1, min(MOST_RANKS_A_PROCESS, -(-len(ranks) // (os.cpu_count() or 1))))
        shares = [ranks[start : start + share] for start in range(0, len(ranks), share)]
        waiting = [pool.submit(_rehearse_ranks, path, phase, share) for share in shares]
        done = 0
        try:
            for counted in itertools.chain.from_iterable(future.result() for future in waiting):
                stage, done = counted["stage"], done + 1
                say(f"rank {counted['rank']} (stage {stage}): {counted['seconds']:.0f} s, {done} of {len(ranks)}")
                yield Stage(planned_bytes=planned[stage], planned_flops=planned_flops(spec, stage), **counted)
        finally:
            pool.shutdown(cancel_futures=True)


def _rehearse_ranks(plan: Path, phase: str, ranks: Sequence[int]) -> list[Any]:
    named = ",".join(map(str, ranks))
    words = [sys.executable, "-m", "runbook.training.rehearsal", str(plan), "--phase", phase, "--ranks", named]
    environment = {"OMP_NUM_THREADS": "1", "DS_BUILD_OPS": "0", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    ended = shell.run(words, timeout=SECONDS_A_RANK * len(ranks), env=environment, check=False)
    if ended.exit_code:
        said = "\n".join(line for line in ended.err.splitlines() if "registered at" not in line)  # torch's long lists
        raise ProgramError(
            f"{phase} cannot be rehearsed at rank {named}: the trainer ended with "
            f"{shell.how_it_ended(ended.exit_code)}. Its last words:\n{shell.last_lines(said)}"
        )
    return [json.loads(line) for line in ended.out.splitlines()]


def _gib(size: float) -> str:
    return _digits(size / 2**30)


def _digits(number: float) -> str:
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"
