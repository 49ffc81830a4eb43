"""06-evaluation: how well the weights know language, before the training and after it."""

import importlib.util
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook import params
from runbook.core.checks import Check, counted, judge
from runbook.core.files import write_text
from runbook.core.table import Row, Table
from runbook.display import View, show_text
from runbook.params import Settings
from runbook.phases import report
from runbook.phases.open_phase import OpenPhase, binder, phase_fingerprint
from runbook.phases.trained_model import ask_trainer
from runbook.plan_file.schema import PhasePlan
from runbook.planning import FULL
from runbook.planning.plan import Plan
from runbook.planning.token_files import split_shares
from runbook.records.manifest import note_files
from runbook.results.history import PHENOMENON, events_named, read_events, read_scores
from runbook.runs import run_files
from runbook.runs.run_folder import hold_run
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.tokenizer import load_tokenizer

PHASE = "06-evaluation"
bind = binder(PHASE)
STEP = f"{PHASE}--built-in"
BUILT_IN = "evaluation/built-in.jsonl"
OURS = "runbook"
"""The framework whose weights are read."""
PAIRS_EACH = 20
SEED = 21
HELD_OUT_TOKENS = 2048
"""Of all sources together: some seconds of two cores."""


@dataclass(frozen=True)
class Text:
    """A text to score: what it belongs to, what comes before it, its tokens, and how many bytes it has."""

    what: str
    context: tuple[int, ...]
    ids: tuple[int, ...]
    bytes: int = 0


def minimal_pairs(count: int = PAIRS_EACH) -> Iterator[tuple[str, str, str]]:
    """The name of a phenomenon, a right sentence, and a wrong one; the same pairs every time."""
    content = json.loads(Path(__file__).with_name("minimal_pairs.json").read_text(encoding="utf-8"))
    for name, templates in content["phenomena"].items():
        draw = random.Random(f"{SEED}/{name}")
        seen = set[str]()
        while len(seen) < count:
            words = {slot: draw.choice(choices) for slot, choices in content["words"].items()}
            right, wrong = (template.format(**words) for template in templates)
            if right not in seen:
                seen.add(right)
                yield name, right, wrong


def held_out_texts(folder: Path, settings: Settings, plan: Plan) -> Iterator[Text]:
    """The first documents held out of each source, cut into sequences of the training's length."""
    tokenizer = load_tokenizer(settings.run.data.tokenizer)
    spec = plan.phases[FULL]
    parts = plan.data.parts or (plan.data,)
    end = spec.sampling.end_of_document
    length = spec.model.sequence_length
    train, validation, _ = split_shares(plan.data.split)
    for part in () if plan.data.mock else parts:
        left = HELD_OUT_TOKENS // len(parts)
        for prefix in part.validation if plan.data.held_out else part.train:
            reader = IndexedReader(folder / f"{prefix}.bin", folder / f"{prefix}.idx")
            shares = (0.0, 1.0) if plan.data.held_out else (train, train + validation)
            first, last = (round(share * reader.num_sequences) for share in shares)
            for number in range(first, last):
                ids = [int(token) for token in reader.sequence(number)[: left + 1] if token != end]
                for start in range(0 if end >= 0 else 1, min(len(ids), left), length):
                    text = tuple(ids[start : start + length])
                    before = (ids[start - 1],) if start else (end,)
                    yield Text(part.dataset, before, text, len(tokenizer.decode(text).encode()))
                left -= len(ids)
                if left <= 0:
                    break


def score_built_in(folder: Path, settings: Settings, plan: Plan) -> list[Row]:
    """The built-in set: minimal pairs, and bits per byte of what was held out, by source."""
    tokenizer = load_tokenizer(settings.run.data.tokenizer)
    spec = plan.phases[FULL]
    texts = list(held_out_texts(folder, settings, plan))
    end = spec.sampling.end_of_document
    for name, *sentences in minimal_pairs():
        for ids in map(tuple, map(tokenizer.encode, sentences)):
            texts.append(Text(name, (end,), ids) if end >= 0 else Text(name, ids[:1], ids[1:]))
    resumed = events_named(read_events(folder / spec.log.events, FULL), "resumed")
    weights = ["first", "trained"][
        any(event.iteration == 0 for event in resumed) :
    ]  # imported weights are not drawn
    request = {"weights": weights, "pairs": [(text.context, text.ids) for text in texts]}
    answers = ask_trainer("score", folder, FULL, request, num_processes(spec))["answers"]
    known = [_measures(texts, [likelihood for likelihood, _ in answer]) for answer in answers]
    first = known[0] if known[1:] else {}
    rows: list[Row] = []
    for (what, name), (count, after) in known[-1].items():
        before = first.get((what, name), (0, None))[1]
        rows.append(
            {"what": what, "measure": name, "samples": count, "before": before, "after": after}
        )
    return rows


def num_processes(spec: PhasePlan) -> int:
    """On a CPU one scores, where the training cut nothing; else as many as the training has."""
    is_cut = spec.parallel.tensor * spec.parallel.pipeline > 1 or spec.device != "cpu"
    return spec.parallel.world_size if is_cut else 1


