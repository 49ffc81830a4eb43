"""Starts the frameworks' own training programs on the local machine.

The job runs rank.sh as rendered, but scaled down and without a GPU.
"""

import json
import math
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from runbook import params
from runbook.core import shell
from runbook.core.checks import Check, judge
from runbook.core.errors import RunbookError
from runbook.core.table import Table
from runbook.display import CheckTable
from runbook.jobs.render.environment_variables import environment_groups
from runbook.jobs.render.quoting import quote
from runbook.jobs.render.templating import fill
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, lines, render_job
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import ParsedLog
from runbook.params.schema.site import Checkout, Versions
from runbook.params.schema.value_types import Framework
from runbook.params.settings import Settings, with_placeholders
from runbook.plan_file.schema import Layout, PhasePlan
from runbook.plan_file.token_index import DTYPES, dtype_code
from runbook.planning.make_plan import make_plan
from runbook.tokens.indexed_files import write_index
from runbook.tokens.tokenizer import GPT2_FOLDER, GPT2_VOCABULARY
from runbook.tools.try_upstream import site_versions
from runbook.tools.try_upstream.messages import UpstreamMessage

STEPS = 5
"""How many steps each job trains."""
LENGTH = 128
MOST_SECONDS = 3600
_SIZE = "a laptop's memory"
_TIME = "a laptop's time"
_RANKS = "a laptop's cores"
_CHAIN = "so that each job of the chain ends with a checkpoint"
_NO_GPU = "no GPU"
_NO_KERNELS = "needs Transformer Engine or apex"
_NODES_OWN = ("CC", "CXX", "LD_PRELOAD")
"""Site variables that name files on its nodes, besides all variables with PATH in their names.
"""
_SEE = (
    "Read its last lines: they name an argument that it does not know, a missing package, or "
    "token files it cannot read."
)
_FOLLOWS = "The program ended early: start with its error, which is in `program ends`."
_ERROR = re.compile(r"^(\[rank\d+\]: |)((?:\w+\.)*\w+(?:Error|Exception): .*|\S+\.py: error: .*)")
_NOT_TRIED = (
    "the container: its packages come from PyPI here, not from the vendor's builds",
    "the queue's script, the starter and the binding to cores",
    "NCCL or RCCL: messages use gloo",
    "the GPU's kernels, Transformer Engine, apex, flash attention",
    "the full size, and your token files",
)
_NOT_TRIED_ALONE = "resuming from a checkpoint: --jobs 3"


@dataclass(frozen=True)
class UpstreamTrial:
    """What happened when an upstream program ran on this machine."""

    run: str
    phase: str
    program: str
    ranks: int
    versions: str
    """The Python and package versions that the program ran with, as text."""
    changes: tuple[dict[str, str], ...]
    """Arguments that differ from the rendered arguments, each with a reason."""
    log: ParsedLog
    checks: tuple[Check, ...]
    jobs: int = 1
    """Number of jobs to run in a row. Each job continues where the previous one ended."""

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Return what the real job has and the trial leaves out."""
        if self.jobs > 1:
            return _NOT_TRIED
        return (*_NOT_TRIED, _NOT_TRIED_ALONE)

    @property
    def works(self) -> bool:
        """Return whether nothing failed."""
        return all(check.verdict == "pass" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole result for --json."""
        return {
            "run": self.run,
            "phase": self.phase,
            "program": self.program,
            "ranks": self.ranks,
            "jobs": self.jobs,
            "versions": self.versions,
            "works": self.works,
            "checks": [check.as_dict() for check in self.checks],
            "changes": self.changes,
            "losses": [record.loss for record in self.log.records],
            "not_tried": self.not_tried,
        }

    def as_text(self) -> str:
        """Return the records found by the log reader, and the verdict."""
        rows = []
        for record in self.log.records:
            rows.append(
                {
                    "iteration": record.iteration,
                    "loss": record.loss,
                    "gradient norm": record.grad_norm,
                    "rate": record.learning_rate,
                    "step (s)": record.seconds,
                }
            )

        notes = [f"Not tried: {part}" for part in self.not_tried]
        steps = Table(rows, f"Read from its log ({self.log.format})", notes)
        chain = UpstreamMessage.IN_A_CHAIN.fill(jobs=self.jobs) if self.jobs > 1 else ""
        how = UpstreamMessage.STARTED_AS.fill(
            run=self.run,
            phase=self.phase,
            chain=chain,
            ranks=self.ranks,
            versions=self.versions,
        )
        verdict = UpstreamMessage.WORKS if self.works else UpstreamMessage.DOES_NOT_WORK
        end = verdict.fill(program=self.program, how=how)
        return "\n\n".join([steps.as_text(), CheckTable(self.checks).as_text(), end])


