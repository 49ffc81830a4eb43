"""06-evaluation: measures how well the weights model language, before and after the training."""

import importlib.util
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runbook.core.checks import Check, counted, judge
from runbook.core.errors import RecordError
from runbook.core.files import write_text
from runbook.core.table import Row, Table
from runbook.display import View, show_text
from runbook.phases.finished_training import (
    finished_check,
    refuse_running_training,
    why_not_finished,
)
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import binder
from runbook.phases.phase_end import end_notebook
from runbook.phases.phase_steps import BUILT_IN, MEASURING, measuring_step, phase_end_work
from runbook.phases.recorded_checks import record_checks
from runbook.phases.steps import PhaseStep, run_only, step
from runbook.phases.trained_model import ask_trainer
from runbook.phases.training_results import read_results
from runbook.plan_file.phase_names import EVALUATION, FULL
from runbook.plan_file.schema import PhasePlan
from runbook.planning.data_plan import split_shares
from runbook.planning.make_plan import Plan
from runbook.records.manifest import note_files
from runbook.records.session import Session
from runbook.results.history import (
    ALL_PAIRS,
    BITS_PER_BYTE,
    PHENOMENON,
    RIGHT_SHARE,
    TOKEN_PERPLEXITY,
    events_named,
    read_events,
    read_scores,
)
from runbook.runs import run_files
from runbook.runs.planned_run import PlannedRun
from runbook.runs.run_folder import hold_run
from runbook.runs.step import StepOfRun
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.tokenizer import Tokenizer, load_tokenizer

PHASE = EVALUATION
END = phase_end_work(PHASE)
bind = binder(PHASE)
OURS = "runbook"
"""The framework whose weights can be scored."""
PAIRS_EACH = 20
SEED = 21
HELD_OUT_TOKENS = 2048
"""Number of held-out tokens from all sources. Scoring them takes a few seconds on two cores."""


@dataclass(frozen=True)
class Text:
    """A text to score: its context, its tokens and its size in bytes."""

    what: str
    context: tuple[int, ...]
    ids: tuple[int, ...]
    bytes: int = 0


def minimal_pairs(count: int = PAIRS_EACH) -> Iterator[tuple[str, str, str]]:
    """Yield a phenomenon, a correct sentence and an incorrect one.

    The pairs are always the same.
    """
    content = json.loads(Path(__file__).with_name("minimal_pairs.json").read_text(encoding="utf-8"))
    for name, templates in content["phenomena"].items():
        draw = random.Random(f"{SEED}/{name}")
        drawn = set[str]()
        while len(drawn) < count:
            slots = {slot: draw.choice(choices) for slot, choices in content["words"].items()}
            right, wrong = (template.format(**slots) for template in templates)
            if right not in drawn:
                drawn.add(right)
                yield name, right, wrong


@dataclass(frozen=True)
class ScoredRun:
    """A run whose weights are scored, known only from the files in its folder."""

    folder: Path
    plan: Plan
    tokenizer_name: str
    """`gpt2`, or the path of the tokenizer."""
    framework: str
    """The program that wrote the weights."""


def read_scored_run(folder: Path) -> ScoredRun:
    """Return the run in a folder. Its model, dataset or site may have left params/."""
    return ScoredRun(
        folder,
        run_files.read_plan_file(folder),
        run_files.tokenizer_of(folder),
        str(run_files.recorded_value(folder, "training.framework")),
    )


def scored_run_of(run: PlannedRun) -> ScoredRun:
    """Return the run that a notebook has opened."""
    settings = run.settings
    framework = settings.run.training.framework
    return ScoredRun(run.folder, run.plan, settings.tokenizer, framework)


