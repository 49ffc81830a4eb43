"""Uses a checkpoint in a separate process.

It samples text, and exports and imports Hugging Face folders.
"""

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core import shell
from runbook.core.errors import DataError, ParamsError, ProgramError
from runbook.phases.messages import PhaseMessage
from runbook.plan_file import offline_defaults
from runbook.plan_file.errors import REFUSED
from runbook.plan_file.phase_names import FULL, PHASES
from runbook.plan_file.schema import PhasePlan
from runbook.planning.make_plan import Plan
from runbook.records.phase_record import find_phase_record
from runbook.results.history import read_metrics, read_validation
from runbook.runs.run_files import read_plan_file, recorded_value, tokenizer_of
from runbook.tokens.tokenizer import PROBES, load_tokenizer, tokenizer_files

_FOLDER_FILES = (
    "config.json",
    "latest_checkpointed_iteration.txt",
    "common.pt",
    "mp_rank_*/model_optim_rng.pt",
)
LIMIT_SECONDS = 24 * 3600.0
"""Longer than any model needs. Ctrl-C stops the process earlier."""


@dataclass(frozen=True)
class Sample:
    """A prompt, and how the model continued it."""

    iteration: int
    prompt: str
    continuation: str
    ids: tuple[int, ...]


def sample_texts(
    folder: Path,
    prompts: Sequence[str] = ("",),
    phase: str = FULL,
    *,
    seed: int = offline_defaults.SEED,
    **options: float,
) -> list[Sample]:
    """Generate continuations of prompts with the newest complete checkpoint.

    An empty prompt means the prompt set in the run, or else the start of a new document. `options`
    has `tokens`, `temperature` (0 selects the most likely token each time), `top_p`, `cache` and
    `iteration`.
    """
    phases = read_plan_file(folder).phases
    if phase not in phases:
        raise ParamsError(
            PhaseMessage.PHASE_TRAINS_NOTHING,
            phase=phase,
            phases=", ".join(name for name in PHASES if name in phases),
        )

    tokenizer = tokenizer_of(folder)
    sampling = phases[phase].sampling
    prompts = [prompt or sampling.prompt for prompt in prompts]
    end = sampling.end_of_document
    # An empty prompt starts a new document, which is impossible without an end-of-document token.
    beginning = [end] if end >= 0 else []
    ids = [load_tokenizer(tokenizer).encode(prompt) if prompt else beginning for prompt in prompts]
    if not all(ids):
        raise ParamsError(PhaseMessage.NO_PROMPT)

    request = {
        "iteration": 0,
        **options,
        "seed": seed,
        "prompts": ids,
    }
    reply = ask_trainer("sample", folder, phase, request)
    iteration = reply["iteration"]
    decode = load_tokenizer(tokenizer).decode
    samples = []
    for prompt, continuation in zip(prompts, reply["ids"], strict=True):
        samples.append(Sample(iteration, prompt, decode(continuation), tuple(continuation)))
    return samples


@dataclass(frozen=True)
class Exported:
    """What an export to a Hugging Face folder returned."""

    iteration: int
    architecture: str
    files: int
    bytes: int


def export_weights(
    folder: Path,
    out: Path,
    phase: str = FULL,
    iteration: int = 0,
    **options: object,
) -> Exported:
    """Write a checkpoint as a Hugging Face folder, which appears only once it is complete.

    `iteration` selects the checkpoint; 0 means the newest. `out` must be a new path or an empty
    folder. `options` are fields of `OfflineRequest` in the trainer, such as `shard_bytes`.
    """
    part = out.absolute().with_name(f"{out.absolute().name}.part")
    out = out.absolute()
    for path, why in (
        (out, PhaseMessage.EXPORT_NOT_REPLACED),
        (part, PhaseMessage.EXPORT_LEFT_PART),
    ):
        if path.exists() and (path == part or not path.is_dir() or any(path.iterdir())):
            raise ParamsError(PhaseMessage.EXPORT_EXISTS, path=path, why=why.of())

    try:
        request = {**options, "out": str(part), "iteration": iteration}
        reply = ask_trainer("export", folder, phase, request)
        exported = Exported(
            iteration=reply["iteration"],
            architecture=reply["architecture"],
            files=reply["files"],
            bytes=reply["bytes"],
        )
        plan = read_plan_file(folder)
        _write_tokenizer(tokenizer_of(folder), plan.phases[phase], part)
        (part / "README.md").write_text(
            _model_card(folder, plan, plan.phases[phase], exported), encoding="utf-8"
        )
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)

    return exported


def _write_tokenizer(name: str, spec: PhasePlan, out: Path) -> None:
    """Write the tokenizer for `transformers`, including the tokens that end a text."""
    for file, content in tokenizer_files(name).items():
        (out / file).write_bytes(content)
    end = spec.sampling.end_of_document
    config: dict[str, object] = {
        "model_max_length": spec.model.shape.positions,
        "clean_up_tokenization_spaces": False,
    }
    generation: dict[str, object] = {"do_sample": False}
    if end >= 0:
        config |= dict.fromkeys(("bos_token", "eos_token"), load_tokenizer(name).judge.piece(end))
        generation |= dict.fromkeys(("bos_token_id", "eos_token_id"), end)

    if name.endswith(".model"):
        config["tokenizer_class"] = "LlamaTokenizer"
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"

    for file, values in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        if not (out / file).exists():
            (out / file).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _model_card(
    folder: Path,
    plan: Plan,
    spec: PhasePlan,
    exported: Exported,
) -> str:
    """Return the text for README.md, with facts from the records.

    Facts that only the owner knows are left blank.
    """
    record = find_phase_record(folder, spec.phase)
    commit = ""
    versions = ""
    if record:
        commit = record.commit
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())

    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return template.format(
        name=f"{plan.run}--{plan.variant}" if plan.variant else plan.run,
        tokenizer=recorded_value(folder, "data.tokenizer"),
        spec=spec,
        exported=exported,
        model=spec.model.shape,
        cut=spec.parallel,
        texts="\n".join(_text_lines(folder, plan)),
        loss=_training_loss_text(folder / spec.log.metrics, exported.iteration),
        validation=_validation_loss_text(folder / spec.log.validation, exported.iteration),
        commit=commit or PhaseMessage.NOT_RECORDED.fill(),
        versions=versions or PhaseMessage.NOT_RECORDED.fill(),
    )