def start_upstream(
    run: str,
    set_words: Sequence[str],
    *,
    phase: str,
    checkout: Path,
    say: Callable[[str], None],
    installed: bool = False,
    jobs: int = 1,
) -> UpstreamTrial:
    """Start the framework program for a few steps, and pass on each line that it prints.

    If `jobs` is larger than 1, the program is started this many times in the same folders, until a
    job fails to continue. The program runs with the versions used on the site. If `installed` is
    set or the site names no versions, it runs with the packages installed here. Raise
    `RunbookError` if the framework or the checkout does not match.
    """
    settings = with_placeholders(params.load(run, set_words=set_words))
    framework = settings.run.training.framework
    pinned = _pinned_checkout(run, settings, checkout)
    is_pinned = check_checkout(checkout, pinned)
    remedy = "" if is_pinned.verdict == "pass" else f". {is_pinned.remedy}"
    say(f"{checkout}: {is_pinned.value}{remedy}")
    versions = None if installed else pinned.versions
    if versions:
        python = site_versions.install(versions, say)
    else:
        python = Path(sys.executable)

    plan = make_plan(settings)
    spec = plan.phases[phase]
    num_ranks = _small_layout(spec).world_size
    rendered = render_job(settings, plan, phase)
    folder = Path(tempfile.mkdtemp(prefix="upstream-"))
    arguments, changes = small_arguments(
        rendered.arguments,
        spec,
        framework,
        folder / "root",
        jobs=jobs,
    )
    note = f"paths are put below {folder}/root; all other arguments are as rendered"
    say(Table(changes, f"Changed in {phase}/rank.sh", [note]).as_text())
    job = SmallJob(
        folder,
        settings,
        rendered,
        arguments,
        checkout,
        python,
        num_ranks,
    )
    _write_files(job)
    checks = [is_pinned]
    logs = []
    for number in range(1, jobs + 1):
        say(f"Job {number} of {jobs}")
        checks_of_job = _run_job(job, number, say)
        checks += checks_of_job
        logs.append(log_of(folder, number))
        if any(check.verdict != "pass" for check in checks_of_job):
            break

    trial = UpstreamTrial(
        run=settings.name,
        phase=phase,
        program=pinned.script,
        ranks=num_ranks,
        versions=in_words(versions),
        changes=tuple(changes),
        log=parse_files(logs),
        checks=tuple(checks),
        jobs=jobs,
    )
    if trial.works:
        shutil.rmtree(folder)
    else:
        say(f"Its log, scripts and checkpoint are kept in {folder}")

    return trial


@dataclass(frozen=True)
class SmallJob:
    """A rendered job, scaled down, and the folder that it runs in."""

    folder: Path
    settings: Settings
    rendered: RenderedJob
    arguments: list[list[str]]
    """Each program option, with its values."""
    checkout: Path
    python: Path
    num_ranks: int

    @property
    def values(self) -> dict[str, list[str]]:
        """Return option values by option name without dashes.

        The last occurrence applies.
        """
        return {option.removeprefix("--"): values for option, *values in self.arguments}


def _pinned_checkout(run: str, settings: Settings, checkout: Path) -> Checkout:
    """Return the checkout that the site pins.

    Raise `RunbookError` if the given checkout lacks the training program.
    """
    framework = settings.run.training.framework
    if framework not in ("megatron-lm", "megatron-deepspeed"):
        raise RunbookError(UpstreamMessage.NO_UPSTREAM, run=run, framework=framework)

    pinned = settings.site.frameworks[framework]
    if not (checkout / pinned.script).is_file():
        raise RunbookError(
            UpstreamMessage.CHECKOUT_WITHOUT_SCRIPT,
            checkout=checkout,
            script=pinned.script,
            framework=framework,
        )

    return pinned


