"""The whole campaign in one file: the campaign's page with every notebook's report below it, to mail or to print.

    write_whole(run_folder) -> Path      runs/<run>/report.html, from the pages that lie in the folder

Nothing is rendered anew: the pages are put together, their anchors made unique, and links between them lead inside.
"""

from __future__ import annotations

import re
from pathlib import Path

from runbook.params.schema import PHASES
from runbook.records.files import write_text
from runbook.records.html import LARGEST_PAGE, code_colours
from runbook.records.manifest import note_files
from runbook.records.pages import head

NAME = "report.html"
_BODY = re.compile(r"<body[^>]*>(.*)</body>", re.S)
_ANCHOR = re.compile(r'(\s(?:id|for)="|\shref="#)([^"]*)"')
_HEADINGS = re.compile(r"<(/?)h([1-4])\b")


def write_whole(run_folder: Path) -> Path:
    """Write report.html anew; a notebook that would make it too large for a mail keeps only its card."""
    campaign = _body(run_folder / "index.html").replace('href="../index.html"', 'href="#record"')
    # Without the moment of writing: made again from the same pages it is the same file.
    campaign = re.sub(r"<footer.*?</footer>", "", campaign, flags=re.S)
    sections, size = [], len(campaign)
    for phase in PHASES:
        path = run_folder / "records" / f"{phase}.html"
        if not path.exists():
            continue
        body = _body(path)
        if size + len(body.encode()) > LARGEST_PAGE - 100_000:
            body = _card_only(body, phase)
        size += len(body.encode())
        body = _prefixed(body, phase)
        sections.append(f'<section id="{phase}-report" class="part">\n{body}\n</section>')
        campaign = campaign.replace(f'href="records/{phase}.html"', f'href="#{phase}-report"')
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>',
        head(f"{run_folder.name}: whole report", code_colours()),
        "</head>\n<body>",
        campaign.replace("</main>", "\n".join([*sections, "</main>"]), 1),
        "</body>\n</html>\n",
    ]
    path = run_folder / NAME
    write_text(path, "\n".join(parts))
    note_files(run_folder, [path])
    return path


def _body(path: Path) -> str:
    found = _BODY.search(path.read_text(encoding="utf-8"))
    assert found is not None, f"{path} is a page of ours and has a body"
    return found[1]


def _prefixed(body: str, phase: str) -> str:
    body = _ANCHOR.sub(lambda match: f'{match[1]}{phase}--{match[2]}"', body)
    body = body.replace('href="../index.html"', 'href="#record"').replace('href="../', 'href="')
    for suffix in ("html", "ipynb", "json"):
        body = body.replace(f'href="{phase}.{suffix}"', f'href="records/{phase}.{suffix}"')
    # One main and one header of the page: those of a part become plain blocks, their headings one level deeper.
    body = re.sub(r"<(/?)(?:main|header)\b", r"<\1div", body)
    body = re.sub(r'<nav class="contents".*?</nav>', "", body, flags=re.S)
    return _HEADINGS.sub(lambda match: f"<{match[1]}h{int(match[2]) + 1}", body)


def _card_only(body: str, phase: str) -> str:
    card = body.partition("</header>")[0]
    return (
        f'{card}</header><p class="soft">For size, the cells are only in <a href="{phase}.html">its own report</a>.</p>'
    )
