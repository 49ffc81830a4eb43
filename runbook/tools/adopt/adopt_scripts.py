"""`runbook adopt`: turns a job script into a run file, with a report.

The report lists settings that have no key, and errors in the script.
"""

import copy
import dataclasses
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.checks import Check
from runbook.core.errors import ParamsError, PlanError, RunbookError
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.display import Table
from runbook.jobs.submitted_script import submitted_script
from runbook.params.catalogues import read_models
from runbook.params.schema.entries import with_shape
from runbook.params.secrets import mask
from runbook.params.settings import with_placeholders
from runbook.phases.rendered_jobs import render_all
from runbook.plan_file.phase_names import FULL
from runbook.runs.this_machine import make_plan_here
from runbook.tools.adopt.adoption import Adoption, adopt_script, rewritten
from runbook.tools.adopt.adoption import adopt as adopt_text
from runbook.tools.adopt.configs.adopt_config import adopt_config
from runbook.tools.adopt.configs.config_proof import differences, prove_config
from runbook.tools.adopt.configs.program_config import ProgramConfig, read_config
from runbook.tools.adopt.launches import framework_of
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.nemo_files import script_of_nemo_file
from runbook.tools.adopt.open_questions import leave_open
from runbook.tools.adopt.option_files import (
    script_of_flat_files,
    script_of_megatron_file,
    script_of_test_case,
)
from runbook.tools.adopt.option_importance import Importance
from runbook.tools.adopt.processes_and_logs import is_log, script_of_log, script_of_process
from runbook.tools.adopt.proof import (
    OptionVerdict,
    ProvenOption,
    RenderedPhase,
    prove,
    shown_names,
    unaccounted,
)
from runbook.tools.adopt.script import Script
from runbook.tools.adopt.text_to_paste import model_entry, site_block

_MOST_BYTES = 1 << 18
_TEXT_ENDINGS = (
    "",
    ".sh",
    ".bash",
    ".slurm",
    ".sbatch",
    ".pbs",
    ".json",
    ".yaml",
    ".yml",
    ".py",
    ".txt",
    ".env",
    ".conf",
    ".cfg",
    ".args",
)


