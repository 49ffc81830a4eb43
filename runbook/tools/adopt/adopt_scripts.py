"""`runbook adopt`: a job script becomes a run file, with a report of what was left over and which errors it has."""

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.core.errors import ParamsError, RunbookError
from runbook.core.files import write_text
from runbook.core.table import Row
from runbook.display import Table
from runbook.params.secrets import mask
from runbook.phases.plan_service import render_all
from runbook.tools.adopt.adoption import Adoption
from runbook.tools.adopt.adoption import adopt as adopt_text
from runbook.tools.adopt.script import Script

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
    """What `runbook adopt` tells."""

    adopted: Adoption
    path: Path
    refused: str
    """Why `runbook check` would not take the run file; empty where it does."""

    def as_dict(self) -> dict[str, object]:
        """Return everything for --json."""
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
            "check": self.refused or "passes",
        }

    def _rows(self, items: Iterable[Any], attributes: Mapping[str, str]) -> list[Row]:
        """Return a row for each item: its line, its place, and attributes under their keys."""
        places = self.adopted.script.places
        rows: list[Row] = []
        for item in items:
            row = {"line": item.line, "place": places[item.line]}
            row |= {key: getattr(item, name) for key, name in attributes.items()}
            rows.append(row)
        return rows

    def _launch_rows(self) -> list[Row]:
        """Return a row for each training that the script starts, and whether it is the run file's."""
        adopted = self.adopted
        places = adopted.script.places
        return [
            {
                "launch": number,
                "where": places[launch.command.line],
                "program": launch.script.shown,
                "arguments": len(launch.arguments),
                "in the run file": "yes" if launch is adopted.launch else "no",
            }
            for number, launch in enumerate(adopted.launches, 1)
        ]

    def _required_rows(self) -> list[Row]:
        """Return a row for each key that the site requires and the script does not give."""
        return [{"key": key, "what": meaning} for key, meaning in self.adopted.required.items()]

    def as_text(self) -> str:
        """Return the report for a terminal."""
        adopted = self.adopted
        findings = adopted.findings
        num_values = len(findings.carried)
        site = findings.site.site
        parts = [f"{self.path}: {num_values} values, site {site}, framework {adopted.framework}."]
        if adopted.base:
            parts.append(
                f"What the script does not say is as in params/{adopted.base}.yaml, "
                "which its document became."
            )
        parts += [f"Note: {note}." for note in adopted.script.notes]
        if len(adopted.launches) > 1:
            title = f"The script starts {len(adopted.launches)} trainings; --launch N chooses one"
            parts.append(Table(self._launch_rows(), title).as_text())
        parts.append(_table("Errors of the documents in this script", self._error_rows()))
        parts.append(_table("Not carried over", self._leftover_rows()))
        required = self._required_rows()
        title = "Still to be given, in the run file or by --set"
        parts.append(Table(required, title).as_text() if required else f"{title}: nothing.")
        in_params = self.path.parent.name == "params"
        name = adopted.name if in_params else str(self.path)
        if self.refused:
            parts.append(f"runbook check {name} will say:\n{self.refused}")
        else:
            parts.append(f"runbook check {name}: passes. Next: runbook plan {name}")
        return "\n\n".join(parts)

    def _error_rows(self) -> list[Row]:
        places = self.adopted.script.places
        return [
            {
                "no": error.number,
                "where": places[error.line],
                "what": error.problem,
                "we": error.remedy,
            }
            for error in self.adopted.errors
        ]

    def _leftover_rows(self) -> list[Row]:
        places = self.adopted.script.places
        return [
            {"where": places[remark.line], "what": remark.text, "because": remark.why}
            for remark in self.adopted.findings.leftovers
        ]


def _table(title: str, rows: list[Row]) -> str:
    """Return a table with the number of its rows in the title, or one line where it has none."""
    return Table(rows, f"{title}: {len(rows)}").as_text() if rows else f"{title}: none."


def adopt(
    scripts: Sequence[Path], out: Path | None, *, replace: bool = False, launch: int = 0
) -> AdoptReport:
    """Run the script in a sandbox, write the run file, and say whether `runbook check` accepts it.

    The small text files in the first script's folder are at hand in the sandbox, as copies. An
    existing run file with other contents is refused, unless `replace`. Of several trainings the last
    one counts, or the one that `launch` counts from 1.
    """
    project = params.project_root()
    # No secret goes into the sandbox, so that none can come out of it into the run file.
    files = [(path.name, mask(_read(path))) for path in scripts]
    beside, secret_files = _files_beside(scripts[0])
    path = out or project / "params" / f"{run_name(scripts[0])}.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise ParamsError(f"--out {path}: a run file is called NAME.yaml.")
    adopted = adopt_text(files, path.stem, project, beside, launch)
    adopted = dataclasses.replace(adopted, script=_with_notes(adopted.script, secret_files))
    if path.exists() and not replace and path.read_text(encoding="utf-8") != adopted.text:
        raise ParamsError(
            f"{path} is there and says something else. Name another with --out, or give --replace."
        )
    refused = _refusal(adopted, project)
    write_text(path, adopted.text)
    return AdoptReport(adopted, path, refused)