def held_out_texts(run: ScoredRun) -> Iterator[Text]:
    """Yield the first held-out documents from each source, in pieces of one sequence or less."""
    plan = run.plan
    if plan.data.mock:
        return
    tokenizer = load_tokenizer(run.tokenizer_name)
    phase_plan = plan.phases[FULL]
    end = phase_plan.sampling.end_of_document
    length = phase_plan.model.shape.sequence_length
    parts = plan.data.parts or (plan.data,)
    for part in parts:
        tokens_left = HELD_OUT_TOKENS // len(parts)
        prefixes = part.validation if plan.data.held_out else part.train
        for document in _held_out_documents(run.folder, plan, prefixes):
            # Take one more token than is scored, because the next sequence needs it as context.
            ids = []
            for token in document[: tokens_left + 1]:
                if token != end:
                    ids.append(int(token))

            # If there is no end-of-document token, the first token is only context, because nothing
            # precedes it.
            first = 0 if end >= 0 else 1
            for start in range(first, min(len(ids), tokens_left), length):
                text = tuple(ids[start : start + length])
                context = (ids[start - 1],) if start else (end,)
                num_bytes = len(tokenizer.decode(text).encode())
                yield Text(part.dataset, context, text, num_bytes)

            tokens_left -= len(ids)
            if tokens_left <= 0:
                break


def _held_out_documents(
    folder: Path,
    plan: Plan,
    prefixes: Sequence[str],
) -> Iterator[NDArray[Any]]:
    """Yield the token ids for each held-out document in these files."""
    for prefix in prefixes:
        reader = IndexedReader(folder / f"{prefix}.bin", folder / f"{prefix}.idx")
        for number in _held_out_range(plan, reader.num_sequences):
            yield reader.sequence(number)


def _held_out_range(plan: Plan, num_sequences: int) -> range:
    """Return the indices of held-out documents in a token file.

    These are all documents if whole files are held out, or else those in the validation split.
    """
    if plan.data.held_out:
        return range(num_sequences)
    train, validation, _ = split_shares(plan.data.split)
    first = round(train * num_sequences)
    last = round((train + validation) * num_sequences)
    return range(first, last)


def score_built_in(run: ScoredRun) -> list[Row]:
    """Score the built-in set: minimal pairs, and bits per byte on held-out text by source."""
    phase_plan = run.plan.phases[FULL]
    tokenizer = load_tokenizer(run.tokenizer_name)
    texts = [*held_out_texts(run), *_sentences_of_pairs(tokenizer, phase_plan)]
    resumed = events_named(read_events(run.folder / phase_plan.log.events, FULL), "resumed")
    # Imported weights were not initialized at random, so there are no initial weights to compare
    # with.
    is_imported = any(event.iteration == 0 for event in resumed)
    weights = ["first", "trained"]
    if is_imported:
        weights = ["trained"]
    request = {"weights": weights, "pairs": [(text.context, text.ids) for text in texts]}
    reply = ask_trainer(
        "score",
        run.folder,
        FULL,
        request,
        num_processes(phase_plan),
    )
    scores = []
    for scored_pairs in reply["answers"]:
        likelihoods = [likelihood for likelihood, _ in scored_pairs]
        scores.append(_measures(texts, likelihoods))

    trained = scores[-1]
    first = {} if is_imported else scores[0]
    rows: list[Row] = []
    for key, (num_samples, after) in trained.items():
        source, measure_name = key
        before = None
        if key in first:
            _, before = first[key]
        rows.append(
            {
                "what": source,
                "measure": measure_name,
                "samples": num_samples,
                "before": before,
                "after": after,
                "iteration": reply["iteration"],
            }
        )

    return rows


def _sentences_of_pairs(tokenizer: Tokenizer, phase_plan: PhasePlan) -> Iterator[Text]:
    """Yield both sentences in each minimal pair, the correct one first."""
    end = phase_plan.sampling.end_of_document
    for phenomenon, *sentences in minimal_pairs():
        for sentence in sentences:
            ids = tuple(tokenizer.encode(sentence))
            if end >= 0:
                yield Text(phenomenon, (end,), ids)
            else:
                yield Text(phenomenon, ids[:1], ids[1:])


