"""The token files that a run reads, how many tokens they contain, and the cost of making them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import ClassVar, NamedTuple

from runbook.core.checks import Check, judge
from runbook.core.files import natural_key
from runbook.core.units import four_digits, show_count
from runbook.params.schema.entries import TOKENIZED, Dataset, TextShare, names_pair
from runbook.params.schema.value_types import parse_names
from runbook.params.settings import STAGE, Settings
from runbook.plan_file.json_records import OMIT_DEFAULT
from runbook.plan_file.schema import Source
from runbook.plan_file.token_index import index_bytes, token_bytes
from runbook.planning.choice import Machine
from runbook.planning.messages import PlanningMessage


@dataclass(frozen=True, kw_only=True)
class PlannedFiles:
    """Prefixes of .bin/.idx files, relative to plan.json, and their estimated content."""

    dataset: str
    prefix: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    num_files: int
    """Number of input files; 0 if it is unknown until the folder has been read."""
    estimated_tokens: int
    """Number of tokens, including end-of-document tokens; 0 if unknown."""
    estimated_bytes: int
    """Total size of the .bin and .idx files; 0 if unknown."""
    tokens_from: str


@dataclass(frozen=True, kw_only=True)
class BlendPart(PlannedFiles):
    """A text in a blend, with its relative weight."""

    weight: float
    train_share: float
    """Share of the text's tokens that is used for training."""


BYTES_OF_TEXT_PER_TOKEN = 4.0
"""Approximate size of a GPT-2 token in English prose (measured: 4.13 for books, 3.13 for technical
text).
"""

GPT2_END_OF_DOCUMENT = 50256
"""Highest token id of the GPT-2 tokenizer."""

MOCK = "mock"


@dataclass(frozen=True, kw_only=True)
class DataPlan(PlannedFiles):
    """All texts that a training run reads."""

    COMPUTED: ClassVar = ("train_share",)

    mock: bool
    split: str
    held_out: int
    parts: tuple[BlendPart, ...] = field(default=(), metadata=OMIT_DEFAULT)
    """The texts of a blend; empty if there is only one text."""

    @property
    def train_share(self) -> float:
        """Return the share of all tokens that is used for training, assuming files of equal size."""
        if not self.parts:
            return _train_share(self.num_files, self.held_out, self.split)
        if not self.estimated_tokens:
            return 0.0
        trained = sum(part.estimated_tokens * part.train_share for part in self.parts)
        return trained / self.estimated_tokens

    def weighted(self, use: str) -> tuple[Source, ...]:
        """Return the files for train, validation or test (`use`), with their weights.

        Files of the same text will share its weight in proportion to their tokens, once these have
        been counted.
        """
        if not self.parts:
            prefixes = getattr(self, use)
            return _equal_sources(self.dataset, float(len(prefixes)), prefixes)

        sources = list[Source]()
        for part in self.parts:
            sources += _equal_sources(part.dataset, part.weight, getattr(part, use))
        return tuple(sources)


def _equal_sources(text: str, weight: float, prefixes: Sequence[str]) -> tuple[Source, ...]:
    """Return the files of a text, each with an equal share of its weight.

    If the text has only one file, the text's name is left out.
    """
    shared_text = text if len(prefixes) > 1 else ""
    return tuple(Source(weight / len(prefixes), prefix, shared_text) for prefix in prefixes)


def plan_data(settings: Settings) -> DataPlan:
    """Return file prefixes and estimated sizes, based on the catalogue's entries for the texts."""
    data = settings.run.data
    parts = tuple(_part(settings, text) for text in settings.texts)
    is_mock = settings.dataset.kind == MOCK
    is_counted = not is_mock and all(part.estimated_tokens for part in parts)
    return DataPlan(
        dataset=data.dataset,
        mock=is_mock,
        prefix=next(part.prefix for part in parts if part.dataset == data.dataset),
        train=() if is_mock else _files_of(parts, "train"),
        validation=() if is_mock else _files_of(parts, "validation"),
        test=() if is_mock else _files_of(parts, "test"),
        split=data.split,
        held_out=data.held_out,
        num_files=sum(part.num_files for part in parts),
        estimated_tokens=sum(part.estimated_tokens for part in parts) if is_counted else 0,
        tokens_from=_tokens_from(parts, is_mock=is_mock),
        estimated_bytes=sum(part.estimated_bytes for part in parts) if is_counted else 0,
        parts=parts if len(parts) > 1 else (),
    )


def _files_of(parts: Sequence[BlendPart], use: str) -> tuple[str, ...]:
    return tuple(chain(*(getattr(part, use) for part in parts)))