@dataclass(frozen=True)
class AdoptReport:
    """What `runbook adopt` reports."""

    adopted: Adoption
    path: Path
    refused: str
    """Why `runbook check` rejects the run file, or empty if it accepts the file."""
    proof: Sequence[ProvenOption] = ()
    """Every option in the script, next to the corresponding option in the run file. Empty if the
    script does not start a training run.
    """
    site_block: str = ""
    """Text to paste into the site file."""
    model_entry: str = ""
    """Text to paste into params/models.yaml, or empty if the catalogue has the model."""
    differences: Sequence[Row] = ()
    """Differences that exist because our trainer is a different program.

    Scripts for Megatron and NeMo have no such differences.
    """

    @property
    def check(self) -> str:
        """Return what `runbook check` says about the run file, or the unexplained options."""
        lost = [row.option for row in unaccounted(self.proof)]
        findings = self.adopted.findings
        if self.refused:
            return self.refused
        if lost:
            return AdoptMessage.OPTIONS_LOST.fill(number=len(lost), options=", ".join(lost))
        if findings.other_model:
            return AdoptMessage.ANOTHER_MODEL.fill(model=findings.other_model)
        if findings.unknown_model:
            model = findings.value("model")
            return f"the model is not known ({findings.unknown_model}): {model} stands in for it"
        if findings.unset_arguments:
            return findings.unset_arguments
        if findings.absent_file:
            return (
                f"{findings.absent_file} was not given and may contain more settings: pass it "
                "after the script"
            )
        return "passes"

    def as_dict(self) -> dict[str, object]:
        """Return the whole report for --json."""
        adopted = self.adopted
        findings = adopted.findings
        carried = {"key": "key", "value": "value", "from": "source"}
        errors = {"number": "number", "what": "problem", "remedy": "remedy"}
        remark = {"text": "text", "why": "why"}
        return {
            "run_file": str(self.path),
            "run": adopted.name,
            "site": findings.site.site,
            "framework": adopted.framework,
            "filled_in_from": adopted.base,
            "carried": self._rows(findings.carried.values(), carried),
            "not_carried": self._rows(findings.leftovers, remark),
            "done_by_itself": self._rows(findings.automatic, remark),
            "errors": self._rows(adopted.errors, errors),
            "notes": list(adopted.script.notes),
            "launches": self._launch_rows(),
            "required": self._required_rows(),
            "another_program": list(self.differences),
            "proof": self._proof_rows(),
            "site_block": self.site_block,
            "model_entry": self.model_entry,
            "check": self.check,
        }

    def _rows(self, items: Iterable[Any], attributes: Mapping[str, str]) -> list[Row]:
        """Return a row for each item, with its line, its place in a file, and these attributes."""
        places = self.adopted.script.places
        rows: list[Row] = []
        for item in items:
            row = {"line": item.line, "place": places[item.line]}
            row |= {key: getattr(item, name) for key, name in attributes.items()}
            rows.append(row)
        return rows

    def _launch_rows(self) -> list[Row]:
        """Return a row for each training run started by the script, and mark the adopted one."""
        adopted = self.adopted
        places = adopted.script.places
        rows: list[Row] = []
        for number, launch in enumerate(adopted.launches, 1):
            is_chosen = "no"
            if launch is adopted.launch:
                is_chosen = "yes"
            rows.append(
                {
                    "launch": number,
                    "where": places[launch.command.line],
                    "program": launch.script.shown,
                    "arguments": len(launch.arguments),
                    "in the run file": is_chosen,
                }
            )
        return rows

    def _required_rows(self) -> list[Row]:
        """Return a row for each key that the site requires and the script does not set."""
        rows: list[Row] = []
        for key, meaning in self.adopted.required.items():
            rows.append({"key": key, "what": meaning})
        return rows

    def as_text(self) -> str:
        """Return the report as text for a terminal."""
        adopted = self.adopted
        findings = adopted.findings
        num_values = len(findings.carried)
        site = findings.site.site
        parts = [f"{self.path}: {num_values} values, site {site}, framework {adopted.framework}."]
        if adopted.base:
            parts.append(
                f"Values that the script does not set come from params/{adopted.base}.yaml, which "
                "was written from its document."
            )
        parts += [f"Note: {note}." for note in adopted.script.notes]
        if self.differences:
            title = AdoptMessage.OTHER_PROGRAM.fill(framework=adopted.framework)
            parts.append(Table(list(self.differences), title).as_text())
        if len(adopted.launches) > 1:
            title = (
                f"The script starts {len(adopted.launches)} training runs; --launch N chooses one"
            )
            parts.append(Table(self._launch_rows(), title).as_text())
        if not self.differences:
            parts.append(_table("Known errors in this script", self._error_rows()))
        parts += self._proof_parts()
        parts.append(_table("Not carried over", self._leftover_rows()))
        if self.site_block:
            parts.append(f"To paste into {findings.site_file}:\n\n{self.site_block.rstrip()}")
        if self.model_entry:
            parts.append(f"To paste into params/models.yaml:\n\n{self.model_entry.rstrip()}")
        parts.append(self._required_part())
        parts.append(self._check_part())
        return "\n\n".join(parts)

    def _required_part(self) -> str:
        """Return a table with the values that a person must still supply, or a sentence."""
        required = self._required_rows()
        title = "Still needed, in the run file or with --set"
        if not required:
            return f"{title}: nothing."
        return Table(required, title).as_text()

    def _check_part(self) -> str:
        """Return a sentence that states what `runbook check` found, and the next step."""
        name = str(self.path)
        if self.path.parent.name == "params":
            name = self.adopted.name
        if self.refused:
            return f"runbook check {name} would report:\n{self.refused}"
        if self.check != "passes":
            return f"Compare by hand before you run it: {self.check}."
        return f"runbook check {name}: passes. Next: runbook plan {name}"

    def _proof_rows(self) -> list[Row]:
        """Return a row for each option in the command from the script or from the run file."""
        places = self.adopted.script.places
        rows: list[Row] = []
        for row in self.proof:
            rows.append(
                {
                    "option": row.option,
                    "script": row.script,
                    "run_file": row.rendered,
                    "verdict": row.verdict.value,
                    "rank": row.importance.value,
                    "why": row.why,
                    "line": row.line,
                    "place": places[row.line],
                }
            )
        return rows

    def _proof_parts(self) -> list[str]:
        """Return the two commands side by side: a table by importance, and the equal options."""
        parts = []
        compared = "command"
        both = "commands"
        if self.differences:  # A configuration has keys instead of options
            compared = "keys"
            both = "files"
        for importance in Importance:
            rows = self._different_rows(importance)
            if rows:
                title = f"The script's {compared} and the run file's: {importance.value}, {len(rows)} differ"
                parts.append(Table(rows, title).as_text())
        same = [row for row in self.proof if row.verdict is OptionVerdict.SAME]
        if same:
            options = "  ".join(f"{row.option} {row.script}".strip() for row in same)
            text = textwrap.fill(options, 100, break_on_hyphens=False)
            parts.append(f"The same in both {both}: {len(same)} options.\n{text}")
        return parts

    def _different_rows(self, importance: Importance) -> list[Row]:
        """Return a row for each option of this importance that differs between the two commands."""
        places = self.adopted.script.places
        rows: list[Row] = []
        for option in self.proof:
            if option.importance is not importance or option.verdict is OptionVerdict.SAME:
                continue
            where = ""
            if option.line:
                where = places[option.line]
            rows.append(
                {
                    "option": option.option,
                    "script": option.script,
                    "run file": option.rendered,
                    "": option.verdict.value,
                    "because": option.why,
                    "where": where,
                }
            )
        return rows

    def _error_rows(self) -> list[Row]:
        places = self.adopted.script.places
        rows: list[Row] = []
        for error in self.adopted.errors:
            rows.append(
                {
                    "no": error.number,
                    "where": places[error.line],
                    "what": error.problem,
                    "we": error.remedy,
                }
            )
        return rows

    def _leftover_rows(self) -> list[Row]:
        """Return the settings that are not carried over, except options, which the proof lists."""
        proven = {row.option for row in self.proof}
        places = self.adopted.script.places
        rows: list[Row] = []
        for remark in self.adopted.findings.leftovers:
            option = remark.text.partition(" ")[0]
            if option not in proven:
                rows.append(
                    {
                        "where": places[remark.line],
                        "what": remark.text,
                        "because": remark.why,
                    }
                )
        return rows