def num_processes(spec: PhasePlan) -> int:
    """Return how many ranks score.

    On a CPU, a single rank scores unless the training split the model. In all other cases, as many
    ranks score as trained.
    """
    is_cut = spec.parallel.tensor * spec.parallel.pipeline > 1
    if is_cut or spec.device != "cpu":
        return spec.parallel.world_size
    return 1


def _measures(
    texts: Sequence[Text], likelihoods: Sequence[float]
) -> dict[tuple[str, str], tuple[int, float]]:
    """Return (sample count, value) for each pair (scored text, measure)."""
    scored = list(zip(texts, likelihoods, strict=True))
    measures: dict[tuple[str, str], tuple[int, float]] = {}
    for source in dict.fromkeys(text.what for text in texts if text.bytes):
        of_source = []
        for text, likelihood in scored:
            if text.what == source:
                of_source.append((text, likelihood))

        num_texts = len(of_source)
        nats = -sum(likelihood for _, likelihood in of_source)
        num_tokens = sum(len(text.ids) for text, _ in of_source)
        num_bytes = sum(text.bytes for text, _ in of_source)
        measures[source, BITS_PER_BYTE] = num_texts, nats / math.log(2) / num_bytes
        # exp(710) overflows a double.
        perplexity = math.exp(min(nats / num_tokens, 700))
        measures[source, TOKEN_PERPLEXITY] = num_texts, perplexity

    return measures | _pair_measures(scored)


