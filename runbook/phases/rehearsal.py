"""Dry-runs training at full size on this machine.

The dry run shows what each stage really requires, next to figures from the plan.
"""

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
from runbook.core.table import Row, Table
from runbook.core.units import show_change, show_quantity
from runbook.params.schema.site import Site
from runbook.params.settings import Settings
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.errors import CANNOT_REHEARSE
from runbook.plan_file.json_records import as_json, from_json
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.rehearsed_work import RehearsedRank
from runbook.plan_file.schema import PhasePlan
from runbook.planning.choice import Choice, full_choice, smoke_choice
from runbook.planning.cost.counted_step import Replay, stage_times
from runbook.planning.cost.iteration import StepModel
from runbook.planning.cost.memory import RESERVE, workspace_bytes
from runbook.planning.cost.step_inputs import memory_of, modelled_device, setup_for
from runbook.planning.make_plan import Plan, make_plan
from runbook.runs import this_machine

TOLERANCE = 0.05
"""A relative difference between plan and dry run above this is reported as a finding."""
SECONDS_A_RANK = 1800
MOST_RANKS_A_PROCESS = 8
"""Maximum number of ranks per process.

The imports in each process keep a core busy for six seconds. Progress is reported when a process
ends.
"""
_OWN = {"framework": "runbook", "offload": "false"}
_ABSENT = {
    "fp8": "none",
    "overlap_tensor": "false",
    "cuda_graphs": "false",
    "fuse_gradients": "auto",
}
_TRANSFORMER_ENGINE = (
    "Transformer Engine's layers: megatron-core's layers are rehearsed, with torch's attention"
)
_DEEPSPEED = (
    "DeepSpeed's path on a GPU: its path on a CPU is rehearsed, with the CPU's attention and loss"
)
_FUSED = "fused kernels: a function that torch compiles is counted as one kernel"
Counting = Callable[[Plan, str, Sequence[int]], Iterator[Any]]
"""A function used to dry-run these ranks for a phase in a plan.

It yields the JSON that `python -m runbook.training.rehearsal` prints for each rank.
"""


class CannotRehearseError(RunbookError):
    """Raised if this machine cannot tell whether the job would work, so the job is not rejected."""


@dataclass(frozen=True)
class Stage(RehearsedRank):
    """A rank in the job, with counts from its dry run and the plan for its stage."""

    planned_bytes: int
    """Planned memory without cuBLAS workspaces, which a dry run does not allocate."""
    planned_flops: int


