"""A run's training rehearsed at full size on this machine: what each stage really needs, beside what the plan says."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from runbook import params
from runbook.core import processes, shell
from runbook.core.errors import ProgramError, RunbookError
from runbook.core.table import Table
from runbook.core.units import show_change, show_quantity
from runbook.params.schema.site import Site
from runbook.params.settings import Settings
from runbook.plan_file.errors import CANNOT_REHEARSE
from runbook.plan_file.json_records import as_json, from_json
from runbook.plan_file.rehearsed_work import RehearsedRank
from runbook.plan_file.schema import PhasePlan
from runbook.planning.cost.iteration import StepModel
from runbook.planning.cost.memory import RESERVE
from runbook.planning.cost.replay import Replay, stage_times
from runbook.planning.cost.step_inputs import memory_of, modelled_device, setup_for
from runbook.planning.layout import FULL, full_choice, smoke_choice
from runbook.planning.plan import Plan, make_plan
from runbook.runs import machine

TOLERANCE = 0.05
"""A larger share between plan and rehearsal is a finding."""
SECONDS_A_RANK = 1800
MOST_RANKS_A_PROCESS = 8
"""Each process imports for six seconds of its core first; progress is told when a process ends."""
_OWN = {"framework": "runbook", "offload": "false"}
_ABSENT = {
    "fp8": "none",
    "overlap_tensor": "false",
    "cuda_graphs": "false",
    "fuse_gradients": "auto",
}
_TRANSFORMER_ENGINE = (
    "Transformer Engine's layers: megatron-core's own are rehearsed, with torch's attention"
)
_DEEPSPEED = "DeepSpeed's path on a GPU: its path on a CPU is, with the attention and the loss that a CPU has"
_FUSED = "fused kernels: a function that torch compiles is counted as one kernel"
Counting = Callable[[Plan, str, Sequence[int]], Iterator[Any]]
"""Counts ranks of a phase of a plan: the JSON that `python -m runbook.training.rehearsal` writes of each."""


class CannotRehearseError(RunbookError):
    """What is installed here cannot say whether the job would work; nothing is said against the job."""


@dataclass(frozen=True)
class Stage(RehearsedRank):
    """One rank of the job: what its rehearsal counted, and the plan's figures for its stage."""

    planned_bytes: int
    planned_flops: int


@dataclass(frozen=True)
class Rehearsal:
    """All stages of one phase."""

    COMPUTED: ClassVar = ("fits", "findings")

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
    replay: Replay | None
    replay_basis: str
    """What the seconds of `replay` rest on, or why there is none."""

    @property
    def fits(self) -> bool:
        """Whether no stage needs more than its device has."""
        return not self.misfits

    @property
    def misfits(self) -> list[str]:
        """Each stage that needs more memory than its device has."""
        there = f"{_gib(self.limit_bytes)} GiB of one {self.device} may be used"
        return [
            f"stage {stage.stage} (rank {stage.rank}) does not fit: it needs {_gib(stage.peak_bytes)} GiB, and {there}"
            for stage in self.stages
            if 0 < self.limit_bytes < stage.peak_bytes
        ]

    @property
    def findings(self) -> list[str]:
        """What a person should look at before booking."""
        found = self.misfits
        for stage in self.stages:
            where = f"stage {stage.stage} (rank {stage.rank})"
            for what, counted, planned in (
                ("memory", stage.peak_bytes, stage.planned_bytes),
                ("FLOPs", stage.flops, stage.planned_flops),
            ):
                if abs(planned - counted) > TOLERANCE * counted:
                    found.append(
                        f"{where}: the plan's {what} is {show_change(planned / counted)} off what was counted"
                    )
        if (replay := self.replay) and abs(
            replay.planned_seconds - replay.seconds
        ) > TOLERANCE * replay.seconds:
            found.append(f"a step takes {replay.text}")
        return found

    def tables(self) -> Iterator[Table]:
        """Memory, work and messages of each stage."""
        yield Table(
            [
                {
                    "stage": stage.stage,
                    "rank": stage.rank,
                    "peak (GiB)": _gib(stage.peak_bytes),
                    "planned (GiB)": _gib(stage.planned_bytes),
                    "plan is off": show_change(stage.planned_bytes / stage.peak_bytes),
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
                    "PFLOP a step": show_quantity("", stage.flops / 1e15),
                    "planned": show_quantity("", stage.planned_flops / 1e15),
                    "operators": stage.operators,
                    "waits for the device": sum(stage.synchronizations.values()),
                    "saves (GiB)": _gib(stage.saved_bytes),
                    "reads to resume (GiB)": _gib(stage.resume_bytes),
                    "holds resuming (GiB)": _gib(stage.resume_peak_bytes),
                    "host at a save (GiB)": _gib(stage.save_host_bytes),
                }
                for stage in self.stages
            ],
            title="Work of one step, and files",
        )
        unknown = Table(
            [{"step": "not replayed", "why": self.replay_basis}], title="Time of one step"
        )
        yield self.replay.table(self.replay_basis) if self.replay else unknown
        yield Table(
            [
                {
                    "stage": stage.stage,
                    "group": sent.group,
                    "operation": sent.op,
                    "messages a step": sent.count,
                    "GiB a step": _gib(sent.bytes),
                }
                for stage in (self.stages[0], *self.stages[-1:] * (len(self.stages) > 1))
                for sent in stage.collectives
            ],
            title="Messages of one step, first and last stage",
        )

    def figures(self) -> dict[str, object]:
        """Pictures: `memory` of the fullest and the emptiest stage, and `schedule`, where a step could be replayed."""
        from runbook.results.figures.plan_figures import memory_course_figure, schedule_figure

        fullest, emptiest = (
            choose(self.stages, key=lambda stage: stage.peak_bytes) for choose in (max, min)
        )
        shown = [fullest, emptiest][: len({fullest.rank, emptiest.rank})]
        figures = {
            "memory": memory_course_figure([as_json(stage) for stage in shown], self.limit_bytes)
        }
        return figures | ({"schedule": schedule_figure(self.replay)} if self.replay else {})

    def save_figures(self, folder: Path) -> list[Path]:
        """Write the pictures to a folder, as SVG and as PNG."""
        from runbook.results.figures.drawing import save

        folder.mkdir(parents=True, exist_ok=True)
        drawn = {
            folder / f"{name}.{kind}": one
            for name, one in self.figures().items()
            for kind in ("svg", "png")
        }
        for path, figure in drawn.items():
            save(figure, path)
        return list(drawn)

    def as_text(self) -> str:
        """All tables, and the findings below them."""
        texts = [table.as_text() for table in self.tables()]
        return "\n\n".join(
            [*texts, "\n".join(self.findings) or "Plan and rehearsal agree within 5 %."]
        )


