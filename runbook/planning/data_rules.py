"""Rules for the training text: files, blend, sources, epochs, tokenizer and vocabulary."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from runbook.core.checks import Check, judge
from runbook.core.units import show_bytes, show_count
from runbook.params.schema.entries import TOKENIZED
from runbook.params.schema.value_types import parse_names
from runbook.params.settings import Settings
from runbook.planning.data_plan import (
    BYTES_OF_TEXT_PER_TOKEN,
    GPT2_END_OF_DOCUMENT,
    BlendPart,
    DataPlan,
    TextFiles,
    split_shares,
)
from runbook.planning.messages import PlanningMessage

VOCABULARY_CHECK = "vocabulary of the tokenizer"
"""Name used for the check that the model has a row for every token id."""

LARGE_VOCABULARY = 1.25
"""A vocabulary more than this many times as large as the tokenizer's is probably a mistake.

Padding adds at most 2 % (Megatron: 128 x tensor).
"""

SPARE_TOKENS = 1024
"""This many unused rows are allowed without a warning, for rounding and special tokens."""


def check_data(settings: Settings, plan: DataPlan) -> list[Check]:
    """Check all rules for files that do not depend on how long the run is."""
    if plan.mock:
        return []
    files = _held_out(plan) if plan.held_out else _split(settings, plan)
    return [
        files,
        *_blend(plan.parts),
        *_sources(settings),
        *_data_job(settings),
        *_tokenizer(settings),
    ]


FEW_EPOCHS = 4
"""Text may be read this often with almost no loss against fresh text (Muennighoff et al. 2023,
"Scaling Data-Constrained Language Models", arXiv 2305.16264).
"""


def check_epochs(
    phase: str,
    tokens: int,
    plan: DataPlan,
    files: Mapping[str, TextFiles] = MappingProxyType({}),
) -> list[Check]:
    """Check whether training on this many tokens would read any text more than once.

    In a blend, the text that is read most often is checked. `files` has the files of texts whose
    tokens are not counted yet. An estimate from their size leaves the verdict unknown, but it warns
    if a text would be read more than a few times.
    """
    if plan.mock:
        return []
    name = f"{phase}: text read once"
    rule = PlanningMessage.READ_ONCE_RULE.fill()
    texts = [_with_estimate(text, files) for text in _training_texts(plan)]
    for text in texts:
        if not text.tokens:
            if plan.parts:
                count = f"the count of {text.dataset}"
            else:
                count = "the text's own count"

            value = f"{tokens:,} tokens wanted; {count} is unknown"
            return [Check(name, "unknown", value, rule)]

    total_weight = sum(text.weight for text in texts)
    epochs = [(tokens * text.weight / total_weight / text.tokens, text.dataset) for text in texts]
    most_epochs, most_read = max(epochs)
    if plan.parts:
        repeats = []
        for times, dataset in epochs:
            repeats.append(PlanningMessage.TEXT_READ.fill(text=dataset, epochs=times))
        value = PlanningMessage.TOKENS_READ_BY_TEXT.fill(
            tokens=show_count(tokens),
            repeats=", ".join(repeats),
        )
        remedy = PlanningMessage.TAKE_MORE_OF_TEXT.fill(text=most_read)
    else:
        value = PlanningMessage.TOKENS_READ.fill(
            tokens=show_count(tokens),
            available=show_count(texts[0].tokens),
            epochs=most_epochs,
        )
        remedy = PlanningMessage.TAKE_MORE_TEXT.fill()

    estimated = [text.files for text in texts if text.files]
    if estimated:
        value = _as_estimate(value, estimated)
        verdict = "warn" if most_epochs > FEW_EPOCHS else "unknown"
        return [Check(name, verdict, value, rule, remedy if verdict == "warn" else "")]

    return [
        judge(
            name,
            most_epochs <= 1,
            value,
            rule,
            remedy,
            otherwise="warn",
        )
    ]


def _as_estimate(value: str, estimated: Sequence[TextFiles]) -> str:
    """Return how often text is read, and that this is an estimate from the size of its files."""
    file_bytes = sum(files.file_bytes for files in estimated)
    is_compressed = any(files.text_bytes > files.file_bytes for files in estimated)
    return PlanningMessage.ESTIMATED_FROM_FILES.fill(
        value=value,
        size=show_bytes(file_bytes),
        files="text, some compressed" if is_compressed else "text",
    )


class _TrainingText(NamedTuple):
    """A text with its weight in the blend and the number of training tokens (0 if unknown)."""

    dataset: str
    weight: float
    tokens: float
    # Files from which the tokens are estimated; None if the tokens are counted or unknown
    files: TextFiles | None = None


def _with_estimate(text: _TrainingText, files: Mapping[str, TextFiles]) -> _TrainingText:
    """Return the text with estimated tokens, if they are unknown but its files are not."""
    text_files = files.get(text.dataset)
    if text.tokens or text_files is None:
        return text
    return text._replace(tokens=text_files.text_bytes / BYTES_OF_TEXT_PER_TOKEN, files=text_files)


def _training_texts(plan: DataPlan) -> list[_TrainingText]:
    if not plan.parts:
        return [_TrainingText(plan.dataset, 1.0, plan.estimated_tokens * plan.train_share)]
    training_texts: list[_TrainingText] = []
    for part in plan.parts:
        training_texts.append(
            _TrainingText(part.dataset, part.weight, part.estimated_tokens * part.train_share)
        )

    return training_texts


def _blend(parts: Sequence[BlendPart]) -> Iterator[Check]:
    """Check that no file is in a blend twice, even under different names."""
    if not parts:
        return
    uses = Counter[str]()
    for part in parts:
        uses.update((*part.train, *part.validation, *part.test))
    twice = sorted(prefix for prefix, count in uses.items() if count > 1)
    total_weight = sum(part.weight for part in parts)
    shares = ", ".join(f"{part.dataset} {part.weight / total_weight:.1%}" for part in parts)
    value = PlanningMessage.SAMPLES_BY_TEXT.fill(shares=shares)
    if twice:
        value += PlanningMessage.FILES_TWICE.fill(files=", ".join(twice))
    yield judge(
        "data blend",
        not twice,
        value,
        "each file is in the blend once",
        "Remove one of the datasets that share a file from data.blend, and add its weight to the "
        "other's.",
        keys=("data.blend",),
    )


def _data_job(settings: Settings) -> Iterator[Check]:
    """Check that nodes, tasks and arrays are set only if the site has a queue.

    Without a queue, data.workers is set instead.
    """
    job = settings.run.jobs.data
    counts = {"nodes": job.nodes, "tasks_per_node": job.tasks_per_node, "array": job.array}
    shared = []
    for name, count in counts.items():
        if count > 1:
            shared.append(f"jobs.data.{name}={count}")

    if not shared:
        return
    yield judge(
        "shares of the text",
        settings.site.scheduler != "local",
        ", ".join(shared),
        "only a queue starts several jobs or tasks that share the text",
        f"Leave out {', '.join(shared)} here; data.workers sets the number of processes.",
        keys=(*(f"jobs.data.{name}" for name in counts), "data.workers"),
    )


def _sources(settings: Settings) -> Iterator[Check]:
    """Check that sources are kept or dropped, not both, and only in text that is tokenized."""
    data = settings.run.data
    keep = parse_names(data.keep_sources)
    drop = parse_names(data.drop_sources)
    if not keep and not drop:
        return
    value = f"kept: {', '.join(keep) or 'all'}; dropped: {', '.join(drop) or 'none'}"
    both = sorted(set(keep) & set(drop))
    yield judge(
        "sources of the text",
        not both,
        value,
        "a source can be kept or dropped, but not both",
        f"Remove {', '.join(both)} from data.keep_sources or from data.drop_sources.",
        keys=("data.keep_sources", "data.drop_sources"),
    )
    ready = []
    for text in settings.texts:
        if text.dataset.kind == TOKENIZED:
            ready.append(text.name)

    yield judge(
        "sources can be chosen",
        not ready,
        f"{', '.join(ready)} is already tokenized" if ready else "all text is tokenized in 02-data",
        "sources are chosen while text is tokenized",
        "Leave data.keep_sources and data.drop_sources out, or tokenize the text here.",
        otherwise="warn",
        keys=("data.keep_sources", "data.drop_sources"),
    )


def check_tokenizer_files(vocabulary: str, merges: str) -> Check:
    """Check that the merges file is not the vocabulary file.

    A script in one document mixes up these two files.
    """
    same = PurePosixPath(vocabulary) == PurePosixPath(merges)
    mixed = "vocab" in PurePosixPath(merges).name or "merges" in PurePosixPath(vocabulary).name
    return judge(
        "merges are not the vocabulary",
        not (same or mixed),
        f"vocabulary {vocabulary}, merges {merges}",
        "two files: vocab.json maps tokens to ids, merges.txt lists the pairs; a vocabulary "
        "contains no pairs, so it cannot be read as merges",
        "Name the merges.txt that belongs to the vocabulary.",
    )


def _held_out(plan: DataPlan) -> Check:
    name = "held-out files"
    rule = "more files than 2 x data.held_out, so that some are left for training"
    counts = [(part.num_files, part.dataset) for part in plan.parts] or [
        (plan.num_files, plan.dataset)
    ]
    fewest, dataset = min(counts)
    if not fewest:
        value = f"data.held_out={plan.held_out}; the number of files of {dataset} is not known yet"
        return Check(
            name,
            "unknown",
            value,
            rule,
            PlanningMessage.HELD_OUT_NOT_COUNTED.fill(),
        )

    files = f"{fewest} files" + (f" of {dataset}" if plan.parts else "")
    return judge(
        name,
        fewest > 2 * plan.held_out,
        PlanningMessage.HELD_OUT_FILES.fill(held_out=plan.held_out, files=files),
        rule,
        f"Lower data.held_out to at most {max(0, (fewest - 1) // 2)}, or 0 to split inside each "
        "file.",
        keys=("data.held_out",),
    )


def _split(settings: Settings, plan: DataPlan) -> Check:
    train, validation, _ = split_shares(plan.split)
    evaluates = (
        settings.run.training.eval_interval > 0 and settings.run.training.eval_iterations > 0
    )
    return judge(
        "data split",
        train > 0 and (validation > 0 or not evaluates),
        f"data.split={plan.split}: {train:.1%} train, {validation:.1%} validation",
        "there is text for training, and for validation if evaluation is on",
        "Give data.split shares above 0, such as 949,50,1, or set training.eval_interval to 0.",
        keys=("data.split", "training.eval_interval"),
    )


def _tokenizer(settings: Settings) -> Iterator[Check]:
    paths = settings.site.paths
    tokenizer = settings.run.data.tokenizer
    if tokenizer != "gpt2":
        yield judge(
            "merges are not the vocabulary",
            PurePosixPath(tokenizer).name not in ("merges.txt", "vocab.json", "vocab.bpe"),
            f"data.tokenizer={tokenizer}",
            "the tokenizer is one file: tokenizer.json or a SentencePiece model",
            "Set data.tokenizer to gpt2, which includes vocabulary and merges, or to a "
            "tokenizer.json.",
            keys=("data.tokenizer",),
        )
        return

    yield check_tokenizer_files(
        paths.get("vocab", "gpt2/vocab.json"), paths.get("merges", "gpt2/merges.txt")
    )
    smallest = min(settings.model.vocabulary, settings.smoke_model.vocabulary)
    yield judge(
        "vocabulary holds all tokens",
        smallest > GPT2_END_OF_DOCUMENT,
        f"vocabulary of {smallest}, GPT-2 token ids up to {GPT2_END_OF_DOCUMENT}",
        "every token id is smaller than the model's vocabulary",
        f"Give the model a vocabulary of {GPT2_END_OF_DOCUMENT + 1}, or set data.tokenizer to one "
        "that fits the model.",
        keys=("data.tokenizer", "model"),
    )


def check_vocabulary(settings: Settings, size: int, where: str) -> list[Check]:
    """Check that the model and the smoke-test model have a row for each token id below `size`.

    The models should not have far more rows either: an unused row is never trained, but costs
    memory and FLOPs and raises the first loss. `where` names the tokenizer or the token files that
    have this vocabulary size.
    """
    models = {
        f"model {settings.run.model}": settings.model.vocabulary,
        f"smoke model {settings.smoke_model_name}": settings.smoke_model.vocabulary,
    }
    too_small = {name: vocabulary for name, vocabulary in models.items() if vocabulary < size}
    shown_models = too_small or models
    rows = ", ".join(f"{vocabulary:,} of {name}" for name, vocabulary in shown_models.items())
    checks = [
        judge(
            VOCABULARY_CHECK,
            not too_small,
            PlanningMessage.TOKENIZER_AND_VOCABULARY.fill(tokenizer=where, size=size, rows=rows),
            "every token id is smaller than the model's vocabulary",
            PlanningMessage.VOCABULARY_TOO_SMALL.fill(size=size),
            keys=("data.tokenizer", "training.smoke.model"),
        )
    ]
    vocabulary = settings.model.vocabulary
    spare = vocabulary - size
    if vocabulary > LARGE_VOCABULARY * size and spare > SPARE_TOKENS:
        value = PlanningMessage.UNUSED_ROWS.fill(
            vocabulary=vocabulary, model=settings.run.model, size=size, tokenizer=where, spare=spare
        )
        rule = f"a vocabulary of at most {LARGE_VOCABULARY:g} times the tokenizer's"
        remedy = (
            f"Give the model in params/models.yaml a vocabulary of {size}; padding is added "
            "automatically."
        )
        checks.append(
            Check(
                "unused vocabulary",
                "warn",
                value,
                rule,
                remedy,
            )
        )

    return checks