@dataclass(frozen=True)
class Rehearsal:
    """A dry run over all stages in one phase."""

    COMPUTED: ClassVar = ("fits", "findings")

    run: str
    phase: str
    engine: str
    device: str
    limit_bytes: int
    """Memory on one device that a plan may use; 0 if unknown."""
    microbatches: int
    """How many micro-batches a whole step has."""
    changed: tuple[str, ...]
    """Settings changed to let the dry run use our own trainer."""
    not_rehearsed: tuple[str, ...]
    stages: tuple[Stage, ...]
    replay: Replay | None
    replay_basis: str
    """What the times in `replay` are based on, or the reason why there are no times."""

    @property
    def fits(self) -> bool:
        """Whether every stage fits into device memory."""
        return not self.misfits

    @property
    def misfits(self) -> list[str]:
        """A sentence for each stage that needs more memory than its device has."""
        misfits = []
        for stage in self.stages:
            if 0 < self.limit_bytes < stage.peak_bytes:
                misfits.append(
                    PhaseMessage.STAGE_DOES_NOT_FIT.fill(
                        stage=stage.stage,
                        rank=stage.rank,
                        peak_bytes=_gib(stage.peak_bytes),
                        limit=_gib(self.limit_bytes),
                        device=self.device,
                    )
                )

        return misfits

    @property
    def findings(self) -> list[str]:
        """The findings for the user to read before requesting nodes."""
        findings = self.misfits
        for stage in self.stages:
            where = f"stage {stage.stage} (rank {stage.rank})"
            for quantity, counted, planned in (
                ("memory", stage.peak_bytes, stage.planned_bytes),
                ("FLOPs", stage.flops, stage.planned_flops),
            ):
                if abs(planned - counted) > TOLERANCE * counted:
                    change = show_change(planned / counted)
                    findings.append(
                        f"{where}: the plan's {quantity} differs by {change} from the counted value"
                    )

        if self.replay:
            difference_seconds = abs(self.replay.planned_seconds - self.replay.seconds)
            if difference_seconds > TOLERANCE * self.replay.seconds:
                findings.append(f"a step takes {self.replay.text}")

        return findings

    def tables(self) -> Iterator[Table]:
        """Tables with memory, work and communication for each stage."""
        yield self._memory_table()
        yield Table(
            [_work_row(stage) for stage in self.stages],
            title="Work of one step, and files",
        )
        if self.replay:
            yield self.replay.table(self.replay_basis)
        else:
            not_replayed = {"step": "not replayed", "why": self.replay_basis}
            yield Table([not_replayed], title="Time of one step")

        yield self._messages_table()

    def _memory_table(self) -> Table:
        """Memory for each stage by component, and what the dry run left out."""
        notes = [f"Set for the rehearsal: {change}" for change in self.changed]
        notes.append(
            f"{self.stages[0].microbatches} of {self.microbatches} micro-batches were run; each "
            "of the others adds the same work and does not change the peak"
        )
        notes += [PhaseMessage.NOT_REHEARSED.fill(part=part) for part in self.not_rehearsed]
        rows = [_memory_row(stage) for stage in self.stages]
        return Table(
            rows, title=PhaseMessage.MEMORY_OF_DEVICE.fill(device=self.device), notes=notes
        )

    def _messages_table(self) -> Table:
        """Collectives and sends in the first and the last stage.

        A single stage is listed once, even if several of its ranks were rehearsed.
        """
        ends = [self.stages[0]]
        if self.stages[-1].stage != self.stages[0].stage:
            ends.append(self.stages[-1])
        rows = []
        for stage in ends:
            for messages in stage.collectives:
                rows.append(
                    {
                        "stage": stage.stage,
                        "group": messages.group,
                        "operation": messages.op,
                        "messages a step": messages.count,
                        "GiB a step": _gib(messages.bytes),
                    }
                )

        return Table(rows, title="Messages of one step, first and last stage")

    def figures(self) -> dict[str, object]:
        """Return the figures `memory`, for the fullest and the emptiest stage, and `schedule`.

        The schedule is included if a step could be replayed.
        """
        from runbook.results.figures.plan_figures import memory_course_figure, schedule_figure

        fullest = max(self.stages, key=lambda stage: stage.peak_bytes)
        emptiest = min(self.stages, key=lambda stage: stage.peak_bytes)
        drawn_stages = [as_json(fullest)]
        if emptiest.rank != fullest.rank:
            drawn_stages.append(as_json(emptiest))
        figures = {"memory": memory_course_figure(drawn_stages, self.limit_bytes)}
        if self.replay:
            figures["schedule"] = schedule_figure(self.replay)
        return figures

    def save_figures(self, folder: Path) -> list[Path]:
        """Write the figures to a folder, as SVG and as PNG."""
        from runbook.results.figures.drawing import save

        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, figure in self.figures().items():
            for kind in ("svg", "png"):
                path = folder / f"{name}.{kind}"
                save(figure, path)
                paths.append(path)

        return paths

    def as_text(self) -> str:
        """Return all tables, followed by the findings."""
        texts = [table.as_text() for table in self.tables()]
        findings = "\n".join(self.findings) or "Plan and rehearsal agree within 5 %."
        return "\n\n".join([*texts, findings])


def _memory_row(stage: Stage) -> Row:
    """Return the row for a stage in the memory table."""
    row = {
        "stage": stage.stage,
        "rank": stage.rank,
        "peak (GiB)": _gib(stage.peak_bytes),
        "planned (GiB)": _gib(stage.planned_bytes),
        "plan is off": show_change(stage.planned_bytes / stage.peak_bytes),
    }
    for part, num_bytes in stage.parts.items():
        row[f"{part} (GiB)"] = _gib(num_bytes)
    row["fullest in"] = stage.peak_moment
    return row