def log_of(folder: Path, number: int) -> Path:
    """Return the path to a job log."""
    return folder / ("log" if number == 1 else f"log-{number}")


def _run_job(job: SmallJob, number: int, say: Callable[[str], None]) -> list[Check]:
    """Run one job in the chain to completion, and judge it."""
    path = log_of(job.folder, number)
    exit_code, errors = _follow(path, say)
    log = parse_files([path])
    checks = [_check_end(log, exit_code, errors)]
    if number > 1:
        checks.append(_check_going_on(log, number))
    checks.append(_check_training(log))
    checks += [_check_checkpoint(folder, number * STEPS) for folder in _save_folders(job)]
    if exit_code != 0:
        checks[1:] = [
            replace(check, remedy=_FOLLOWS) if check.verdict == "fail" else check
            for check in checks[1:]
        ]
    if number == 1:
        return checks
    named = []
    for check in checks:
        name = UpstreamMessage.CHECK_OF_JOB.fill(number=number, check=check.name)
        named.append(replace(check, name=name))
    return named


def _follow(path: Path, say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run upstream.sh and write its log. Return the exit code and the last error from each rank.

    The errors are listed in the order in which the ranks failed.
    """
    errors_of_rank: dict[str, str] = {}
    with path.open("w", encoding="utf-8", buffering=1) as log:

        def hear(line: str) -> None:
            log.write(f"{line}\n")
            errors_of_rank.update(_ERROR.findall(line))
            say(line)

        command = ["bash", "upstream.sh"]
        exit_code = shell.follow(
            command,
            say=hear,
            timeout=MOST_SECONDS,
            cwd=path.parent,
        )

    return exit_code, list(errors_of_rank.values())


def _save_folders(job: SmallJob) -> list[Path]:
    """Return the folders that the program saves to."""
    folders = []
    for option, *paths in job.arguments:
        if option == "--save":
            folders += [job.folder / "run" / path for path in paths]

    return folders


def in_words(versions: Versions | None) -> str:
    """Describe the Python and package versions in a trial.

    None means the installed versions.
    """
    if versions is None:
        return f"Python {platform.python_version()} and the packages installed here"
    return f"Python {versions.python}, {', '.join(versions.packages)}: the site's own"


def check_checkout(checkout: Path, pinned: Checkout) -> Check:
    """Compare a checkout with the commit that the site pins.

    They agree if the commit is the same and no file has been changed.
    """
    head = _git(checkout, "rev-parse", "HEAD")
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    # The file name follows two status letters and a space
    names = [line[3:] for line in changed.splitlines()]
    if not head:
        state = UpstreamMessage.NO_GIT_REPOSITORY.fill()
    elif head != pinned.commit:
        state = UpstreamMessage.NOT_AT_PINNED_COMMIT.fill(head=head[:12])
    elif names:
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        state = f"at the pinned commit, with local changes: {', '.join(names[:3])}{others}"
    else:
        state = f"at {head[:12]}, unchanged"

    is_pinned = head == pinned.commit and not names
    rule = f"{pinned.commit[:12]}, as the site's jobs check it out"
    remedy = UpstreamMessage.CHECK_OUT_PINNED.fill(commit=pinned.commit)
    return judge(
        "checkout",
        is_pinned,
        state,
        rule,
        remedy,
    )


def _git(checkout: Path, *git_arguments: str) -> str:
    """Return git's output for a folder, or an empty string if it is not the top of a repository."""
    if not (checkout / ".git").exists():
        return ""
    finished = shell.run(
        ["git", "--no-optional-locks", "-C", str(checkout), *git_arguments], check=False
    )
    if finished.exit_code == 0:
        return finished.out.rstrip()
    return ""


def small_arguments(
    rendered: Sequence[str],
    spec: PhasePlan,
    framework: Framework,
    root: Path,
    jobs: int = 1,
) -> tuple[list[list[str]], list[dict[str, str]]]:
    """Return arguments that let a laptop train, and a reason for each change.

    The arguments cover the steps in all `jobs`, and each job ends after its own steps. Absolute
    paths are moved to below `root`.
    """
    small_values = _small_values(spec, jobs)
    added = _added(spec, framework)
    if jobs > 1:
        added["--exit-interval"] = SmallValue(str(STEPS), _CHAIN)
    world_size = spec.parallel.world_size
    num_ranks = _small_layout(spec).world_size
    changes = [_change("ranks", str(world_size), str(num_ranks), _RANKS)]
    arguments = []
    for option, *values in lines(rendered):
        added.pop(option, None)
        small = small_values.get(option[2:])
        before = " ".join(values)
        if small is None:
            arguments.append([option, *_below(root, values)])
            continue

        if not small.text or small.text != before:
            changes.append(_change(option, before, small.text or "left out", small.reason))
        if small.text:
            arguments.append([option, *_below(root, small.text.split())])

    for option, small in added.items():
        changes.append(_change(option, "", small.text or "added", small.reason))
        arguments.append([option, *small.text.split()])

    return arguments, changes


@dataclass(frozen=True)
class SmallValue:
    """The value that an option has in the trial, and why."""

    text: str
    """The value; empty if the option is left out, or if an added option has no value."""
    reason: str


def _change(
    argument: str,
    rendered: str,
    small: str,
    because: str,
) -> dict[str, str]:
    """Return a row for the table of changes."""
    return {
        "argument": argument,
        "rendered": rendered,
        "here": small,
        "because": because,
    }


def _below(root: Path, arguments: Sequence[str]) -> list[str]:
    """Move absolute paths in these words to below a folder."""
    return [f"{root}{argument}" if argument.startswith("/") else argument for argument in arguments]


def _small_layout(spec: PhasePlan) -> Layout:
    """Return the layout for a phase, with at most two ranks per dimension and four in total."""
    tensor = min(2, spec.parallel.tensor)
    pipeline = min(2, spec.parallel.pipeline)
    data = min(2, spec.parallel.data) if tensor * pipeline < 4 else 1
    return Layout(tensor=tensor, pipeline=pipeline).over(tensor * pipeline * data)


def _small_values(spec: PhasePlan, jobs: int) -> dict[str, SmallValue]:
    """Return the options whose values differ in the trial, by their names without dashes."""
    layout = _small_layout(spec)
    if layout.pipeline > 1:
        chunks = min(2, spec.parallel.virtual_pipeline)
    else:
        chunks = 1

    micro_batch = min(2, spec.batch.micro)
    global_batch = 2 * micro_batch * layout.data
    samples = jobs * STEPS * global_batch
    values_by_reason: dict[str, dict[str, object]] = {
        _SIZE: {
            "num-layers": 2 * chunks,
            "hidden-size": 64,
            "ffn-hidden-size": 256,
            "num-attention-heads": 4,
            "num-query-groups": 2,
            "num-key-value-heads": 2,
            "seq-length": LENGTH,
            "max-position-embeddings": LENGTH,
            "micro-batch-size": micro_batch,
        },
        _RANKS: {
            "tensor-model-parallel-size": layout.tensor,
            "pipeline-model-parallel-size": layout.pipeline,
            "num-layers-per-virtual-pipeline-stage": 1,
            "ds-sequence-parallel-size": "",
        },
        _TIME: {
            "global-batch-size": global_batch,
            "train-iters": jobs * STEPS,
            "train-samples": samples,
            "rampup-batch-size": "",
            "train-tokens": samples * LENGTH,
            "log-interval": 1,
            "eval-interval": STEPS,
            "save-interval": STEPS,
            "eval-iters": min(1, spec.evaluation.iterations),
        },
        _NO_GPU: {
            "distributed-backend": "gloo",
            "use-flash-attn-v1": "",
            "use-flash-attn-v2": "",
            "use-flash-attn-triton": "",
            "cpu-optimizer": "",
        },
        _NO_KERNELS: {
            "sequence-parallel": "",
            "context-parallel-size": "",
            "tp-comm-overlap": "",
        },
    }
    if jobs > 1:
        values_by_reason[_CHAIN] = {"exit-interval": STEPS}
    small_values = {}
    for reason, values in values_by_reason.items():
        for option, value in values.items():
            small_values[option] = SmallValue(str(value), reason)

    return small_values


def _added(spec: PhasePlan, framework: Framework) -> dict[str, SmallValue]:
    """Return the options added if the rendered job lacks them."""
    added = {"--distributed-backend": SmallValue("gloo", _NO_GPU)}
    flags = [
        "--no-masked-softmax-fusion",
        "--no-gradient-accumulation-fusion",
        "--no-persist-layer-norm",
    ]
    if framework == "megatron-lm":
        added["--transformer-impl"] = SmallValue("local", _NO_KERNELS)
        if spec.model.shape.position_embedding == "rope":
            flags.append("--no-rope-fusion")

    for flag in flags:
        added[flag] = SmallValue("", _NO_KERNELS)
    return added


def _write_files(job: SmallJob) -> None:
    """Write upstream.sh and the files that it needs."""
    folder = job.folder
    script = job.settings.site.frameworks[job.settings.run.training.framework].script
    rank_script = small_script(
        job.rendered.files["rank.sh"], job.arguments, folder / "checkout" / script
    )
    (folder / "rank.sh").write_text(rank_script)
    for name in job.values.get("deepspeed_config", []):
        path = folder / "run" / name
        path.parent.mkdir(parents=True)
        path.write_text(_small_deepspeed_config(job, name))

    _write_tokens(folder / "tokens", GPT2_VOCABULARY)
    (folder / "upstream.sh").write_text(_start_script(job))


def _small_deepspeed_config(job: SmallJob, name: str) -> str:
    """Return the rendered DeepSpeed configuration with the small batch."""
    content = json.loads(job.rendered.files[PurePosixPath(name).name])
    content["train_batch_size"] = int(job.values["global-batch-size"][0])
    content["train_micro_batch_size_per_gpu"] = int(job.values["micro-batch-size"][0])
    content["zero_optimization"].pop("offload_optimizer", None)  # Belongs to --cpu-optimizer
    return json.dumps(content)


def _start_script(job: SmallJob) -> str:
    """Return upstream.sh, which creates folders and files for the job and starts its ranks."""
    folders = []
    for name in _FOLDER_OPTIONS:
        for path in job.values.get(name, []):
            folders.append(path)

    tokenizer_files = []
    for name in _TOKENIZER_OPTIONS:
        for path in job.values.get(name, []):
            tokenizer_files.append(path)

    upstream_package = PACKAGE / "runbook" / "training" / "upstream"
    return fill(
        "upstream.sh.j2",
        checkout=job.checkout,
        tokens=job.folder / "tokens",
        gpt2=GPT2_FOLDER,
        python=job.python,
        folders=_quoted(folders),
        tokenizer_files=_quoted(tokenizer_files),
        token_files=_quoted(_token_files(job)),
        python_path=f"{quote(upstream_package)}:{quote(PACKAGE)}",
        environment=_environment(job.settings),
        modules=[],
        setup=[],
        ranks=job.num_ranks,
    )


_FOLDER_OPTIONS = ("save", "tensorboard-dir", "data-cache-path")
_TOKENIZER_OPTIONS = ("vocab-file", "merge-file")


def _token_files(job: SmallJob) -> list[str]:
    """Return the prefixes of the token files, without their weights in a blend."""
    blend = []
    for name, values in job.values.items():
        if name.endswith("data-path"):
            blend += values

    return [word for word in blend if not re.fullmatch(r"[\d.e+-]+", word)]


def _quoted(paths: Sequence[str]) -> str:
    """Return paths as quoted shell words."""
    return " ".join(map(quote, paths))


def _environment(settings: Settings) -> dict[str, dict[str, str | None]]:
    """Return the variable groups on the site, without variables that name files on its nodes."""
    groups = {}
    for group, variables in environment_groups(settings).items():
        groups[group] = {
            name: value
            for name, value in variables.items()
            if "PATH" not in name and name not in _NODES_OWN
        }

    return groups


def small_script(text: str, arguments: list[list[str]], program: Path) -> str:
    """Return rank.sh with different arguments and a different program path.

    A fixed number of ranks is removed.
    """
    head, _, arguments_and_tail = text.partition("arguments=(\n")
    _, _, tail = arguments_and_tail.partition("\n)\n")
    rows = "\n".join(f"  {' '.join(map(quote, row))}" for row in arguments)
    start = f'python3 -u {quote(program)} "${{arguments[@]}}" &'
    # Pass the text as a function, because backslashes in a replacement string would be interpreted.
    tail = re.sub(r'^.* "\$\{arguments\[@\]\}" &$', lambda _: start, tail, flags=re.M)
    head = re.sub(r" (LOCAL_)?WORLD_SIZE=\d+", "", head)
    return f"{head}arguments=(\n{rows}\n)\n{tail}"


def _write_tokens(prefix: Path, vocabulary: int) -> None:
    """Write a .bin/.idx pair with random tokens, which are the same in every call.

    Therefore the expected loss is known.
    """
    import numpy as np

    draw = np.random.default_rng(1234)
    lengths = draw.integers(50, 500, 2000).astype(np.int32)
    tokens = draw.integers(0, vocabulary, lengths.sum())
    code = dtype_code(vocabulary)
    tokens.astype(DTYPES[code]).tofile(prefix.with_suffix(".bin"))
    with prefix.with_suffix(".idx").open("wb") as file:
        write_index(file, code, lambda: [(lengths, np.empty(0, np.int64))])


def _check_end(log: ParsedLog, code: int, errors: list[str]) -> Check:
    """Check that the program ended normally. Otherwise, report its first error."""
    ended = shell.how_it_ended(code)
    if code and errors:
        ended = f"{ended}; first error: {errors[0]}"
    cause = log.cause
    if code and cause is not None and not cause.is_specific:
        ended = f"{shell.how_it_ended(code)}; {cause.evidence}"
    remedy = f"{cause.name}: {cause.remedy}" if cause is not None else _SEE
    return judge(
        "program ends",
        code == 0,
        ended,
        "exit code 0",
        remedy,
    )


def _check_training(log: ParsedLog) -> Check:
    """Check that the log reader read every step, and that the loss is what random tokens should give."""
    losses = [record.loss for record in log.records if record.loss is not None]
    # The fp16 loss scale caused the step to be skipped
    skipped = sum("all_skipped" in record.states for record in log.records)
    random_loss = math.log(GPT2_VOCABULARY)
    is_complete = bool(losses) and len(losses) + skipped == STEPS
    is_random = all(abs(loss - random_loss) < 0.1 for loss in losses)
    shown_losses = ", ".join(f"{loss:.4f}" for loss in losses) or "none"
    value = (
        f"{len(log.records)} of {STEPS} steps, {skipped} of them skipped by the loss scale; "
        f"losses {shown_losses}"
    )
    rule = (
        f"`runbook logs` reads each step; random tokens keep the loss at ln {GPT2_VOCABULARY:,} = "
        f"{random_loss:.2f} +- 0.1"
    )
    return judge(
        "training",
        is_complete and is_random,
        value,
        rule,
        _SEE,
    )


def _check_going_on(log: ParsedLog, number: int) -> Check:
    """Check that a job starts with the step after the last checkpoint from the previous job."""
    first = STEPS * (number - 1) + 1
    steps = [record.iteration for record in log.records]
    shown_step = str(steps[0]) if steps else "none"
    return judge(
        "goes on",
        steps[:1] == [first],
        UpstreamMessage.FIRST_STEP.fill(shown_step=shown_step),
        f"step {first}, after the checkpoint of the previous job",
        UpstreamMessage.CHECKPOINT_NOT_LOADED.fill(),
    )


def _check_checkpoint(folder: Path, last_step: int) -> Check:
    """Check that a folder contains the checkpoint for the last step."""
    file = folder / "latest_checkpointed_iteration.txt"
    step = file.read_text().strip() if file.exists() else "none"
    rule = f"saved at step {last_step}"
    return judge(
        "checkpoint",
        step == str(last_step),
        f"newest: {step}",
        rule,
        _SEE,
    )