def _measures(
    texts: Sequence[Text], likelihoods: Sequence[float]
) -> dict[tuple[str, str], tuple[int, float]]:
    """By what was scored and the measure: how many samples, and the value."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    known = list(zip(texts, likelihoods, strict=True))
    for source in dict.fromkeys(text.what for text in texts if text.bytes):
        own = [(text, likelihood) for text, likelihood in known if text.what == source]
        nats = -sum(likelihood for _, likelihood in own)
        tokens = sum(len(text.ids) for text, _ in own)
        found[source, "bits per byte"] = (
            len(own),
            nats / math.log(2) / sum(text.bytes for text, _ in own),
        )
        found[source, "perplexity of a token"] = len(own), math.exp(min(nats / tokens, 700))
    sentences = [(text.what, likelihood) for text, likelihood in known if not text.bytes]
    right: dict[str, list[bool]] = {}
    for (name, good), (_, bad) in zip(sentences[::2], sentences[1::2], strict=True):
        right.setdefault(name, []).append(good > bad)
    everything = [one for own in right.values() for one in own]
    found["all minimal pairs", "right (share)"] = len(everything), sum(everything) / len(everything)
    return found | {
        (name, PHENOMENON): (len(own), sum(own) / len(own)) for name, own in right.items()
    }


def measure(open_phase: OpenPhase) -> None:
    """Score the built-in set with the first weights and the trained ones; done once for the same training."""
    is_here = open_phase.settings.site.scheduler == "local"
    show_text(
        measure_built_in(open_phase.folder, open_phase.settings, open_phase.plan, is_here=is_here)
    )


def measure_built_in(folder: Path, settings: Settings, plan: Plan, *, is_here: bool = True) -> str:
    """Score the built-in set on this machine where that is not done; what was done."""
    if (framework := settings.run.training.framework) != OURS:
        return f"Nothing is measured: the weights are {framework}'s own, and only those of our own trainer are read."
    digest = phase_fingerprint(settings, plan, folder, PHASE)
    path = folder / BUILT_IN
    if not (missing := run_files.what_is_missing(folder, STEP, digest)):
        return f"{BUILT_IN}: done, verified."
    mark = run_files.read_mark(folder, STEP)
    for old in (
        folder.glob("evaluation/*.jsonl") if mark and mark.fingerprint != digest else (path,)
    ):
        old.unlink(missing_ok=True)  # scores of an earlier training
    if not is_here or importlib.util.find_spec("torch") is None:
        why = "torch is not installed" if is_here else "this may be a login node"
        return f"Nothing is measured here, as {why}. Call `runbook evaluate {settings.name}` on a node, then this again."
    scores = score_built_in(folder, settings, plan)
    write_text(path, "".join(json.dumps(row) + "\n" for row in scores))
    run_files.write_mark(folder, STEP, 1, digest, [path])
    note_files(folder, [path, run_files.mark_path(folder, STEP)])
    return f"{BUILT_IN}: {missing}, so {len(scores)} scores were measured."


def evaluate(folder: Path) -> Table:
    """Measure what is not measured yet of a run's newest checkpoint; all its scores."""
    settings = params.load(str(folder / "run.yaml"))
    plan = run_files.read_plan_file(folder)
    with hold_run(folder, "evaluating"):
        done = measure_built_in(folder, settings, plan)
    return Table(read_scores(folder), f"Scores of {folder.name}", (done,))


def show_scores(open_phase: OpenPhase) -> View:
    """All scores of the weights, before the training and after it."""
    rows = read_scores(open_phase.folder)
    return View(
        [Table(rows, "Scores", source="evaluation/*.jsonl")] if rows else ["Nothing was measured."]
    )


def finish(open_phase: OpenPhase) -> None:
    """Keep the scores in the record, judge them, and mark the phase done."""
    scores = read_scores(open_phase.folder)
    whens = ("before", "after", "samples")
    open_phase.session.add_results(
        {f"{row['what']}: {row['measure']}, {when}": row[when] for row in scores for when in whens}
    )
    open_phase.check(list(checks(scores)))
    # Where nothing was measured, the next `runbook run` looks for scores again.
    is_whole = scores or open_phase.settings.run.training.framework != OURS
    digest = open_phase.fingerprint if is_whole else "not measured"
    report.finish(open_phase, sorted(open_phase.folder.glob("evaluation/*.jsonl")), digest)


def checks(scores: Sequence[Row]) -> Iterator[Check]:
    """Whether each score is a number, and held-out text is foreseen better than before the training."""
    is_sound = all(math.isfinite(row["after"]) for row in scores)
    yield judge("scores", is_sound, counted(len(scores), "score"), "each is a number")
    yield judge(
        "measured", bool(scores), counted(len(scores), "score"), "at least one", otherwise="warn"
    )
    rule = "fewer bits per byte than with the first weights"
    for row in (
        row for row in scores if row["measure"] == "bits per byte" and row["before"] is not None
    ):
        shown = f"{row['after']:.3f}, {row['before']:.3f} before"
        yield judge(
            f"held-out {row['what']}", row["after"] < row["before"], shown, rule, otherwise="warn"
        )