def _table(title: str, rows: list[Row]) -> str:
    """Return a table that states its row count in the title, or one line if there are no rows."""
    if not rows:
        return f"{title}: none."
    return Table(rows, f"{title}: {len(rows)}").as_text()


def adopt(
    scripts: Sequence[Path],
    out: Path | None,
    *,
    replace: bool = False,
    launch: int = 0,
) -> AdoptReport:
    """Run a script in a sandbox, write the run file, and report whether it passes `runbook check`.

    The sandbox contains copies of small text files next to the first script. An existing
    run file with different contents is an error, unless `replace` is set. If there are multiple
    training runs, the last one is used, or the one with the number `launch` (from 1).
    """
    project = params.project_root()
    path = _run_file_path(out, run_name(scripts[0]), project)
    log = _log_text(scripts[0])
    if log:
        script = script_of_log(log, scripts[0].name)
        adopted = adopt_script(script, scripts[0].name, path.stem, project, launch)
        return _write(adopted, path, project, replace=replace)
    # A configuration is parsed unmasked and then masked value by value, because masking first may
    # break its TOML.
    texts = [(script.name, _read(script)) for script in scripts]
    own_file = _script_of_own_file(scripts[0], texts)
    if own_file:
        adopted = adopt_script(own_file, scripts[0].name, path.stem, project, launch)
        return _write(adopted, path, project, replace=replace)
    config = read_config(texts, launch)
    if config:
        adopted = adopt_config(config, texts, path.stem, project)
        return _write(adopted, path, project, replace=replace, config=config)
    # No secret enters the sandbox, so none can leak into the run file.
    files = [(name, mask(text)) for name, text in texts]
    beside, left_out = _files_beside(scripts[0])
    adopted = adopt_text(files, path.stem, project, beside, launch)
    adopted = dataclasses.replace(adopted, script=_with_notes(adopted.script, left_out))
    return _write(adopted, path, project, replace=replace)


def _script_of_own_file(path: Path, texts: Sequence[tuple[str, str]]) -> Script | None:
    """Return the training run in a YAML file for Megatron-LM or NeMo, or None for other files."""
    name, text = texts[0]
    if any(Path(file).suffix not in (".yaml", ".yml") for file, _ in texts):
        return None
    if len(texts) > 1:
        return script_of_flat_files(texts)
    return (
        script_of_nemo_file(name, text)
        or script_of_megatron_file(name, text)
        or script_of_test_case(path.resolve(), text)
        or script_of_flat_files(texts)
    )