def has_trainer() -> bool:
    """Whether the trainer could be imported by this Python; nothing is imported."""
    return all(importlib.util.find_spec(name) for name in ("torch", "megatron"))


def usable_bytes(site: Site) -> int:
    """Memory of one device that may be planned with; 0: not known, or a CPU's, which is shared."""
    return 0 if site.hardware.device == "cpu" else round(RESERVE * memory_of(site))


def rehearse_run(
    run: str,
    set_words: Sequence[str] = (),
    *,
    phase: str = "04-training",
    ranks: Sequence[int] = (),
    say: Any = None,
    count: Counting | None = None,
) -> Rehearsal:
    """Rehearse the distinct ranks of one phase; `say` is told of each that is done here, `count` does it elsewhere."""
    if count is None and not has_trainer():
        raise CannotRehearseError(
            "a rehearsal runs the trainer itself, and torch and megatron-core are not both installed here: "
            "pip install 'gpt3-runbook[train]'"
        )
    settings, changed = _own_settings(run, set_words)
    plan = make_plan(settings, machine.measure_machine(settings.site))
    spec = plan.phases[phase]
    chosen = list(ranks) or distinct_ranks(spec)
    outside = [rank for rank in chosen if not 0 <= rank < spec.parallel.world_size]
    if outside:
        raise RunbookError(
            f"--ranks {outside[0]}: this job has ranks 0 to {spec.parallel.world_size - 1}"
        )
    on_cpu = settings.site.hardware.device == "cpu"
    planned = plan.memory[phase].least_by_stage
    if count:
        counted = count(plan, phase, chosen)
    else:
        counted = _count_here(plan, phase, chosen, say or (lambda _: None))
    stages = tuple(
        from_json(
            Stage,
            one
            | {
                "planned_bytes": planned[one["stage"]],
                "planned_flops": planned_flops(spec, one["stage"]),
            },
            name="a stage",
            failure="what was counted cannot be read:",
        )
        for one in counted
    )
    replay, basis = _replayed(settings, plan, phase, stages)
    return Rehearsal(
        run=settings.name,
        phase=phase,
        engine=spec.engine,
        device=spec.device,
        limit_bytes=usable_bytes(settings.site),
        microbatches=spec.batch.num_microbatches,
        changed=changed,
        not_rehearsed=()
        if on_cpu
        else (_DEEPSPEED,)
        if spec.engine == "deepspeed"
        else (_TRANSFORMER_ENGINE, _FUSED),
        stages=stages,
        replay=replay,
        replay_basis=basis,
    )


