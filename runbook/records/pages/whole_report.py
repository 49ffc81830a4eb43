"""Combines the front page and the phase pages into a single file. Each cell occurs only once."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from runbook.plan_file.phase_names import PHASES
from runbook.records.messages import RecordMessage
from runbook.records.pages.html_rewriting import Rewriter
from runbook.records.pages.notebook_page import LARGEST_PAGE, code_colours
from runbook.records.pages.page_parts import head, scripts_inside, write_and_note

WHOLE_NAME = "report-with-records.html"


def write_whole_report(run_folder: Path) -> Path:
    """Write report-with-records.html.

    The file is small enough for an e-mail. If a notebook would make the file too large, only its
    card is kept.
    """
    paths = {phase: run_folder / "records" / f"{phase}.html" for phase in PHASES}
    pages = {phase: path for phase, path in paths.items() if path.exists()}
    links = {f"records/{phase}.html": f"#{phase}-report" for phase in pages}
    links["../index.html"] = "#record"
    # The file does not say when it was written, so that the same pages produce the same file.
    body = _Body("footer.soft", lambda value: links.get(value, value))
    front_page = body.rewrite((run_folder / "index.html").read_text(encoding="utf-8"))
    sections = []
    size = len(front_page)
    for phase, path in pages.items():
        text = path.read_text(encoding="utf-8")
        note = ""
        if size + len(text.encode()) > LARGEST_PAGE - 100_000:
            link = f'<a href="records/{phase}.html">its own report</a>'
            text = text.partition("</header>")[0] + "</header>"
            left_out = RecordMessage.CELLS_ONLY_IN.fill(report=link)
            note = f'<p class="soft">{left_out}</p>'

        size += len(text.encode())
        rewriter = _Body("nav.contents", partial(_link_of_part, phase), f"{phase}--", _DEEPER)
        part = rewriter.rewrite(text) + note
        sections.append(f'<section id="{phase}-report" class="part">\n{part}\n</section>')

    start = head(
        f"{run_folder.name}: report with records",
        code_colours(),
        scripts=scripts_inside("<script" in front_page),
    )
    whole = front_page.replace("</main>", "\n".join([*sections, "</main>"]), 1)
    text = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{start}\n</head>\n'
        f"<body>\n{whole}\n</body>\n</html>\n"
    )
    return write_and_note(run_folder, WHOLE_NAME, text)


class _Body(Rewriter):
    """Extracts the body from one of our pages, except the elements in `left_out`.

    `left_out` is the tag and class of elements to leave out, as in `footer.soft`. `link` returns
    the new target for a link.
    """

    def __init__(
        self,
        left_out: str,
        link: Callable[[str], str],
        prefix: str = "",
        tags: Mapping[str, str] = {},
    ) -> None:
        super().__init__()
        self._left_out = left_out
        self._link = link
        self._prefix = prefix
        self._tags = {"html": None, "body": None, **tags}

    def renamed(self, tag: str) -> str | None:
        return self._tags.get(tag, tag)

    def skips(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        return tag == "head" or f"{tag}.{attributes.get('class')}" == self._left_out

    def attribute(
        self,
        tag: str,
        name: str,
        value: str,
    ) -> str | None:
        if name in ("id", "for"):
            return self._prefix + value
        return self._link(value) if name == "href" else value


_DEEPER = {
    "main": "div",
    "header": "div",
    "h1": "h2",
    "h2": "h3",
    "h3": "h4",
    "h4": "h5",
}
"""Replacements for the tags of an embedded page, because a page may have only one main and one
header element.

These become plain blocks, and headings move one level down.
"""


def _link_of_part(phase: str, value: str) -> str:
    """Return the new target for a link in a notebook report.

    The target is an anchor in the single file, or a file in the run folder.
    """
    if value.startswith("#"):
        return f"#{phase}--{value[1:]}"
    if value == "../index.html":
        return "#record"
    if value.removesuffix(".html") in PHASES:
        return f"#{value.removesuffix('.html')}-report"
    is_record_of_phase = value in [f"{phase}.{suffix}" for suffix in ("html", "ipynb", "json")]
    if is_record_of_phase:
        return f"records/{value}"
    return value.removeprefix("../")