def run_name(script: Path) -> str:
    """Return the name of a run that a script's name gives.

    YAML reads some names as numbers or as true and false: these get a word in front.

    >>> run_name(Path("a/04-gpt175B.sh")), run_name(Path("my job.sbatch")), run_name(Path("models.sh"))
    ('04-gpt175B', 'my-job', 'adopted-models')
    >>> run_name(Path("126.sh")), run_name(Path("1e5.sh")), run_name(Path("on.sh"))
    ('job-126', 'job-1e5', 'job-on')
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", script.stem).strip("-._")[:60]
    if stem in ("", "models", "datasets", "local"):  # names of other files in params
        return f"adopted-{stem or 'script'}"
    if not re.search("[A-Za-z]{2}", stem) or stem.lower() in _WORDS_OF_YAML:
        return f"job-{stem}"
    return stem


_WORDS_OF_YAML = ("true", "false", "yes", "no", "on", "off", "null", "inf", "nan")


def _read(path: Path) -> str:
    """Read a job script. Raise `ParamsError` where it is no text file of at most 256 KiB."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ParamsError(f"{path} cannot be read: {error.strerror}.") from error
    if len(raw) > _MOST_BYTES or b"\0" in raw:
        raise ParamsError(f"{path} is no job script: it is larger than 256 KiB, or not text.")
    return raw.decode("utf-8", errors="replace")


_SECRET_NAME = re.compile(
    r"(?<![a-z])(?:tokens?|secrets?|credentials?|creds?|passwords?|passwd|passphrase|api[_-]?keys?"
    r"|keys?|id_(?:rsa|dsa|ecdsa|ed25519)|netrc|pgpass|htpasswd|kubeconfig|auth|pat)(?![a-z])",
    re.IGNORECASE,
)
_CODE = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".py")
"""Files that are started, whatever they are called: count_tokens.py."""


def is_secret_file(name: str, text: str) -> bool:
    """Return whether a file is nothing but a secret.

    Its name says so, or it is one long word of letters and digits.

    >>> is_secret_file("hf_token.txt", "x"), is_secret_file("wandb", "0123456789abcdef01ab"), is_secret_file("a.py", "x")
    (True, True, False)
    """
    path = Path(name)
    if path.suffix in _CODE:
        return False
    one_word = re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_.~-]{16,}", text.strip())
    return _SECRET_NAME.search(path.stem) is not None or one_word is not None


def _with_notes(script: Script, secret_files: Sequence[str]) -> Script:
    notes = [f"{name} stays outside the sandbox: it looks like a secret" for name in secret_files]
    return dataclasses.replace(script, notes=(*script.notes, *notes))


def _files_beside(script: Path) -> tuple[dict[str, str], list[str]]:
    """Read the small text files next to a script, which it may start or read.

    They are in its folder and the two levels below it; of the folder above it, those that the script names.

    Tokens in them are masked. Files that are nothing but a secret are left out; the second list has
    their names.
    """
    folder = script.resolve().parent
    texts: dict[str, str] = {}
    secret_files: list[str] = []
    num_bytes = 0
    for path in _text_files(folder):
        if path.name == script.name:
            continue
        size = path.stat().st_size
        if size > _MOST_BYTES or num_bytes + size > _MOST_BYTES_BESIDE or len(texts) >= _MOST_FILES:
            continue
        raw = path.read_bytes()
        if b"\0" in raw:
            continue
        name = path.relative_to(folder).as_posix()
        text = raw.decode("utf-8", errors="replace")
        if is_secret_file(path.name, text):
            secret_files.append(name)
        else:
            texts[name] = mask(text)
            num_bytes += size
    texts |= _files_above(script)
    return texts, secret_files


def _files_above(script: Path) -> dict[str, str]:
    """Read the text files of the folder above a script's that the script names, such as a template."""
    folder = script.resolve().parent
    words = set(re.findall(r"[\w.-]+", _read(script)))
    texts = {}
    for path in sorted(folder.parent.glob("*")):
        is_named = path.name in words and path.suffix in _TEXT_ENDINGS
        if not is_named or path.is_symlink() or not path.is_file():
            continue
        raw = path.read_bytes()
        text = raw.decode("utf-8", errors="replace")
        is_small_text = len(raw) <= _MOST_BYTES and b"\0" not in raw
        if is_small_text and path.suffix and not is_secret_file(path.name, text):
            texts[f"../{path.name}"] = mask(text)
    return texts


_MOST_BYTES_BESIDE = 4 << 20
_MOST_FILES = 300


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of two levels below it that are text by their names.

    No hidden one, no link.
    """
    for pattern in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(pattern)):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            is_text = path.suffix in _TEXT_ENDINGS
            if is_text and not hidden and path.is_file() and not path.is_symlink():
                yield path


def _refusal(adopted: Adoption, project: Path) -> str:
    """Return why `runbook check` would not take the run file; empty where it would."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{adopted.name}.yaml"
        path.write_text(adopted.text, encoding="utf-8")
        try:
            params.load(str(path), project=project, portable=True)
            render_all(str(path), (), Path(folder) / "scripts", placeholders=True)
        except RunbookError as error:
            return str(error).replace(str(path), path.name)
    return ""