def _replayed(
    settings: Settings, plan: Plan, phase: str, stages: Sequence[Stage]
) -> tuple[Replay | None, str]:
    """The step on the schedule of all stages and what its seconds rest on; None and why it cannot be."""
    spec = plan.phases[phase]
    choice = (full_choice if phase == FULL else smoke_choice)(settings)
    firsts = {found.stage: found for found in reversed(stages)}
    if len(firsts) < spec.parallel.pipeline:
        return (
            None,
            f"{len(firsts)} of {spec.parallel.pipeline} stages were rehearsed, and a step needs all",
        )
    device = modelled_device(choice)
    if isinstance(device, str):
        return None, device
    model = StepModel(setup_for(choice, device))
    parallel = spec.parallel
    sends = [kind for kind in stages[0].collectives if kind.op == "send"]
    sent = sum(kind.bytes for kind in sends)
    count = sum(kind.count for kind in sends)
    replay = Replay(
        microbatches=spec.batch.num_microbatches,
        send_seconds=sent / count / model.bandwidth(parallel.world_size // parallel.data)
        if count
        else 0.0,
        hides_sends=model.setup.hides_sends,
        waiting_share=model.waiting_share,
        planned_seconds=plan.time[phase].seconds_per_iteration or 0.0,
        planned_parts=plan.time[phase].parts or {},
        stages=tuple(stage_times(stage, firsts[stage].work, model) for stage in sorted(firsts)),
    )
    return replay, f"counted work at the plan's rates for {device.name}"


def _own_settings(run: str, set_words: Sequence[str]) -> tuple[Settings, tuple[str, ...]]:
    """The run as our own trainer would do it, and what was changed for that."""
    settings = params.load(run, set_words=set_words)
    training = settings.run.training
    own = _ABSENT if training.framework == "runbook" else _ABSENT | _OWN
    words = [
        f"training.{key}={value}"
        for key, value in own.items()
        if str(getattr(training, key)).lower() != value
    ]
    return (params.load(run, set_words=[*set_words, *words]) if words else settings), tuple(words)


def distinct_ranks(spec: PhasePlan) -> list[int]:
    """The first rank of each pipeline stage and, with several copies, the job's last: no other holds more."""
    if spec.parallel.data == 1:
        return first_ranks(spec)
    return [*first_ranks(spec), spec.parallel.world_size - 1]


def first_ranks(spec: PhasePlan) -> list[int]:
    """The first rank of each pipeline stage."""
    stages = spec.parallel.pipeline
    return [stage * spec.parallel.world_size // stages for stage in range(stages)]


def planned_flops(spec: PhasePlan, stage: int) -> int:
    """Of one rank of this stage in a step: the plan's formula, and what is computed again."""
    parallel = spec.parallel
    own = spec.parallel.stage_layers(spec.model.layers)[stage]
    model = replace(spec.model, layers=own)
    layers = replace(model, padded_vocabulary=0).flops_per_sequence()
    head = model.flops_per_sequence() - layers
    if spec.recompute == "full":
        again = 1 + spec.tuning.recomputed(own // parallel.virtual_pipeline) / 3
    else:
        again = 1
    mine = layers * again + (head if stage == parallel.pipeline - 1 else 0)
    return round(mine * spec.batch.global_ / parallel.data / parallel.tensor / parallel.context)


def _count_here(plan: Plan, phase: str, ranks: Sequence[int], say: Any) -> Iterator[Any]:
    """A few ranks in a process of their own, as many processes at once as there are cores."""
    with (
        tempfile.TemporaryDirectory(prefix="rehearsal-") as folder,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        share = max(1, min(MOST_RANKS_A_PROCESS, -(-len(ranks) // (os.cpu_count() or 1))))
        shares = [ranks[start : start + share] for start in range(0, len(ranks), share)]
        waiting = [pool.submit(_rehearse_ranks, path, phase, share) for share in shares]
        done = 0
        try:
            for counted in itertools.chain.from_iterable(future.result() for future in waiting):
                done += 1
                where = f"rank {counted['rank']} (stage {counted['stage']})"
                say(f"{where}: {counted['seconds']:.0f} s, {done} of {len(ranks)}")
                yield counted
        finally:  # where a rank failed, or somebody pressed Ctrl-C, nobody waits for the others
            pool.shutdown(wait=False, cancel_futures=True)
            while not processes.wait_until(lambda: all(future.done() for future in waiting), 0.2):
                processes.kill_until_none(lambda: processes.process_tree(folder))


def _rehearse_ranks(plan: Path, phase: str, ranks: Sequence[int]) -> list[Any]:
    named = ",".join(map(str, ranks))
    words = [
        sys.executable,
        "-m",
        "runbook.training.rehearsal",
        str(plan),
        "--phase",
        phase,
        "--ranks",
        named,
    ]
    mark = {processes.JOB_VARIABLE: str(plan.parent)}
    ended = shell.run(words, timeout=SECONDS_A_RANK * len(ranks), env=mark, check=False)
    if ended.exit_code:
        said = "\n".join(
            line for line in ended.err.splitlines() if "registered at" not in line
        )  # torch's long lists
        if (
            ended.exit_code == CANNOT_REHEARSE or ended.exit_code < 0
        ):  # or somebody killed it: too little memory here
            raise CannotRehearseError(
                f"{shell.how_it_ended(ended.exit_code)}: {shell.last_lines(said, 3)}"
            )
        raise ProgramError(
            f"{phase} cannot be rehearsed at rank {named}: the trainer ended with "
            f"{shell.how_it_ended(ended.exit_code)}. Its last words:\n{shell.last_lines(said)}"
        )
    return [json.loads(line) for line in ended.out.splitlines()]


def _gib(size: float) -> str:
    return show_quantity("", size / 2**30)
