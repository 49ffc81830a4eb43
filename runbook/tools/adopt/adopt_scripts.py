"""`runbook adopt`: a job script becomes a run file, with a report of what was left over and which errors it has."""

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Sequence
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
_TEXT = (
    *("", ".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".json", ".yaml"),
    *(".yml", ".py", ".txt", ".env", ".conf", ".cfg", ".args"),
)


@dataclass(frozen=True)
class AdoptReport:
    """What `runbook adopt` tells."""

    adopted: Adoption
    path: Path
    refused: str
    """Why `runbook check` would not take the run file; empty where it does."""

    def as_dict(self) -> dict[str, object]:
        """Everything for --json."""
        found = self.adopted
        findings = self.adopted.findings
        return {
            "run_file": str(self.path),
            "run": found.name,
            "site": findings.site.site,
            "framework": found.framework,
            "filled_in_from": found.base,
            "carried": self._rows(
                findings.carried.values(), **{"key": "key", "value": "value", "from": "source"}
            ),
            "not_carried": self._rows(findings.leftovers, text="text", why="why"),
            "done_by_itself": self._rows(findings.automatic, text="text", why="why"),
            "errors": self._rows(found.errors, number="number", what="problem", remedy="remedy"),
            "notes": list(found.script.notes),
            "required": [{"key": key, "what": what} for key, what in found.required.items()],
            "check": self.refused or "passes",
        }

    def _rows(self, items: Iterable[Any], **attributes: str) -> list[Row]:
        """Items with their lines and places, and these attributes under these keys."""
        places = self.adopted.script.places
        return [
            {"line": item.line, "place": places[item.line]}
            | {key: getattr(item, name) for key, name in attributes.items()}
            for item in items
        ]

    def as_text(self) -> str:
        """The report for a terminal."""
        found = self.adopted
        findings = self.adopted.findings
        places = self.adopted.script.places
        site = findings.site.site
        values = len(findings.carried)
        parts = [f"{self.path}: {values} values, site {site}, framework {found.framework}."]
        if found.base:
            parts.append(
                f"What the script does not say is as in params/{found.base}.yaml, which its document became."
            )
        parts += [f"Note: {note}." for note in found.script.notes]
        errors = [
            {"no": e.number, "where": places[e.line], "what": e.problem, "we": e.remedy}
            for e in found.errors
        ]
        left = [
            {"where": places[one.line], "what": one.text, "because": one.why}
            for one in findings.leftovers
        ]
        required = [{"key": key, "what": what} for key, what in found.required.items()]
        for title, rows in (
            ("Errors of the documents in this script", errors),
            ("Not carried over", left),
        ):
            parts.append(
                Table(rows, f"{title}: {len(rows)}").as_text() if rows else f"{title}: none."
            )
        title = "Still to be given, in the run file or by --set"
        parts.append(Table(required, title).as_text() if required else f"{title}: nothing.")
        name = found.name if self.path.parent.name == "params" else str(self.path)
        if self.refused:
            end = f"{name} will say:\n{self.refused}"
        else:
            end = f"{name}: passes. Next: runbook plan {name}"
        return "\n\n".join([*parts, f"runbook check {end}"])


def adopt(scripts: Sequence[Path], out: Path | None, *, replace: bool = False) -> AdoptReport:
    """Run the script in a sandbox, write the run file, and say whether `runbook check` accepts it.

    The small text files in the first script's folder are at hand in the sandbox, as copies. An existing run file with
    other contents is refused, unless `replace`.
    """
    project = params.project_root()
    # No secret goes into the sandbox, so that none can come out of it into the run file.
    files = [(path.name, mask(_read(path))) for path in scripts]
    beside, secret_files = _beside(scripts[0])
    path = out or project / "params" / f"{run_name(scripts[0])}.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise ParamsError(f"--out {path}: a run file is called NAME.yaml.")
    found = adopt_text(files, path.stem, project, beside)
    found = dataclasses.replace(found, script=_with_notes(found.script, secret_files))
    if path.exists() and not replace and path.read_text(encoding="utf-8") != found.text:
        raise ParamsError(
            f"{path} is there and says something else. Name another with --out, or give --replace."
        )
    refused = _refusal(found, project)
    write_text(path, found.text)
    return AdoptReport(found, path, refused)


def run_name(script: Path) -> str:
    """The name of a run that a script's name gives.

    >>> run_name(Path("a/04-gpt175B.sh")), run_name(Path("my job.sbatch")), run_name(Path("models.sh"))
    ('04-gpt175B', 'my-job', 'adopted-models')
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", script.stem).strip("-._")[:60]
    return f"adopted-{stem or 'script'}" if stem in ("", "models", "datasets", "local") else stem


def _read(path: Path) -> str:
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
    """Whether a file is nothing but a secret, by its name or because it is one long word of letters and digits.

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


def _beside(script: Path) -> tuple[dict[str, str], list[str]]:
    """The small text files in the script's folder and the two levels below it, which the script may start or read.

    Tokens in them are masked. Files that are nothing but a secret are left out; the second list has their names.
    """
    folder = script.resolve().parent
    found: dict[str, str] = {}
    secret_files: list[str] = []
    total = 0
    for path in (
        path for pattern in ("*", "*/*", "*/*/*") for path in sorted(folder.glob(pattern))
    ):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if (
            hidden
            or path.is_symlink()
            or not path.is_file()
            or path.suffix not in _TEXT
            or path.name == script.name
        ):
            continue
        size = path.stat().st_size
        fits = size <= _MOST_BYTES and total + size <= 4 << 20 and len(found) < 300
        if fits and b"\0" not in (raw := path.read_bytes()):
            text = raw.decode("utf-8", errors="replace")
            if is_secret_file(path.name, text):
                secret_files.append(inside.as_posix())
                continue
            found[inside.as_posix()] = mask(text)
            total += size
    return found, secret_files


def _refusal(found: Adoption, project: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{found.name}.yaml"
        path.write_text(found.text, encoding="utf-8")
        try:
            params.load(str(path), project=project, portable=True)
            render_all(str(path), (), Path(folder) / "scripts", placeholders=True)
        except RunbookError as error:
            return str(error).replace(str(path), path.name)
    return ""