def _text_lines(folder: Path, plan: Plan) -> list[str]:
    """Return a line about each text.

    If an entry has left params/ since the training, only names and weights are known.
    """
    try:
        texts = params.load(str(folder / "run.yaml")).texts
    except ParamsError:
        unknown = PhaseMessage.NOT_RECORDED.fill()
        weights = {part.dataset: part.weight for part in plan.data.parts}
        rows = [(name, name, weight, unknown) for name, weight in weights.items()]
        rows = rows or [(plan.data.dataset, plan.data.dataset, 1.0, unknown)]
    else:
        rows = []
        for text in texts:
            rows.append((text.dataset.title, text.name, text.weight, text.dataset.licence))

    lines = []
    for title, name, weight, licence in rows:
        line = PhaseMessage.TEXT_OF_MODEL_CARD.fill(
            title=title, text=name, weight=weight, licence=licence
        )
        lines.append(line)

    return lines


def _training_loss_text(metrics: Path, last: int) -> str:
    """Return the losses at the first and at the exported iteration."""
    if not last or not metrics.exists():
        return PhaseMessage.NOT_RECORDED.fill()
    losses = []
    for iteration, loss in read_metrics(metrics).losses:
        if iteration <= last:
            losses.append(loss)

    if not losses:
        return PhaseMessage.NOT_RECORDED.fill()
    return PhaseMessage.LOSSES_OF_TRAINING.fill(first=losses[0], latest=losses[-1], last=last)


def _validation_loss_text(validation: Path, last: int) -> str:
    """Return the newest validation loss up to the last exported iteration."""
    evaluated = [row for row in read_validation(validation) if row.iteration <= last]
    if not evaluated:
        return "not measured"
    newest = evaluated[-1]
    return f"{newest.loss:.4f} after step {newest.iteration:,}"


def import_weights(folder: Path, source: Path, phase: str = FULL) -> str:
    """Start the run from weights in a Hugging Face model or a Megatron-LM checkpoint.

    Return the path to the new checkpoint.
    """
    if not any(path.is_file() for name in _FOLDER_FILES for path in source.glob(name)):
        raise DataError(
            PhaseMessage.NO_KNOWN_WEIGHTS, source=source, folder_files=", ".join(_FOLDER_FILES[1:])
        )

    _compare_tokenizers(tokenizer_of(folder), source)
    return str(ask_trainer("import", folder, phase, {"source": str(source.absolute())})["folder"])


def _compare_tokenizers(name: str, source: Path) -> None:
    """Raise `ParamsError` if the tokenizers of the folder and the run give different ids."""
    candidates = (source / "tokenizer.json", source / "tokenizer.model")
    path = next((path for path in candidates if path.exists()), None)
    if path is None:
        return
    ours = load_tokenizer(name)
    theirs = load_tokenizer(str(path))
    for probe in PROBES:
        expected = theirs.encode(probe)
        ids = ours.encode(probe)
        if expected != ids:
            raise ParamsError(
                PhaseMessage.ANOTHER_TOKENIZER,
                path=path,
                probe=probe,
                expected=expected[:8],
                name=name,
                ids=ids[:8],
            )


def ask_trainer(
    command: str,
    folder: Path,
    phase: str,
    request: Mapping[str, object],
    processes: int = 1,
) -> dict[str, Any]:
    """Run a trainer command in separate processes on this machine, and return its reply."""
    argv = [sys.executable, "-m"]
    if processes > 1:
        argv += [
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={processes}",
            "-m",
        ]

    argv += ["runbook.training.offline", command, str(folder / "plan.json"), "--phase", phase]
    done = shell.run(
        argv,
        input=json.dumps(request),
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.exit_code == REFUSED:
        raise ParamsError(refusal_in(done.err))
    if done.exit_code:
        hint = ""
        if "No module named" in done.err:
            hint = " Install the train extra."
        how = shell.how_it_ended(done.exit_code)
        raise ProgramError(
            PhaseMessage.COMMAND_FAILED,
            command=command,
            how=how,
            hint=hint,
            err=shell.last_lines(done.err),
        )

    reply: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return reply


_LIBRARY_LOG = re.compile(r"^\[?[IWE]\d{4} \d\d:\d\d:\d\d")
"""Matches a line that torch logs, such as a warning of its CUDA build on a machine without a GPU."""


def refusal_in(error_output: str) -> str:
    r"""Return why the trainer refused a request, without what libraries logged before.

    >>> refusal_in("W1129 17:45:28.229000 17551 cpp_extension.py:178] No CUDA runtime\nno room\n")
    'no room'
    """
    lines = [line for line in error_output.splitlines() if not _LIBRARY_LOG.match(line)]
    return "\n".join(lines).strip()
