"""The documents' own training programs, started on this machine: rank.sh as rendered, made small, without a GPU."""

import json
import math
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runbook import params
from runbook.core import shell
from runbook.core.checks import Check, judge
from runbook.core.errors import RunbookError
from runbook.core.table import Table
from runbook.display import CheckTable
from runbook.jobs.render.templating import environment_groups, fill, quote
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, lines, render_job
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import ParsedLog
from runbook.params.schema.site import Checkout, Versions
from runbook.params.schema.value_types import Framework
from runbook.params.settings import Settings, with_placeholders
from runbook.plan_file.schema import PhasePlan
from runbook.plan_file.token_index import DTYPES, dtype_code
from runbook.planning.plan import make_plan
from runbook.tokens.indexed_files import write_index
from runbook.tokens.tokenizer import GPT2_FOLDER, GPT2_VOCABULARY
from runbook.tools.try_upstream import site_versions

STEPS = 5
LENGTH = 128
MOST_SECONDS = 3600
_SIZE = "a laptop's memory"
_TIME = "a laptop's time"
_RANKS = "a laptop's cores"
_NO_GPU = "no GPU"
_NO_KERNELS = "needs Transformer Engine or apex"
_NODES_OWN = ("CC", "CXX", "LD_PRELOAD")
"""Variables of the site that name files of its nodes, as those with PATH do."""
_SEE = "Read its last lines: an argument it does not know, a package that is missing, token files it cannot read."
_ERROR = re.compile(r"^(\[rank\d+\]: |)((?:\w+\.)*\w+(?:Error|Exception): .*|\S+\.py: error: .*)")
_NOT_TRIED = (
    "the container: its packages come from PyPI here, not from the vendor's builds",
    "the queue's script, the starter and the binding to cores",
    "NCCL or RCCL: messages go through gloo",
    "the GPU's kernels, Transformer Engine, apex, flash attention",
    "full size, your token files, going on from a checkpoint",
)