def adopt_process(number: int, out: Path | None, *, replace: bool = False) -> AdoptReport:
    """Turn the command line of a running process into a run file. No program is started."""
    project = params.project_root()
    path = _run_file_path(out, f"process-{number}", project)
    script = script_of_process(number)
    adopted = adopt_script(script, f"process {number}", path.stem, project)
    return _write(adopted, path, project, replace=replace)


def adopt_job(
    job_id: str,
    out: Path | None,
    *,
    replace: bool = False,
    launch: int = 0,
) -> AdoptReport:
    """Turn the script for a queued job into a run file, as `adopt` does for a script on disk."""
    project = params.project_root()
    name, text = submitted_script(job_id)
    path = _run_file_path(out, f"job-{job_id.partition('.')[0]}", project)
    adopted = adopt_text([(name, mask(text))], path.stem, project, {}, launch)
    return _write(adopted, path, project, replace=replace)


def _run_file_path(out: Path | None, name: str, project: Path) -> Path:
    """Return the path to the run file.

    Raise `ParamsError` if the path does not end in .yaml or .yml.
    """
    path = out or project / "params" / f"{name}.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise ParamsError(AdoptMessage.NOT_A_YAML_NAME, path=path)
    return path


def _write(
    adopted: Adoption,
    path: Path,
    project: Path,
    *,
    replace: bool,
    config: ProgramConfig | None = None,
) -> AdoptReport:
    """Write the run file, unless a different one exists, and return the report."""
    adopted, refused, rendered = _settled(adopted, project)
    if path.exists() and not replace and path.read_text(encoding="utf-8") != adopted.text:
        raise ParamsError(AdoptMessage.RUN_FILE_EXISTS, path=path)
    write_text(path, adopted.text)
    report = _report(adopted, path, refused, rendered, project)
    if config is None:
        return report
    proof = prove_config(config, adopted.findings, rendered)
    return dataclasses.replace(report, proof=proof, differences=differences(config))


def _log_text(path: Path) -> str:
    """Return the first part of a log with arguments printed by Megatron, or '' for other files."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES_OF_LOG).decode("utf-8", errors="replace")
    except OSError:
        return ""
    if not is_log(text):
        return ""
    return text


_MOST_BYTES_OF_LOG = 4 << 20
"""Number of bytes to read from a log. Megatron prints its arguments before the first step."""


def _report(
    adopted: Adoption,
    path: Path,
    refused: str,
    rendered: RenderedPhase | None,
    project: Path,
) -> AdoptReport:
    """Return the report on an adoption, with the proof and the text to paste into other files."""
    findings = adopted.findings
    proof: list[ProvenOption] = []
    if adopted.launch:
        rows = prove(adopted.launch, adopted.script, findings, rendered)
        proof = shown_names(rows, framework_of([adopted.launch]))
    base_model = read_models(project).get(str(findings.value("model")))
    shape = findings.shape
    model = with_shape(base_model, shape)
    sequence_length = findings.number("training.sequence_length") or model.sequence_length
    model = model.model_copy(update={"sequence_length": sequence_length})
    entry = model_entry(adopted.name, adopted.source, model, findings)
    return AdoptReport(adopted, path, refused, proof, site_block(findings), entry)


def run_name(script: Path) -> str:
    """Derive a run name from a script name.

    Names that YAML would read as a number or a boolean get a prefix.

    >>> run_name(Path("a/04-gpt175B.sh")), run_name(Path("my job.sbatch")), run_name(Path("models.sh"))
    ('04-gpt175B', 'my-job', 'adopted-models')
    >>> run_name(Path("126.sh")), run_name(Path("1e5.sh")), run_name(Path("on.sh"))
    ('job-126', 'job-1e5', 'job-on')
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", script.stem).strip("-._")[:60]
    if stem in ("", "models", "datasets", "local"):  # Names of other files in params
        return f"adopted-{stem or 'script'}"
    if not re.search("[A-Za-z]{2}", stem) or stem.lower() in _WORDS_OF_YAML:
        return f"job-{stem}"
    return stem


_WORDS_OF_YAML = ("true", "false", "yes", "no", "on", "off", "null", "inf", "nan")