def _tokens_from(parts: Sequence[BlendPart], *, is_mock: bool) -> str:
    """Return where the number of tokens of each text in a blend is stated."""
    if is_mock:
        return PlanningMessage.TOKENS_OF_MOCK.fill()
    if len(parts) == 1:
        return parts[0].tokens_from
    return "; ".join(f"{part.dataset}: {part.tokens_from}" for part in parts)


def _part(settings: Settings, text: TextShare) -> BlendPart:
    data = settings.run.data
    dataset = text.dataset
    folder = _token_folder(settings, text)
    prefix = f"{folder}/{text.name}_text_document"
    if dataset.kind == TOKENIZED and names_pair(text.folder):
        prefix = text.folder
    train, validation, test = _prefixes(settings, text, folder, prefix)
    tokens, tokens_from = _tokens(settings, dataset)
    estimated_bytes = 0
    if tokens:
        token_width = token_bytes(settings.model.vocabulary)
        index = index_bytes(dataset.documents, dataset.documents + 1)
        estimated_bytes = tokens * token_width + index

    return BlendPart(
        dataset=text.name,
        weight=text.weight,
        prefix=prefix,
        train=tuple(train),
        validation=tuple(validation),
        test=tuple(test),
        num_files=len(dataset.paths),
        estimated_tokens=tokens,
        estimated_bytes=estimated_bytes,
        tokens_from=tokens_from,
        train_share=_train_share(len(dataset.paths), data.held_out, data.split),
    )


def _token_folder(settings: Settings, text: TextShare) -> str:
    """Return the folder of a text's token files.

    If the site has a folder for data, each dataset has its own folder in it. Token files in
    data.folder are read there if their names are known; otherwise, they are read through links in
    the run's folder.
    """
    if text.dataset.kind == TOKENIZED and text.folder:
        is_known = text.folder.startswith("/") and bool(text.dataset.paths)
        return text.folder.rstrip("/") if is_known else "data"

    site_folder = settings.site.paths.get("data", "")
    return f"{site_folder.rstrip('/')}/{text.name}" if site_folder else "data"


def _prefixes(
    settings: Settings,
    text: TextShare,
    folder: str,
    prefix: str,
) -> tuple[list[str], list[str], list[str]]:
    """Return the prefixes of a text's token files: (train, validation, test).

    If no files are held out, text that has yet to be tokenized gets the single file `prefix`.
    """
    data = settings.run.data
    dataset = text.dataset
    token_files: list[str] = []
    if dataset.kind == TOKENIZED:
        token_files = [f"{folder}/{path.removesuffix('.bin')}" for path in dataset.paths]
    if not data.held_out:
        return token_files or [prefix], [], []
    if not token_files:
        stems = [PurePosixPath(path).name.split(".")[0] for path in dataset.paths]
        token_files = [f"{folder}/{stem}_text_document" for stem in stems]

    return held_out_split(token_files, data.held_out)


def text_place(settings: Settings, text: TextShare) -> str:
    """Return the folder of a text's files, relative to the project or absolute.

    Downloads go to the site's folder for data, next to the token files, if the site has one.
    """
    dataset = text.dataset
    if text.folder:
        return text.folder
    shared = _shared_folder(settings)
    if shared and dataset.url and not PurePosixPath(dataset.folder).is_absolute():
        return f"{shared}/{text.name}"
    return dataset.folder


def _shared_folder(settings: Settings) -> str:
    """Return the site's folder for data, in which {stage} is not yet filled in.

    Return an empty string if the site has no such folder.
    """
    folder = settings.site.paths.get("data", "").rstrip("/")
    return folder if folder.startswith(("/", STAGE)) else ""


def fetched_bytes(dataset: Dataset) -> int:
    """Return the download size of a text's files in bytes; 0 if it is not known."""
    listed_bytes = dataset.download_bytes or sum(file.bytes for file in dataset.files)
    return listed_bytes or round(_record_bytes(dataset) * COMPRESSED_SHARE)


def text_on_site(settings: Settings) -> dict[str, int]:
    """Return the size of each text that is downloaded to the site's data folder; 0 if unknown."""
    shared = _shared_folder(settings)
    text_bytes: dict[str, int] = {}
    for text in settings.texts:
        if shared and text.dataset.url and text_place(settings, text).startswith(f"{shared}/"):
            text_bytes[text.name] = fetched_bytes(text.dataset)

    return text_bytes


def _record_bytes(dataset: Dataset) -> int:
    return dataset.record_bytes or round(dataset.text_bytes * RECORD_SHARE)


def _train_share(num_files: int, held_out: int, split: str) -> float:
    if not held_out:
        return split_shares(split)[0]
    if not num_files:
        return 0.0
    return max(0, num_files - 2 * held_out) / num_files


