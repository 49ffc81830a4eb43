"""Checks that the text for training and for validation is long enough for one sample."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from runbook.core.checks import Check, counted, judge
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.plan_file.schema import PhasePlan
from runbook.planning.data_plan import split_shares
from runbook.runs.planned_run import PlannedRun
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.pipeline.tokenize_options import TokenFiles


class Share(NamedTuple):
    """Part of a token file pair, from one fraction of its sequences to another."""

    prefix: str
    use: str
    begin: float
    end: float


def share_checks(run: PlannedRun) -> list[Check]:
    """Check for both training runs that every share of the text is longer than a sample.

    The trainer refuses a shorter share, but only after its job has waited in the queue. There is no
    check if the plan does not know yet which files are held out.
    """
    phase_plans = [run.plan.phases[phase] for phase in (SMOKE, FULL)]
    return [_check_shares(run.folder, plan) for plan in phase_plans if plan.data.train]


def _check_shares(folder: Path, phase_plan: PhasePlan) -> Check:
    sequence_length = phase_plan.model.shape.sequence_length
    short = []
    for share in _shares_read(phase_plan):
        documents, tokens, all_documents = _content(folder, share)
        # A sample also needs the token that follows its sequence.
        if tokens <= sequence_length:
            short.append(
                PhaseMessage.SHARE_OF_DOCUMENTS.fill(
                    use=share.use,
                    documents=documents,
                    all_documents=counted(all_documents, "document"),
                    prefix=Path(share.prefix).name,
                    tokens=counted(tokens, "token"),
                )
            )

    return judge(
        f"{phase_plan.phase}: text for a sample",
        not short,
        "; ".join(short) or "every share is long enough",
        PhaseMessage.SHARE_RULE.fill(sample_tokens=sequence_length + 1),
        PhaseMessage.SHARE_REMEDY.fill(),
        keys=("data.split", "training.eval_interval"),
    )


def _shares_read(phase_plan: PhasePlan) -> Iterator[Share]:
    """Yield the shares that training reads, divided as in `training.token_files`."""
    data = phase_plan.data
    evaluates = phase_plan.evaluation.interval > 0 and phase_plan.evaluation.iterations > 0
    train = 1.0
    validation = 0.0
    if not data.held_out:
        train, validation, _ = split_shares(data.split)
    for source in data.train:
        yield Share(source.prefix, "training", 0.0, train)
        if evaluates and not data.held_out:
            yield Share(source.prefix, "validation", train, train + validation)

    if evaluates:
        for source in data.validation:
            yield Share(source.prefix, "validation", 0.0, 1.0)


def _content(folder: Path, share: Share) -> tuple[int, int, int]:
    """Return documents and tokens in a share, and documents in its token files."""
    files = TokenFiles.existing(folder / share.prefix)
    lengths = IndexedReader(files.bin, files.idx).lengths
    begin = round(share.begin * len(lengths))
    end = round(share.end * len(lengths))
    return end - begin, int(lengths[begin:end].sum(dtype="int64")), len(lengths)
