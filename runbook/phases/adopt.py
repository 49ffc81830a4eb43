"""`runbook adopt`: a job script becomes a run file, with a report of what was left over and which errors it has."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.adopt import Adopted
from runbook.adopt import adopt as adopt_text
from runbook.display import Table
from runbook.errors import ParamsError, PlanError
from runbook.phases import machine
from runbook.plan import make_plan
from runbook.records.files import write_text

_MOST_BYTES = 1 << 18
_CALLED = re.compile(r"(?:^|[\s/\"'])([A-Za-z0-9][\w.-]*\.(?:sh|slurm|sbatch|pbs))\b", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """What `runbook adopt` tells."""

    adopted: Adopted
    path: Path
    refused: str
    """Why `runbook check` would not take the run file; empty where it does."""

    def as_dict(self) -> dict[str, Any]:
        """Everything for --json."""
        found, places = self.adopted, self.adopted.places
        return {
            "run_file": str(self.path),
            "run": found.name,
            "site": found.site,
            "framework": found.framework,
            "filled_in_from": found.base,
            "carried": [
                {"key": one.key, "value": one.value, "line": one.line, "place": places[one.line], "from": one.source}
                for one in found.taken
            ],
            "not_carried": [
                {"line": one.line, "place": places[one.line], "text": one.text, "why": one.why} for one in found.left
            ],
            "done_by_itself": [
                {"line": one.line, "place": places[one.line], "text": one.text, "why": one.why} for one in found.own
            ],
            "errors": [
                {
                    "number": one.number,
                    "line": one.line,
                    "place": places[one.line],
                    "what": one.what,
                    "remedy": one.remedy,
                }
                for one in found.errors
            ],
            "required": [{"key": key, "what": what} for key, what in found.required.items()],
            "check": self.refused or "passes",
        }

    def as_text(self) -> str:
        """The report for a terminal."""
        found, places = self.adopted, self.adopted.places
        parts = [f"{self.path}: {len(found.taken)} values, site {found.site}, framework {found.framework}."]
        if found.base:
            parts.append(f"What the script does not say is as in params/{found.base}.yaml, which its document became.")
        for title, rows in (
            (
                f"Errors of the documents in this script: {len(found.errors)}",
                [{"no": e.number, "where": places[e.line], "what": e.what, "we": e.remedy} for e in found.errors],
            ),
            (
                f"Not carried over: {len(found.left)}",
                [{"where": places[one.line], "what": one.text, "because": one.why} for one in found.left],
            ),
            (
                "Still to be given, in the run file or by --set",
                [{"key": key, "what": what} for key, what in found.required.items()],
            ),
        ):
            parts.append(
                str(Table(rows, title).as_text()) if rows else f"{title}: nothing.".replace(": 0: nothing", ": none")
            )
        name = found.name if self.path.parent.name == "params" else str(self.path)
        if self.refused:
            parts.append(f"runbook check {name} will say:\n{self.refused}")
        else:
            parts.append(f"runbook check {name}: passes. Next: runbook plan {name}")
        return "\n\n".join(parts)


def adopt(scripts: Sequence[Path], out: Path | None, *, replace: bool = False) -> Report:
    """Read the scripts, write the run file, and say whether `runbook check` takes it.

    Scripts beside the first that it starts by name are read too. A run file that is there and says something else is
    refused, unless `replace`.
    """
    project = params.project_root()
    files = [(path.name, _read(path)) for path in scripts]
    if len(scripts) == 1:
        files += _started_beside(scripts[0], files[0][1])
    path = out or project / "params" / f"{run_name(scripts[0])}.yaml"
    if path.suffix not in (".yaml", ".yml"):
        raise ParamsError(f"--out {path}: a run file is called NAME.yaml.")
    found = adopt_text(files, path.stem, project)
    if path.exists() and not replace and path.read_text(encoding="utf-8") != found.text:
        raise ParamsError(f"{path} is there and says something else. Name another with --out, or give --replace.")
    refused = _refusal(found, project)
    write_text(path, found.text)
    return Report(found, path, refused)


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


def _started_beside(script: Path, text: str) -> list[tuple[str, str]]:
    """Scripts in the same folder that this one names outside comments."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    names = dict.fromkeys(_CALLED.findall(code))
    beside = [script.parent / name for name in names if name != script.name]
    return [(path.name, _read(path)) for path in beside if path.is_file()]


def _refusal(found: Adopted, project: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{found.name}.yaml"
        path.write_text(found.text, encoding="utf-8")
        try:
            settings = params.check(str(path), project=project)
            make_plan(settings, machine.measure(settings.site))
        except (ParamsError, PlanError) as error:
            return str(error).replace(str(path), path.name)
    return ""