def held_out_split(prefixes: list[str], held_out: int) -> tuple[list[str], list[str], list[str]]:
    """Return the files for training, validation and test.

    The last `held_out` files are used for validation, the `held_out` files before them for testing,
    and the rest for training.

    Files are ordered by the numbers in their names, so that file 10 follows file 9. If there are
    too few files, all lists are empty: a file is never both trained on and held out.

    >>> held_out_split([f"part{n}" for n in (1, 2, 10, 9, 3)], 1)
    (['part1', 'part2', 'part3'], ['part10'], ['part9'])
    >>> held_out_split(["a", "b"], 1)
    ([], [], [])
    """
    if held_out < 1 or len(prefixes) <= 2 * held_out:
        return [], [], []
    ordered = sorted(prefixes, key=natural_key)
    return ordered[: -2 * held_out], ordered[-held_out:], ordered[-2 * held_out : -held_out]


def split_shares(split: str) -> tuple[float, float, float]:
    """Return the shares of train, validation and test, which sum to 1.

    All shares are 0 if all three numbers are 0.

    >>> split_shares("949,50,1")
    (0.949, 0.05, 0.001)
    """
    first, second, third = (float(part) for part in split.split(","))
    total = first + second + third
    if not total:
        return (0.0, 0.0, 0.0)
    return (first / total, second / total, third / total)


def check_data(settings: Settings, plan: DataPlan) -> list[Check]:
    """Check the rules about files that do not depend on the length of the run."""
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


def check_epochs(phase: str, tokens: int, plan: DataPlan) -> list[Check]:
    """Check whether a run of this many tokens reads its text more than once.

    In a blend, the text that is read most often is checked.
    """
    if plan.mock:
        return []
    name = f"{phase}: text read once"
    rule = PlanningMessage.READ_ONCE_RULE.fill()
    texts = _training_texts(plan)
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


class _TrainingText(NamedTuple):
    """A text, its weight in the blend, and its number of tokens for training (0 if unknown)."""

    dataset: str
    weight: float
    tokens: float


def _training_texts(plan: DataPlan) -> list[_TrainingText]:
    if not plan.parts:
        return [_TrainingText("", 1.0, plan.estimated_tokens * plan.train_share)]
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
        f"Leave {', '.join(shared)} out here; data.workers sets how many processes tokenize.",
        keys=(*(f"jobs.data.{name}" for name in counts), "data.workers"),
    )


def _sources(settings: Settings) -> Iterator[Check]:
    """Check that sources are either kept or dropped, and only in text that the run tokenizes."""
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
        "a source is kept or dropped, not both",
        f"Take {', '.join(both)} out of data.keep_sources or of data.drop_sources.",
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
        "sources are chosen while text becomes tokens",
        "Leave data.keep_sources and data.drop_sources out, or tokenize the text here.",
        otherwise="warn",
        keys=("data.keep_sources", "data.drop_sources"),
    )


def check_tokenizer_files(vocabulary: str, merges: str) -> Check:
    """Check that the merges file is not the vocabulary file.

    A script in one of the documents mixes up the two files.
    """
    same = PurePosixPath(vocabulary) == PurePosixPath(merges)
    mixed = "vocab" in PurePosixPath(merges).name or "merges" in PurePosixPath(vocabulary).name
    return judge(
        "merges are not the vocabulary",
        not (same or mixed),
        f"vocabulary {vocabulary}, merges {merges}",
        "two files: vocab.json maps tokens to ids, merges.txt lists the pairs; a vocabulary that "
        "is read as merges has no pairs",
        "Name the merges.txt that belongs to the vocabulary.",
    )


def _tokens(settings: Settings, dataset: Dataset) -> tuple[int, str]:
    data = settings.run.data
    ends = dataset.documents if data.append_eod else 0
    if dataset.tokens:
        if data.tokenizer == "gpt2":
            counted = "GPT-2 tokens"
        else:
            counted = "GPT-2 tokens, another tokenizer is used"

        source = PlanningMessage.TOKENS_OF_CATALOGUE.fill(counted=counted, ends=ends)
        return dataset.tokens + ends, source

    if dataset.text_bytes:
        tokens = round(dataset.text_bytes / BYTES_OF_TEXT_PER_TOKEN)
        source = PlanningMessage.TOKENS_OF_TEXT.fill(
            text_bytes=dataset.text_bytes,
            bytes_per_token=BYTES_OF_TEXT_PER_TOKEN,
        )
        return tokens + ends, source

    return 0, PlanningMessage.TOKENS_NOT_KNOWN.fill()


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
            "Set data.tokenizer to gpt2, which brings vocabulary and merges, or to a "
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
        f"Give the model a vocabulary of {GPT2_END_OF_DOCUMENT + 1}, or set data.tokenizer to the "
        "one that fits it.",
        keys=("data.tokenizer", "model"),
    )