def _work_row(stage: Stage) -> Row:
    """Return the row for a stage in the table about work per step."""
    return {
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


def has_trainer() -> bool:
    """Return whether this Python could import the trainer. Nothing is imported."""
    return all(importlib.util.find_spec(name) for name in ("torch", "megatron"))


def usable_bytes(site: Site) -> int:
    """Return how much memory a plan may use on one device.

    The result is 0 if the memory is unknown, and for a CPU, because its memory is shared.
    """
    if site.hardware.device == "cpu":
        return 0
    return round(RESERVE * memory_of(site))


def rehearse_run(
    run: str,
    set_words: Sequence[str] = (),
    *,
    phase: str = FULL,
    ranks: Sequence[int] = (),
    say: Any = None,
    count: Counting | None = None,
) -> Rehearsal:
    """Dry-run the distinct ranks in a phase.

    `say` is called for each rank that runs here. If `count` is given, it does the counting, for
    example in a job.
    """
    if count is None and not has_trainer():
        raise CannotRehearseError(PhaseMessage.NO_TRAINER_TO_REHEARSE)

    settings, changed = _own_settings(run, set_words)
    plan = make_plan(settings, this_machine.measure_machine(settings.site))
    spec = plan.phases[phase]
    chosen = list(ranks) or distinct_ranks(spec)
    outside = [rank for rank in chosen if not 0 <= rank < spec.parallel.world_size]
    if outside:
        raise RunbookError(
            PhaseMessage.RANK_OUTSIDE_JOB,
            outside=outside[0],
            world_size=spec.parallel.world_size - 1,
        )

    if count:
        counted_ranks = count(plan, phase, chosen)
    else:
        counted_ranks = _count_here(plan, phase, chosen, say or (lambda _: None))

    workspaces = workspace_bytes(_choice_of(settings, phase))
    stages = tuple(_planned_stage(plan, phase, counted, workspaces) for counted in counted_ranks)
    replay, basis = _replayed(settings, plan, phase, stages)
    return Rehearsal(
        run=settings.name,
        phase=phase,
        engine=spec.engine,
        device=spec.device,
        limit_bytes=usable_bytes(settings.site),
        microbatches=spec.batch.num_microbatches,
        changed=changed,
        not_rehearsed=_not_rehearsed(settings.site, spec),
        stages=stages,
        replay=replay,
        replay_basis=basis,
    )


def _choice_of(settings: Settings, phase: str) -> Choice:
    """Return the choice for a training phase."""
    return full_choice(settings) if phase == FULL else smoke_choice(settings)


def _planned_stage(plan: Plan, phase: str, counted: Any, workspaces: int) -> Stage:
    """Return the counts from the dry run for a rank, together with the plan for its stage."""
    stage = counted["stage"]
    planned = {
        "planned_bytes": plan.memory[phase].least_by_stage[stage] - workspaces,
        "planned_flops": planned_flops(plan.phases[phase], stage),
    }
    failure = "the counts of the dry run cannot be read:"
    return from_json(Stage, counted | planned, name="a stage", failure=failure)


def _not_rehearsed(site: Site, phase_plan: PhasePlan) -> tuple[str, ...]:
    """Return the parts of the job that a dry run on this CPU leaves out."""
    if site.hardware.device == "cpu":
        return ()
    if phase_plan.engine == "deepspeed":
        return (_DEEPSPEED,)
    return (_TRANSFORMER_ENGINE, _FUSED)


def _replayed(
    settings: Settings,
    plan: Plan,
    phase: str,
    stages: Sequence[Stage],
) -> tuple[Replay | None, str]:
    """Replay a step on the schedule for all stages.

    Return the replay and what its times are based on, or None and the reason why there is no
    replay.
    """
    phase_plan = plan.phases[phase]
    parallel = phase_plan.parallel
    choice = _choice_of(settings, phase)
    # If a stage has more than one rank, the first one represents it.
    first_of_stage = {stage.stage: stage for stage in reversed(stages)}
    if len(first_of_stage) < parallel.pipeline:
        reason = (
            f"{len(first_of_stage)} of {parallel.pipeline} stages were rehearsed, "
            "but a step needs all of them"
        )
        return None, reason

    device = modelled_device(choice)
    if isinstance(device, str):
        return None, device
    model = StepModel(setup_for(choice, device))
    times = []
    for index in sorted(first_of_stage):
        times.append(stage_times(index, first_of_stage[index].work, model))

    replay = Replay(
        microbatches=phase_plan.batch.num_microbatches,
        send_seconds=_seconds_of_a_send(stages[0], phase_plan, model),
        hides_sends=model.setup.hides_sends,
        waiting_share=model.waiting_share,
        planned_seconds=plan.time[phase].seconds_per_iteration or 0.0,
        planned_parts=plan.time[phase].parts or {},
        stages=tuple(times),
    )
    return replay, f"counted work at the plan's rates for {device.name}"


def _seconds_of_a_send(stage: Stage, phase_plan: PhasePlan, model: StepModel) -> float:
    """Return the mean time for a point-to-point send from this stage, or 0 if it sends nothing."""
    sends = [kind for kind in stage.collectives if kind.op == "send"]
    num_sends = sum(kind.count for kind in sends)
    if num_sends == 0:
        return 0.0
    mean_bytes = sum(kind.bytes for kind in sends) / num_sends
    parallel = phase_plan.parallel
    return mean_bytes / model.bandwidth(parallel.world_size // parallel.data)


def _own_settings(run: str, set_words: Sequence[str]) -> tuple[Settings, tuple[str, ...]]:
    """Load the run as if it used our own trainer.

    Return the settings, and the changes that were needed.
    """
    settings = params.load(run, set_words=set_words)
    training = settings.run.training
    needed = dict(_ABSENT)
    if training.framework != "runbook":
        needed |= _OWN
    if settings.site.hardware.device != "cpu":
        # Triton kernels run only on a GPU, so layers from megatron-core are counted and planned
        # instead.
        needed["kernels"] = "plain"

    changes = []
    for key, value in needed.items():
        if str(getattr(training, key)).lower() != value:
            changes.append(f"training.{key}={value}")

    if changes:
        settings = params.load(run, set_words=[*set_words, *changes])
    return settings, tuple(changes)


def distinct_ranks(spec: PhasePlan) -> list[int]:
    """Return the first rank in each pipeline stage and, if there are replicas, the last rank.

    No other rank needs more memory.
    """
    if spec.parallel.data == 1:
        return first_ranks(spec)
    return [*first_ranks(spec), spec.parallel.world_size - 1]


def first_ranks(spec: PhasePlan) -> list[int]:
    """Return the first rank in each pipeline stage."""
    stages = spec.parallel.pipeline
    return [stage * spec.parallel.world_size // stages for stage in range(stages)]


def planned_flops(phase_plan: PhasePlan, stage: int) -> int:
    """Return the FLOPs planned for one rank in this stage per step, including recomputation."""
    parallel = phase_plan.parallel
    num_layers = parallel.stage_layers(phase_plan.model.shape.layers)[stage]
    stage_shape = replace(phase_plan.model.shape, layers=num_layers)
    # With no vocabulary there is no output layer, so only the layers' work remains.
    layer_flops = replace(stage_shape, padded_vocabulary=0).flops_per_sequence()
    head_flops = stage_shape.flops_per_sequence() - layer_flops
    if phase_plan.recompute == "full":
        # A forward pass is a third of the FLOPs in the layers.
        recomputed = phase_plan.tuning.recomputed(num_layers // parallel.virtual_pipeline)
        flops_per_sequence = layer_flops * (1 + recomputed / 3)
    else:
        flops_per_sequence = layer_flops

    if stage == parallel.pipeline - 1:
        flops_per_sequence += head_flops
    flops_per_step = flops_per_sequence * phase_plan.batch.global_
    return round(flops_per_step / parallel.data / parallel.tensor / parallel.context)


def _count_here(
    plan: Plan,
    phase: str,
    ranks: Sequence[int],
    say: Any,
) -> Iterator[Any]:
    """Dry-run the ranks in groups, with a process for each group.

    As many processes run at once as there are cores.
    """
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
        finally:
            # If a rank failed or the user pressed Ctrl-C, do not wait for the other ranks.
            pool.shutdown(wait=False, cancel_futures=True)
            while not processes.wait_until(lambda: all(future.done() for future in waiting), 0.2):
                processes.kill_until_none(lambda: processes.process_tree(folder))


def _rehearse_ranks(plan: Path, phase: str, ranks: Sequence[int]) -> list[Any]:
    """Dry-run some ranks in a separate process, and return the counts for each."""
    rank_list = ",".join(map(str, ranks))
    argv = [
        *(sys.executable, "-m", "runbook.training.rehearsal", str(plan)),
        *("--phase", phase),
        *("--ranks", rank_list),
    ]
    job_variable = {processes.JOB_VARIABLE: str(plan.parent)}
    ended = shell.run(
        argv,
        timeout=SECONDS_A_RANK * len(ranks),
        env=job_variable,
        check=False,
    )
    if not ended.exit_code:
        return [json.loads(line) for line in ended.out.splitlines()]
    # Leave out long lists from torch, which would hide the error.
    lines = [line for line in ended.err.splitlines() if "registered at" not in line]
    errors = "\n".join(lines)
    # The system or a user killed the process, usually because this machine has too little memory.
    was_killed = ended.exit_code < 0
    if ended.exit_code == CANNOT_REHEARSE or was_killed:
        raise CannotRehearseError(
            f"{shell.how_it_ended(ended.exit_code)}: {shell.last_lines(errors, 3)}"
        )

    raise ProgramError(
        PhaseMessage.REHEARSAL_FAILED,
        phase=phase,
        rank_list=rank_list,
        exit_code=shell.how_it_ended(ended.exit_code),
        errors=shell.last_lines(errors),
    )


def _gib(size: float) -> str:
    return show_quantity("", size / 2**30)