def _read(path: Path) -> str:
    """Read a job script. Raise `ParamsError` if the file is not a text file of at most 256 KiB."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ParamsError(
            AdoptMessage.SCRIPT_NOT_READABLE, path=path, reason=error.strerror
        ) from error
    if len(raw) > _MOST_BYTES or b"\0" in raw:
        raise ParamsError(AdoptMessage.NOT_A_SCRIPT, path=path)
    return raw.decode(
        "utf-8-sig", errors="replace"
    )  # A byte order mark is valid neither in TOML nor in Python


_SECRET_NAME = re.compile(
    r"(?<![a-z])(?:tokens?|secrets?|credentials?|creds?|passwords?|passwd|passphrase|api[_-]?keys?"
    r"|keys?|id_(?:rsa|dsa|ecdsa|ed25519)|netrc|pgpass|htpasswd|kubeconfig|auth|pat)(?![a-z])",
    re.IGNORECASE,
)
_CODE = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".py")
"""Files that are programs, even if their name suggests a secret (count_tokens.py)."""


def is_secret_file(name: str, text: str) -> bool:
    """Return whether a file contains only a secret.

    A file counts as a secret if its name suggests it, or if it contains nothing but one long word
    of letters and digits.

    >>> is_secret_file("hf_token.txt", "x"), is_secret_file("wandb", "0123456789abcdef01ab"), is_secret_file("a.py", "x")
    (True, True, False)
    """
    path = Path(name)
    if path.suffix in _CODE:
        return False
    one_word = re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_.~-]{16,}", text.strip())
    return _SECRET_NAME.search(path.stem) is not None or one_word is not None


def _with_notes(script: Script, left_out: Mapping[str, str]) -> Script:
    notes = []
    for name, reason in left_out.items():
        notes.append(AdoptMessage.OUTSIDE_SANDBOX.fill(name=name, reason=reason))

    return dataclasses.replace(script, notes=(*script.notes, *notes))


def _files_beside(script: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read the small text files next to a script that the script may start or read.

    Search the script folder and two levels below it. From the parent folder and the checkout,
    read only files named by the script. Access tokens in all files are masked. Files that contain
    only a secret, or cannot be read, are left out; the second dictionary says why.
    """
    folder = script.resolve().parent
    texts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    num_bytes = 0
    for path in _text_files(folder):
        if path.name == script.name:
            continue
        name = path.relative_to(folder).as_posix()
        try:
            size = path.stat().st_size
            is_small = size <= _MOST_BYTES and num_bytes + size <= _MOST_BYTES_BESIDE
            if not is_small or len(texts) >= _MOST_FILES:
                continue
            raw = path.read_bytes()
        except OSError as error:
            left_out[name] = AdoptMessage.FILE_NOT_READABLE.fill(reason=error.strerror)
            continue
        if b"\0" in raw:
            continue
        text = raw.decode("utf-8", errors="replace")
        if is_secret_file(path.name, text):
            left_out[name] = AdoptMessage.LOOKS_LIKE_A_SECRET.fill()
        else:
            texts[name] = mask(text)
            num_bytes += size
    main_text = _read(script)
    texts |= _files_above(script, (main_text,))
    elsewhere = _files_of_checkout(script, (main_text,))
    elsewhere |= _files_of_checkout(script, tuple(elsewhere.values()))
    return elsewhere | texts, left_out


def _files_above(script: Path, job_texts: Iterable[str]) -> dict[str, str]:
    """Read the text files in the parent folder that the script or its files name.

    For a file in the parent folder itself, such as a template, the file name is enough. For a file
    in a deeper folder, the script must give the path, such as `../configs/model.sh`.
    """
    folder = script.resolve().parent
    names = set()
    for text in job_texts:
        names.update(re.findall(r"[\w.-]+", text))
    siblings = [path.name for path in folder.parent.glob("*") if path.name in names]
    texts = {}
    for name in sorted({*siblings, *_named_paths(job_texts, _PATH_ABOVE)}):
        text = _text_of(folder.parent / name, folder.parent)
        if text and Path(name).suffix:
            texts[f"../{name}"] = text
    return texts


_PATH_ABOVE = re.compile(r"(?<![\w.])\.\./((?:[\w-][\w.-]*/)*[\w-][\w.-]*)")
_PATH_BELOW = re.compile(r"(?<![\w/.$}])(?<!\w-)(?:\./)?((?:\w[\w.-]*/)+\w[\w.-]*)")
"""Match paths in scripts, relative to the parent folder or to the folder where the job starts."""


def _named_paths(texts: Iterable[str], pattern: re.Pattern[str]) -> set[str]:
    """Return all paths in the texts that match a pattern."""
    paths = set()
    for text in texts:
        paths.update(pattern.findall(text))
    return paths