VOCABULARY_CHECK = "vocabulary of the tokenizer"
"""Name of the check that the model has a row for every token id."""

LARGE_VOCABULARY = 1.25
"""A vocabulary that exceeds the tokenizer's by more than this factor is probably a mistake.

Padding adds at most 2 % (Megatron: 128 x tensor).
"""
SPARE_TOKENS = 1024
"""Up to this many unused rows cause no warning, because rounding and special tokens need some."""


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


FUSED_BYTES_PER_SECOND = 130e6
"""Bytes of JSON lines per second on one core for a single pass: zstd, JSON, GPT-2 ids and writing
(138 to 144 MB/s measured on an AMD Zen 5, 2026-11; rounded down).
"""

FTFY_BYTES_PER_SECOND = 3.5e6
"""Bytes of text per second that ftfy 6.3.1 processes on one core (the included corpus, processor
time, the same machine, 2026-11-26).
"""

STEPS_BYTES_PER_SECOND = 2.9e6
"""Bytes of text per second with Megatron-LM's preprocess_data.py and one worker.

Measured on the same machine (2.93 MB/s).
"""

RECORD_SHARE = 1.04
"""Ratio of JSON-lines bytes to text bytes, for texts whose size is known only as text (685 to 659
MB).
"""

COMPRESSED_SHARE = 0.36
"""Ratio of zstd bytes to JSON-lines bytes (1.5 to 4.2 GB in a sample of SlimPajama)."""


@dataclass(frozen=True)
class PreparationCost:
    """The cost of one method to make token files from compressed text. None means unknown."""

    name: str
    steps: str
    read_bytes: int | None = None
    written_bytes: int | None = None
    disk_bytes: int | None = None
    """Largest disk usage, including the downloaded files."""
    core_hours: float | None = None
    hours: float | None = None
    """Hours on all cores of the data job, or of this machine."""
    storage_hours: float | None = None
    """Hours for reading and writing at the speed of the site's fastest storage; a lower bound for
    `hours`.
    """


ONE_PASS = PreparationCost("one pass", "compressed text to token files, nothing in between")
THREE_STEPS = PreparationCost("the documents' three steps", "extract, join, preprocess_data.py")


def data_work(
    settings: Settings, data: DataPlan, machine: Machine | None = None
) -> tuple[PreparationCost, ...]:
    """Return the cost of both methods for the run's text.

    Return an empty tuple if no text has to be tokenized. Numbers are None if the size of the text
    is unknown.
    """
    datasets = []
    for text in settings.texts:
        if text.dataset.kind != TOKENIZED:
            datasets.append(text.dataset)

    if data.mock or not datasets:
        return ()
    sizes = [_record_bytes(dataset) for dataset in datasets]
    if not all(sizes) or not data.estimated_bytes:
        return ONE_PASS, THREE_STEPS
    packed = sum(map(fetched_bytes, datasets))
    records = sum(sizes)
    cores = _cores(settings, machine)
    bandwidth = max(settings.site.write_bandwidth.values(), default=0.0) * 1e9

    def costs(way: PreparationCost, rate: float, copies: int) -> PreparationCost:
        read = packed + copies * records
        written = copies * records + data.estimated_bytes
        core_hours = records / rate / 3600
        return replace(
            way,
            read_bytes=read,
            written_bytes=written,
            disk_bytes=packed + written,
            core_hours=four_digits(core_hours),
            hours=four_digits(core_hours / cores) if cores else None,
            storage_hours=four_digits((read + written) / bandwidth / 3600) if bandwidth else None,
        )

    seconds_per_byte = {
        ONE_PASS: 1 / FUSED_BYTES_PER_SECOND,
        THREE_STEPS: 1 / STEPS_BYTES_PER_SECOND,
    }
    if settings.run.data.fix_text == "ftfy":
        for way in seconds_per_byte:
            seconds_per_byte[way] += 1 / FTFY_BYTES_PER_SECOND

    return (
        costs(ONE_PASS, 1 / seconds_per_byte[ONE_PASS], 0),
        costs(THREE_STEPS, 1 / seconds_per_byte[THREE_STEPS], 2),
    )


def _cores(settings: Settings, machine: Machine | None) -> int:
    """Return how many cores are used at once, on this machine or on the data job's nodes."""
    if machine:
        return machine.cores
    job = settings.run.jobs.data
    per_node = settings.site.hardware.cores_per_node
    if job.cpus_per_task:
        per_node = max(1, job.tasks_per_node) * job.cpus_per_task
    return per_node * job.nodes * max(1, job.array)