@dataclass(frozen=True)
class UpstreamTrial:
    """What an upstream program did here."""

    run: str
    phase: str
    program: str
    ranks: int
    versions: str
    """Python and packages that it ran with, in words."""
    changes: tuple[dict[str, str], ...]
    """Arguments that differ from the rendered ones, each with its reason."""
    log: ParsedLog
    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether nothing failed."""
        return all(check.verdict == "pass" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        head = {
            "run": self.run,
            "phase": self.phase,
            "program": self.program,
            "ranks": self.ranks,
            "versions": self.versions,
        }
        verdict = {"works": self.works, "checks": [asdict(check) for check in self.checks]}
        losses = [record.loss for record in self.log.records]
        return head | verdict | {"changes": self.changes, "losses": losses, "not_tried": _NOT_TRIED}

    def as_text(self) -> str:
        """What the log reader read, and the verdict."""
        columns = {
            "loss": "loss",
            "grad_norm": "gradient norm",
            "learning_rate": "rate",
            "seconds": "step (s)",
        }
        rows = [
            {"iteration": record.iteration}
            | {title: getattr(record, name) for name, title in columns.items()}
            for record in self.log.records
        ]
        read = Table(
            rows,
            f"Read from its log ({self.log.format})",
            [f"Not tried: {what}" for what in _NOT_TRIED],
        )
        end = (
            f"as {self.run} starts it in {self.phase}, made small, on {self.ranks} rank(s), "
            f"with {self.versions}"
        )
        end = f"{self.program} {'works' if self.works else 'DOES NOT WORK'} here: {end}."
        return "\n\n".join([read.as_text(), CheckTable(self.checks).as_text(), end])


def start_upstream(
    run: str,
    set_words: Sequence[str],
    *,
    phase: str,
    checkout: Path,
    say: Callable[[str], None],
    installed: bool = False,
) -> UpstreamTrial:
    """Start the program of a run's framework for a few steps; each line that it prints is handed on as it comes.

    It runs with the site's own versions, or with those installed here where `installed` is set or the site has none.
    """
    settings = with_placeholders(params.load(run, set_words=set_words))
    framework = settings.run.training.framework
    if framework not in ("megatron-lm", "megatron-deepspeed"):
        raise RunbookError(
            f"{run} trains with {framework}: --upstream starts Megatron-LM and Megatron-DeepSpeed. Leave it out, or "
            "set training.framework to one of them."
        )
    pinned = settings.site.frameworks[framework]
    script = pinned.script
    if not (checkout / script).is_file():
        raise RunbookError(
            f"{checkout} has no {script}, which the job starts. Give a checkout of {framework}."
        )
    is_pinned = check_checkout(checkout, pinned)
    say(
        f"{checkout}: {is_pinned.value}" + (f". {is_pinned.remedy}" * (is_pinned.verdict != "pass"))
    )
    versions = None if installed else pinned.versions
    python = site_versions.install(versions, say) if versions else Path(sys.executable)
    plan = make_plan(settings)
    spec = plan.phases[phase]
    rendered = render_job(settings, plan, phase)
    folder = Path(tempfile.mkdtemp(prefix="upstream-"))
    arguments, changes = small_arguments(rendered.arguments, spec, framework, folder / "root")
    note = f"paths are put below {folder}/root; all other arguments are as rendered"
    say(Table(changes, f"Changed in {phase}/rank.sh", [note]).as_text())
    _write_files(folder, settings, rendered, arguments, checkout, python, _ranks(spec)[-1])
    errors: dict[str, str] = {}  # the last of each rank, in the order in which they began to fail
    with (folder / "log").open("w", encoding="utf-8", buffering=1) as log:

        def hear(line: str) -> None:
            log.write(f"{line}\n")
            errors.update(_ERROR.findall(line))
            say(line)

        code = shell.follow(["bash", "upstream.sh"], say=hear, timeout=MOST_SECONDS, cwd=folder)
    parsed = parse_files([folder / "log"])
    saves = [
        folder / "run" / word
        for option, *words in arguments
        if option == "--save"
        for word in words
    ]
    checks = (is_pinned, *_checks(parsed, code, list(errors.values()), saves))
    ranks = _ranks(spec)[-1]
    with_what = in_words(versions)
    trial = UpstreamTrial(
        settings.name, phase, script, ranks, with_what, tuple(changes), parsed, checks
    )
    if trial.works:
        shutil.rmtree(folder)
    else:
        say(f"Its log, scripts and checkpoint are kept in {folder}")
    return trial


def in_words(versions: Versions | None) -> str:
    """Python and packages of a trial; None: what is installed here."""
    if versions is None:
        return f"Python {platform.python_version()} and the packages that are installed here"
    return f"Python {versions.python}, {', '.join(versions.packages)}: the site's own"


def check_checkout(checkout: Path, pinned: Checkout) -> Check:
    """Compare a checkout with the commit that the site pins: the same commit, and no changed file."""
    head = _git(checkout, "rev-parse", "HEAD")
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    names = [line[3:] for line in changed.splitlines()]
    if not head:
        state = "no git repository: its commit is not known"
    elif head != pinned.commit:
        state = f"at {head[:12]}, not at the pinned commit"
    elif names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        state = f"at the pinned commit, with changes of its own: {', '.join(names[:3])}{more}"
    else:
        state = f"at {head[:12]}, unchanged"
    return judge(
        "checkout",
        head == pinned.commit and not names,
        state,
        f"{pinned.commit[:12]}, as the site's jobs check it out",
        f"What follows is true of this checkout alone. For the job's: git checkout --detach {pinned.commit}",
    )


def _git(checkout: Path, *words: str) -> str:
    """What git says of a folder; empty where it is no repository's top folder."""
    if not (checkout / ".git").exists():
        return ""
    finished = shell.run(["git", "--no-optional-locks", "-C", str(checkout), *words], check=False)
    return finished.out.rstrip() if finished.exit_code == 0 else ""


def small_arguments(
    rendered: Sequence[str], spec: PhasePlan, framework: Framework, root: Path
) -> tuple[list[list[str]], list[dict[str, str]]]:
    """Arguments that a laptop can train, absolute paths below `root`, and what was changed for what reason."""
    small = _small_values(spec)
    added = _added(spec, framework)
    arguments = []
    tables = [("ranks", str(spec.parallel.world_size), str(_ranks(spec)[-1]), _RANKS)]
    for option, *values in lines(rendered):
        here, because = small.get(option[2:], (" ".join(values), ""))
        if because and (not here or here != " ".join(values)):
            tables.append((option, " ".join(values), here or "left out", because))
        if here or not because:
            words = here.split() if because else values
            arguments.append(
                [option, *(f"{root}{word}" if word.startswith("/") else word for word in words)]
            )
        added.pop(option, None)
    for option, (here, because) in added.items():
        tables.append((option, "", here or "added", because))
        arguments.append([option, *here.split()])
    return arguments, [
        dict(zip(("argument", "rendered", "here", "because"), row, strict=True)) for row in tables
    ]