def _files_of_checkout(script: Path, job_texts: Iterable[str]) -> dict[str, str]:
    """Read the text files that a job names relative to a folder above the script.

    Many jobs are submitted from the top of a checkout: `sbatch jobs/train.sh` may read
    configs/model.sh. Only files inside the checkout that the script is in are read.
    """
    folder = script.resolve().parent
    top = _top_of_checkout(folder)
    if top is None:
        return {}
    depth = len(folder.relative_to(top).parts)
    texts: dict[str, str] = {}
    for name in sorted(_named_paths(job_texts, _PATH_BELOW)):
        for start in folder.parents[:depth]:
            text = _text_of(start / name, top)
            if text:
                texts.setdefault(name, text)
    return texts


def _top_of_checkout(folder: Path) -> Path | None:
    """Return the checkout that contains a folder, or None."""
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return None


def _text_of(path: Path, top: Path) -> str:
    """Read a small text file within `top`, with secrets masked.

    The result is empty if the file is not small text, may contain secrets, or cannot be read.
    """
    try:
        if not _is_text_file(path, top) or path.stat().st_size > _MOST_BYTES:
            return ""
        raw = path.read_bytes()
    except OSError:
        return ""
    text = raw.decode("utf-8", errors="replace")
    if b"\0" in raw or is_secret_file(path.name, text):
        return ""
    return mask(text)


_MOST_BYTES_BESIDE = 4 << 20
_MOST_FILES = 300


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, and up to two levels below it, whose names mark them as text.

    Hidden files, links, and files in linked folders are left out.
    """
    for pattern in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(pattern)):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if not hidden and _is_text_file(path, folder):
                yield path


def _is_text_file(path: Path, top: Path) -> bool:
    """Return whether a path is a file within `top`, has a text file's name, and is not a link."""
    if path.suffix not in _TEXT_ENDINGS:
        return False
    try:
        is_inside = path.resolve().is_relative_to(top.resolve())
        return is_inside and path.is_file() and not path.is_symlink()
    except (OSError, RuntimeError):  # The folder is inaccessible, or its links form a loop
        return False


def _settled(adopted: Adoption, project: Path) -> tuple[Adoption, str, RenderedPhase | None]:
    """Return the adoption, the reason why `runbook check` rejects it (or ''), and the rendered job.

    A setting becomes a question if the source does not set it and no default makes the run valid.
    """
    catalogue = read_models(project)
    models = {name: catalogue.get(name) for name in catalogue.names}
    as_read = copy.deepcopy(adopted.findings)
    first_try = tried = _tried(adopted, project)
    settled = adopted
    for _ in range(_MOST_ROUNDS):
        if not tried.refused or not leave_open(tried.checks, settled.findings, models):
            break
        settled = rewritten(settled)
        tried = _tried(settled, project)
    if tried.refused:  # The placeholders did not help, so keep the values from the source
        unsettled = dataclasses.replace(adopted, findings=as_read)
        return unsettled, first_try.refused, first_try.rendered
    return settled, tried.refused, tried.rendered


_MOST_ROUNDS = 8
"""Number of attempts to make at writing a valid run file.

Each attempt turns more values into questions.
"""


@dataclass(frozen=True)
class TriedRunFile:
    """A run file, and what `runbook check` says about it."""

    refused: str
    """Why `runbook check` rejects the run file, or empty if `runbook check` accepts it."""
    checks: tuple[Check, ...]
    """The checks that failed, if values are inconsistent."""
    rendered: RenderedPhase | None
    """The training rendered from the run file, or None if it cannot be planned."""


def _tried(adopted: Adoption, project: Path) -> TriedRunFile:
    """Read, plan and render a run file as `runbook check` does."""
    rendered = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{adopted.name}.yaml"
        path.write_text(adopted.text, encoding="utf-8")
        try:
            settings = params.load(str(path), project=project, portable=True)
            settings = with_placeholders(settings)
            plan = make_plan_here(settings)
            rendered = RenderedPhase(settings, plan.phases[FULL])
            render_all(str(path), (), Path(folder) / "scripts", placeholders=True)
        except PlanError as error:
            return TriedRunFile(_reason(error, path), error.checks, rendered)
        except RunbookError as error:
            return TriedRunFile(_reason(error, path), (), rendered)
    return TriedRunFile("", (), rendered)


def _reason(error: RunbookError, path: Path) -> str:
    return str(error).replace(str(path), path.name)