def _pair_measures(
    scored: Sequence[tuple[Text, float]],
) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the share of minimal pairs in which the correct sentence is more likely.

    The first value is for all pairs, followed by a value for each phenomenon.
    """
    sentences = []
    for text, likelihood in scored:
        if not text.bytes:
            sentences.append((text.what, likelihood))

    is_right: dict[str, list[bool]] = {}
    for (name, right), (_, wrong) in zip(sentences[::2], sentences[1::2], strict=True):
        is_right.setdefault(name, []).append(right > wrong)
    num_pairs = sum(map(len, is_right.values()))
    num_right = sum(map(sum, is_right.values()))
    measures = {(ALL_PAIRS, RIGHT_SHARE): (num_pairs, num_right / num_pairs)}
    for name, pairs in is_right.items():
        measures[name, PHENOMENON] = len(pairs), sum(pairs) / len(pairs)
    return measures


@step(takes=run_only, work=MEASURING)
def measure(run: PlannedRun) -> None:
    """Score the built-in set with the initial weights and with the trained ones.

    Do this once per training run.
    """
    is_here = run.settings.site.scheduler == "local"
    show_text(measure_built_in(scored_run_of(run), is_here=is_here))


def measure_built_in(run: ScoredRun, *, is_here: bool = True) -> str:
    """Score the built-in set on this machine unless that is already done.

    Return a sentence that describes the result.
    """
    if run.framework != OURS:
        return (
            f"Nothing is scored, because the weights were written by {run.framework}, and only "
            "weights of our own trainer can be read."
        )

    measuring = measuring_step(run.folder, run.plan)
    missing = measuring.why_not_done()
    if not missing:
        return f"{BUILT_IN}: done, verified."
    _remove_old_scores(measuring)
    reason = ""
    if not is_here:
        reason = "this may be a login node"
    elif importlib.util.find_spec("torch") is None:
        reason = "torch is not installed"

    if reason:
        return (
            f"Nothing is measured here, because {reason}. Call `runbook evaluate {run.folder.name}` "
            "on a compute node, then run this again."
        )

    scores = score_built_in(run)
    path = run.folder / BUILT_IN
    write_text(path, "".join(json.dumps(row) + "\n" for row in scores))
    measuring.mark_done()
    note_files(run.folder, [path, measuring.marker_path])
    return f"{BUILT_IN}: {missing}, so {len(scores)} scores were measured."


def _remove_old_scores(measuring: StepOfRun) -> None:
    """Remove our own scores and, if the trained model has changed, scores from every program."""
    folder = measuring.run_folder
    marker = measuring.marker()
    if marker and marker.fingerprint != measuring.fingerprint:
        for scores in folder.glob("evaluation/*.jsonl"):
            scores.unlink(missing_ok=True)
    else:
        (folder / BUILT_IN).unlink(missing_ok=True)


def _is_measured(run: ScoredRun) -> bool:
    """Return whether nothing is left to measure, or nothing can be measured."""
    return run.framework != OURS or not measuring_step(run.folder, run.plan).why_not_done()


def evaluate(folder: Path) -> Table:
    """Compute missing scores for the newest checkpoint, and return all scores."""
    run = read_scored_run(folder)
    if _is_measured(run):
        # Nothing is written, so the scores of a run in a read-only folder can be shown.
        done = measure_built_in(run)
    else:
        with hold_run(folder, "evaluating"):
            done = measure_built_in(run)
    return Table(read_scores(folder), f"Scores of {folder.name}", (done,))


@step(takes=lambda opened: (opened.folder,))
def show_scores(folder: Path) -> View:
    """Return all scores for the weights before and after training."""
    rows = read_scores(folder)
    if not rows:
        return View(["Nothing was measured."])
    return View([Table(rows, "Scores", source="evaluation/*.jsonl")])


@step(takes=lambda opened: (opened.run, opened.session), work=END)
def finish(run: PlannedRun, session: Session) -> None:
    """Store the scores in the record, check them, and mark the phase done.

    While the training job is running, raise `JobError`: newer weights will have other scores.
    Raise `RecordError` if the scores are those of earlier weights.
    """
    refuse_running_training(run, FULL, waiting=PHASE)
    missing = MEASURING.of(run).why_not_done()
    if missing and (run.folder / BUILT_IN).exists():
        raise RecordError(PhaseMessage.SCORES_OF_OTHER_WEIGHTS, phase=PHASE, missing=missing)

    scores = read_scores(run.folder)
    results = {}
    for row in scores:
        for column in ("before", "after", "samples"):
            results[f"{row['what']}: {row['measure']}, {column}"] = row[column]

    iterations = {row["iteration"] for row in scores if row["iteration"] is not None}
    if iterations:
        results["scored iteration"] = max(iterations)
    session.add_results(results)
    all_checks = list(checks(scores))
    if scores and why_not_finished(run, FULL):
        all_checks.append(finished_check(run, read_results(run.folder, run.plan, FULL)))

    record_checks(session, all_checks)
    repeat_because = ""
    if not scores and run.settings.run.training.framework == OURS:
        # If nothing was measured, the next `runbook run` looks for scores again.
        repeat_because = "not measured"

    end_notebook(END, run, session, repeat_because)


def checks(scores: Sequence[Row]) -> Iterator[Check]:
    """Check that each score is a number.

    Also check that training has made held-out text more likely.
    """
    num_scores = counted(len(scores), "score")
    is_sound = all(math.isfinite(row["after"]) for row in scores)
    yield judge("scores", is_sound, num_scores, "each is a number")
    yield judge(
        "measured",
        bool(scores),
        num_scores,
        "at least one",
        otherwise="warn",
    )
    rule = "fewer bits per byte than with the initial weights"
    for row in scores:
        if row["measure"] != BITS_PER_BYTE or row["before"] is None:
            continue
        name = f"held-out {row['what']}"
        value = PhaseMessage.SCORE_AND_BEFORE.fill(after=row["after"], before=row["before"])
        yield judge(
            name,
            row["after"] < row["before"],
            value,
            rule,
            otherwise="warn",
        )


STEPS: tuple[PhaseStep[Any], ...] = (measure, show_scores, finish)