def _ranks(spec: PhasePlan) -> tuple[int, int, int, int]:
    """Tensor, pipeline and data parallel sizes of at most two each, and their product, of at most four."""
    tensor = min(2, spec.parallel.tensor)
    pipeline = min(2, spec.parallel.pipeline)
    copies = min(2, spec.parallel.data) if tensor * pipeline < 4 else 1
    return tensor, pipeline, copies, tensor * pipeline * copies


def _small_values(spec: PhasePlan) -> dict[str, tuple[str, str]]:
    """By option, its value here (nothing: left out) and the reason."""
    tensor, pipeline, copies, _ = _ranks(spec)
    virtual = min(2, spec.parallel.virtual_pipeline) if pipeline > 1 else 1
    micro = min(2, spec.batch.micro)
    batch = 2 * micro * copies
    reasons = {
        _SIZE: f"num-layers={2 * virtual} hidden-size=64 ffn-hidden-size=256 num-attention-heads=4 num-query-groups=2 "
        f"num-key-value-heads=2 seq-length={LENGTH} max-position-embeddings={LENGTH} micro-batch-size={micro}",
        _RANKS: f"tensor-model-parallel-size={tensor} pipeline-model-parallel-size={pipeline} "
        "num-layers-per-virtual-pipeline-stage=1 ds-sequence-parallel-size=",
        _TIME: f"global-batch-size={batch} train-iters={STEPS} train-samples={STEPS * batch} rampup-batch-size= "
        f"train-tokens={STEPS * batch * LENGTH} log-interval=1 eval-interval={STEPS} save-interval={STEPS} "
        f"eval-iters={min(1, spec.evaluation.iterations)}",
        _NO_GPU: "distributed-backend=gloo use-flash-attn-v1= use-flash-attn-v2= use-flash-attn-triton= cpu-optimizer=",
        _NO_KERNELS: "sequence-parallel= context-parallel-size= tp-comm-overlap=",
    }
    pairs = ((word.partition("="), why) for why, words in reasons.items() for word in words.split())
    return {option: (value, why) for (option, _, value), why in pairs}


def _added(spec: PhasePlan, framework: Framework) -> dict[str, tuple[str, str]]:
    flags = [
        "--no-masked-softmax-fusion",
        "--no-gradient-accumulation-fusion",
        "--no-persist-layer-norm",
    ]
    added = {"--distributed-backend": ("gloo", _NO_GPU)}
    if framework == "megatron-lm":
        added["--transformer-impl"] = ("local", _NO_KERNELS)
        flags += ["--no-rope-fusion"] * (spec.model.position_embedding == "rope")
    return added | dict.fromkeys(flags, ("", _NO_KERNELS))


