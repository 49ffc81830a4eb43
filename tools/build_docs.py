"""Collect pages for the docs site in build/docs-source: python tools/build_docs.py [RUN_FOLDER].

The pages are README, the written docs, one executed run (redacted; runs/local unless another is
named), the jobs that each run file submits, and the API from the docstrings. mkdocs then builds
build/site from them. Neither step needs a network.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from runbook.params import project_root, run_names
from runbook.phases.rendered_jobs import render_all
from runbook.phases.run_plan import load_plan, plan_text
from runbook.tools.redact.redacted_copy import write_redacted

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "build" / "docs-source"
PACKAGES = (
    "core",
    "params",
    "planning",
    "frameworks",
    "jobs",
    "tokens",
    "results",
    "records",
    "display",
    "runs",
    "phases",
    "log_readers",
    "tools",
    "training",
)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
NAMED = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
"""Pages in docs/ that mkdocs.yml names."""
QUIET = {"NO_MKDOCS_2_WARNING": "1"}
"""Environment variables that keep the theme from advertising its successor in every build."""
LANGUAGES = {".sh": "bash", ".json": "json", ".yaml": "yaml"}


def main(words: list[str]) -> int:
    """Write all pages."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    written = sorted((ROOT / "docs").rglob("*.md"))
    pages = {path.name for path in written}
    for path in written:
        write(path.name, with_links(path.read_text(encoding="utf-8"), pages))
    write("index.md", with_links((ROOT / "README.md").read_text(encoding="utf-8"), pages))
    shutil.copytree(ROOT / "docs" / "javascripts", SOURCE / "javascripts")
    if (ROOT / "docs" / "pictures").is_dir():
        shutil.copytree(ROOT / "docs" / "pictures", SOURCE / "docs" / "pictures")
        shutil.copytree(ROOT / "docs" / "pictures", SOURCE / "pictures")
    write("campaign.md", campaign(Path(words[0]) if words else ROOT / "runs" / "local"))
    write("sites.md", sites())
    write("pages.md", listed(pages - NAMED))
    write("api.md", api())
    return 0


def listed(pages: set[str]) -> str:
    """Return links, by heading, to the written pages that the site contents do not name."""
    rows = []
    for name in sorted(pages):
        heading = (SOURCE / name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        rows.append(f"- [{heading}]({name})")
    return "# Measured and explained\n\n" + "\n".join(rows) + "\n"


def write(name: str, text: str) -> None:
    """Write one page."""
    path = SOURCE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def with_links(text: str, pages: set[str]) -> str:
    """Return the text with its links changed to point to pages on the site.

    A link to any other file in the repository is replaced by the file name.
    """

    def link(match: re.Match[str]) -> str:
        file, _, anchor = match[2].partition("#")
        name = Path(file).name
        if name in pages:
            return f"[{match[1]}]({name}{'#' + anchor if anchor else ''})"
        return match[1]

    return _LINK.sub(link, text)


def campaign(run: Path) -> str:
    """Return the page for the executed run, or instructions for creating one."""
    head = "# A whole run, executed\n\n"
    if not (run / "records").is_dir():
        return (
            head
            + "This site was built without a run. `make run` makes one, `make docs` then shows it here.\n"
        )
    write_redacted(run, SOURCE / "campaigns" / run.name)
    phases = sorted((SOURCE / "campaigns" / run.name / "records").glob("*.html"))
    lines = [f"- [{path.stem}](campaigns/{run.name}/records/{path.name})" for path in phases]
    return (
        f"{head}The seven notebooks as `runbook run {run.name}` executed them on one machine, without names and places "
        f"(`runbook report {run.name} --redact`).\n\n- [The campaign's report](campaigns/{run.name}/index.html)\n"
        f"- [The page to mail](campaigns/{run.name}/report.html)\n" + "\n".join(lines) + "\n"
    )


def sites() -> str:
    """Write the jobs that each run file would submit, one page per run."""
    rows = []
    for name in run_names(project_root(ROOT)):
        settings, plan = load_plan(name, [])
        out = ROOT / "build" / "rendered" / name
        shutil.rmtree(out, ignore_errors=True)
        parts = [
            f"# {name}\n\n{settings.site.title}\n\n```text\n{plan_text(settings, plan)}\n```\n"
        ]
        for path in render_all(name, [], out, placeholders=True):
            language = LANGUAGES.get(path.suffix, "text")
            shown = (
                path.read_text(encoding="utf-8")
                .replace(str(ROOT), "PROJECT")
                .replace(sys.executable, "python")
            )
            parts.append(
                f"## {path.relative_to(out).as_posix()}\n\n````{language}\n{shown}\n````\n"
            )
        write(f"sites/{name}.md", "\n".join(parts))
        rows.append(
            f"| [{name}](sites/{name}.md) | {settings.site.title} | {settings.model.label} |"
        )
    head = "# Rendered for each site\n\nThe plan and every script, as `runbook plan` and `runbook render` write them.\n\n"
    return head + "| run | site | model |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def api() -> str:
    """Write the API: one page per package with all its modules, from the docstrings."""
    rows = []
    for package in PACKAGES:
        folder = ROOT / "runbook" / package
        modules = [path for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]
        text = [f"# runbook.{package}\n"]
        for path in modules:
            text.append(module(path))
        write(f"api/{package}.md", "\n".join(text))
        rows.append(f"| [runbook.{package}](api/{package}.md) | {len(modules)} modules |")
    return (
        "# API\n\nMade from the docstrings.\n\n| package | |\n| --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )


def module(path: Path) -> str:
    """Return one module: its docstring, then each public function and class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    lines = [f"## {name}\n", quoted(ast.get_docstring(tree))]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            lines += [f"### `{node.name}{signature(node)}`\n", quoted(ast.get_docstring(node))]
    return "\n".join(lines)


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the part of a definition between its name and the colon."""
    if isinstance(node, ast.ClassDef):
        return ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def quoted(text: str | None) -> str:
    """Return a docstring as it was written."""
    return f"```text\n{text}\n```\n" if text else ""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    words = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--quiet"]
    sys.exit(
        code or subprocess.run(words, cwd=ROOT, check=False, env=os.environ | QUIET).returncode
    )
