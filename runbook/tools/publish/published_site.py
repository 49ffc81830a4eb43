"""`runbook publish`: copies runs, their pages and an index to a folder that needs no server."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from runbook.core.errors import RecordError
from runbook.core.files import utc_now, write_text
from runbook.phases.run_report import changed_files, read_front_page
from runbook.records.pages.front_page import Surroundings, write_front_page
from runbook.records.pages.notebook_page import write_html
from runbook.records.pages.runs_index import write_runs_index
from runbook.records.phase_record import phases_with_record
from runbook.records.run_state import write_states_for_copy
from runbook.tools.publish.messages import PublishMessage

MARKER = "published.json"
"""File used to list the runs written by publish.

All other files in the folder (such as .git) are left unchanged.
"""
PAGES = ("index.html", "when-it-fails.html", ".nojekyll", MARKER)
COPIED = (
    "run.yaml",
    "plan.json",
    "metrics.jsonl",
    "validation.jsonl",
    "samples.jsonl",
    "rank_times.jsonl",
    "events.jsonl",
    "smoke/metrics.jsonl",
    "smoke/validation.jsonl",
    "evaluation/*.jsonl",
    "records/*.json",
    "records/*.ipynb",
)
"""Files from which the pages for a run are generated.

Job scripts and logs are not copied, because they name machines and people.
"""
README = """\
---
title: Training runs
sdk: static
pinned: false
---

Training runs of gpt3-runbook. Open `index.html`; it needs no server and no network.
"""
"""The README on the site.

Its front matter is for a static Space on Hugging Face; other web servers ignore the file.
"""

CopyRun = Callable[[Path, Path], str]
"""Function that writes a copy of a run below a folder, and returns the name of the new folder."""


def publish(run_folders: Sequence[Path], site: Path, copy_run: CopyRun) -> Path:
    """Write the site, replacing what publish wrote there before, and return its index.html."""
    if site.exists() and any(site.iterdir()) and not (site / MARKER).exists():
        raise RecordError(PublishMessage.NOT_A_PUBLISHED_FOLDER, site=site)

    if not run_folders:
        raise RecordError(PublishMessage.NOTHING_TO_PUBLISH)
    part = site.with_name(f"{site.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    names = [copy_run(folder, part) for folder in run_folders]
    write_runs_index(part)
    write_text(part / "README.md", README)
    # GitHub Pages then serves the folder unchanged
    write_text(part / ".nojekyll", "")
    content = {"written": utc_now(), "runs": names}
    write_text(part / MARKER, json.dumps(content, indent=1) + "\n")
    _replace(site, part)
    return site / "index.html"


def _replace(site: Path, part: Path) -> None:
    """Replace files from an earlier publish with the new ones. An existing README is kept."""
    site.mkdir(parents=True, exist_ok=True)
    for name in (*_published_runs(site), *PAGES):
        old = site / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)

    if (site / "README.md").exists():
        (part / "README.md").unlink()
    for path in part.iterdir():
        path.rename(site / path.name)
    part.rmdir()


def _published_runs(site: Path) -> list[str]:
    """Return the names of the folders written by the last publish."""
    if not (site / MARKER).exists():
        return []
    names = json.loads((site / MARKER).read_text(encoding="utf-8")).get("runs", [])
    runs: list[str] = []
    for name in names:
        if name not in ("", ".", "..") and Path(name).name == name:
            runs.append(name)

    return runs


def copy_whole_run(folder: Path, site: Path) -> str:
    """Copy the sources for the pages about a run, and generate the pages from the copy."""
    copy = site / folder.name
    for pattern in COPIED:
        for path in folder.glob(pattern):
            target = copy / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    copy.mkdir(exist_ok=True)
    write_states_for_copy(folder, copy)
    for phase in phases_with_record(copy):
        if (copy / "records" / f"{phase}.ipynb").exists():
            write_html(copy, phase)

    front_page = read_front_page(folder)._replace(changed=changed_files(folder))
    write_front_page(copy, front_page, surroundings=Surroundings.SITE)
    return folder.name