def _write_files(
    folder: Path,
    settings: Settings,
    rendered: RenderedJob,
    arguments: list[list[str]],
    checkout: Path,
    python: Path,
    ranks: int,
) -> None:
    """Everything that upstream.sh finds in its folder, and itself."""
    values = {option.removeprefix("--"): words for option, *words in arguments}
    checkout_script = (
        folder / "checkout" / settings.site.frameworks[settings.run.training.framework].script
    )
    (folder / "rank.sh").write_text(
        small_script(rendered.files["rank.sh"], arguments, checkout_script)
    )
    for name in values.get("deepspeed_config", []):
        content = json.loads(rendered.files[PurePosixPath(name).name])
        content["train_batch_size"] = int(values["global-batch-size"][0])
        content["train_micro_batch_size_per_gpu"] = int(values["micro-batch-size"][0])
        content["zero_optimization"].pop("offload_optimizer", None)  # goes with --cpu-optimizer
        (folder / "run" / name).parent.mkdir(parents=True)
        (folder / "run" / name).write_text(json.dumps(content))
    _write_tokens(folder / "tokens", GPT2_VOCABULARY)
    groups = {
        group: {
            name: value
            for name, value in variables.items()
            if "PATH" not in name and name not in _NODES_OWN
        }
        for group, variables in environment_groups(settings).items()
    }
    chosen = {
        "folders": ["save", "tensorboard-dir", "data-cache-path"],
        "tokenizer_files": ["vocab-file", "merge-file"],
        "token_files": [name for name in values if name.endswith("data-path")],
    }
    words = {
        use: [word for name in names for word in values.get(name, [])]
        for use, names in chosen.items()
    }
    words["token_files"] = [
        word for word in words["token_files"] if not re.fullmatch(r"[\d.e+-]+", word)
    ]  # no weights
    own = PACKAGE / "runbook" / "training" / "upstream"
    places = {
        "checkout": checkout,
        "tokens": folder / "tokens",
        "gpt2": GPT2_FOLDER,
        "python": python,
    }
    python_path = f"{quote(own)}:{quote(PACKAGE)}"
    lists = {use: " ".join(map(quote, paths)) for use, paths in words.items()}
    script = fill(
        "upstream.sh.j2",
        **places,
        **lists,
        python_path=python_path,
        environment=groups,
        modules=[],
        setup=[],
        ranks=ranks,
    )
    (folder / "upstream.sh").write_text(script)


def small_script(text: str, arguments: list[list[str]], program: Path) -> str:
    """rank.sh with other arguments and another place of the program; where it fixes the number of ranks, without."""
    head, _, rest = text.partition("arguments=(\n")
    _, _, tail = rest.partition("\n)\n")
    written = "\n".join(f"  {' '.join(map(quote, words))}" for words in arguments)
    started = f'python3 -u {quote(program)} "${{arguments[@]}}" &'
    tail = re.sub(r'^.* "\$\{arguments\[@\]\}" &$', lambda _: started, tail, flags=re.M)
    return re.sub(r" (LOCAL_)?WORLD_SIZE=\d+", "", head) + f"arguments=(\n{written}\n)\n{tail}"


def _write_tokens(prefix: Path, vocabulary: int) -> None:
    """Our own .bin/.idx with documents of random tokens, the same ones each time: their loss is known beforehand."""
    import numpy as np

    draw = np.random.default_rng(1234)
    lengths = draw.integers(50, 500, 2000).astype(np.int32)
    tokens = draw.integers(0, vocabulary, lengths.sum())
    code = dtype_code(vocabulary)
    tokens.astype(DTYPES[code]).tofile(prefix.with_suffix(".bin"))
    with prefix.with_suffix(".idx").open("wb") as file:
        write_index(file, code, lambda: [(lengths, np.empty(0, np.int64))])


def _checks(log: ParsedLog, code: int, errors: list[str], saves: list[Path]) -> Iterator[Check]:
    """The verdict: one rule each."""
    losses = [record.loss for record in log.records if record.loss is not None]
    known = "; ".join(f"{failure.name}: {failure.remedy}" for failure in log.failures)
    ended = "; first error: ".join([shell.how_it_ended(code), *(errors[:1] if code else [])])
    yield judge("program ends", code == 0, ended, "exit code 0", known or _SEE)
    skipped = sum(
        "all_skipped" in record.states for record in log.records
    )  # by the loss scale of fp16
    start = math.log(GPT2_VOCABULARY)
    text = ", ".join(f"{loss:.4f}" for loss in losses) or "none"
    trained = (
        losses
        and len(losses) + skipped == STEPS
        and all(abs(loss - start) < 0.1 for loss in losses)
    )
    text = f"{len(log.records)} of {STEPS} steps, {skipped} of them skipped by the loss scale; losses {text}"
    rule = f"`runbook logs` reads each step; random tokens keep the loss at ln {GPT2_VOCABULARY:,} = {start:.2f} +- 0.1"
    yield judge("training", bool(trained), text, rule, _SEE)
    for folder in saves:
        file = folder / "latest_checkpointed_iteration.txt"
        step = file.read_text().strip() if file.exists() else "none"
        yield judge(
            "checkpoint", step == str(STEPS), f"newest: {step}", f"saved at step {STEPS}", _SEE
        )
