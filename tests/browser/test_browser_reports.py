"""Every page that a run writes, opened offline: it makes no request, draws everything, and shows
the numbers in the record.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from toy_project import PHASES

from runbook.core.units import show_quantity

pytestmark = [pytest.mark.notebooks, pytest.mark.browser, pytest.mark.timeout(1800)]

SMALLEST_TEXT = 50
SERIOUS = ("serious", "critical")
WHOLE = "report-with-records.html"
"""The report that consists of the phase pages, which are checked one by one."""


@pytest.fixture(scope="module")
def run(by_hand, toy, tmp_path_factory) -> Path:
    """Return the run that was stepped through by hand, with its notebooks filed and all its pages."""
    words = [
        word for phase in PHASES for word in ("--file", toy.root / "notebooks" / f"{phase}.ipynb")
    ]
    made = toy.call("runbook", "report", "local", *words)
    assert made.code == 0, made
    assert made.text.count(" is filed as records/") == len(PHASES)
    root = tmp_path_factory.mktemp("report")
    shutil.copytree(by_hand.folder, root / "local")
    for name in ("index.html", "when-it-fails.html"):
        shutil.copy(by_hand.folder.parent / name, root / name)
    made = toy.call("runbook", "report", "local", "--records", "--runs", root)
    assert made.code == 0, made
    return root / "local"


@pytest.fixture
def offline(browser):
    """Open a page without network access, and collect everything that goes wrong on it."""
    context = browser.new_context(
        offline=True, bypass_csp=True, viewport={"width": 1100, "height": 900}
    )
    page = context.new_page()
    page.set_default_timeout(240_000)
    page.wrong = []
    page.on(
        "console",
        lambda message: page.wrong.append(message.text) if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("requestfailed", lambda request: page.wrong.append(f"failed: {request.url[:200]}"))
    page.on(
        "request",
        lambda request: page.wrong.append(request.url) if request.url.startswith("http") else None,
    )
    yield page
    context.close()


def pages_of(run: Path) -> list[Path]:
    """Return every page in a run, starting with the index of all runs."""
    records = [run / "records" / f"{phase}.html" for phase in PHASES]
    return [
        run.parent / "index.html",
        run.parent / "when-it-fails.html",
        run / "index.html",
        run / "report.html",
        run / WHOLE,
        *records,
    ]


def undrawn(page) -> list[str]:
    """Return the figures that have no size or did not load.

    Folded elements are opened first.
    """
    return page.evaluate(
        """() => { document.querySelectorAll('details').forEach(one => one.open = true);
        const small = one => one.getBoundingClientRect().width < 5;
        return [...document.querySelectorAll('img')].filter(one => !one.naturalWidth || small(one)).map(one => one.alt)
          .concat([...document.querySelectorAll('svg')].filter(small).map(one => one.textContent)); }"""
    )


def test_no_page_asks_for_anything_and_every_figure_is_drawn(run, offline):
    figures = 0
    for path in pages_of(run):
        offline.goto(path.as_uri())
        offline.wait_for_load_state("load")
        assert undrawn(offline) == [], path.name
        figures += offline.locator("img, svg").count()
        assert len(offline.locator("body").inner_text()) > SMALLEST_TEXT
        assert path.stat().st_size < 3_000_000
    assert offline.wrong == []
    assert figures >= 12


def test_every_link_inside_a_page_and_to_its_neighbours_leads_somewhere(run, offline):
    for path in pages_of(run):
        offline.goto(path.as_uri())
        targets = offline.evaluate(
            "() => [...document.querySelectorAll('a[href]')].map(one => one.getAttribute('href'))"
        )
        ids = set(
            offline.evaluate("() => [...document.querySelectorAll('[id]')].map(one => one.id)")
        )
        for target in targets:
            file, _, anchor = target.partition("#")
            if file.startswith(("http", "data:")):
                continue
            assert not file or (path.parent / file).exists(), f"{path.name}: {target}"
            assert file or not anchor or anchor in ids, f"{path.name}: {target}"


def test_a_report_shows_the_numbers_of_its_record(run, offline):
    seen = 0
    for phase in PHASES:
        results = json.loads((run / "records" / f"{phase}.json").read_text())["results"]
        offline.goto((run / "records" / f"{phase}.html").as_uri())
        offline.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        for key, value in results.items():
            cell = offline.locator(f"[data-result={json.dumps(key)}]")
            assert json.loads(cell.get_attribute("data-value")) == value
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert re.sub(r"\s", "", cell.inner_text()) == re.sub(
                    "[ ,]", "", show_quantity(key, value)
                ), key
                seen += 1
    assert seen > 20


def test_the_whole_report_holds_every_phase_with_its_figures_once(run, offline):
    offline.goto((run / WHOLE).as_uri())
    for phase in PHASES:
        part = offline.locator(f"[id='{phase}-report']")
        assert part.count() == 1
        assert f"local: {phase}" in part.inner_text()
    own = offline.locator("img").count()
    each = 0
    for phase in PHASES:
        offline.goto((run / "records" / f"{phase}.html").as_uri())
        each += offline.locator("img").count()
    assert own == each > 4
    ids = (run / WHOLE).read_text()
    found = re.findall(r'<[^>]+\sid="([^"]+)"', ids)
    assert len(found) == len(set(found))


def test_the_page_to_mail_is_short_and_its_attached_files_are_whole(run, browser):
    for width, most_pixels in ((1100, 8000), (360, 8000)):
        context = browser.new_context(
            offline=True, bypass_csp=True, viewport={"width": width, "height": 900}
        )
        page = context.new_page()
        page.goto((run / "report.html").as_uri())
        height = page.evaluate("() => document.documentElement.scrollHeight")
        assert height <= most_pixels, f"{height} px at a width of {width}"
        assert len(page.locator("body").inner_text().split()) <= 1500
        with page.expect_download() as download:
            page.get_by_role("link", name="04-training.json").click()
        assert json.loads(Path(download.value.path()).read_text())["phase"] == "04-training"
        context.close()


def test_a_table_wider_than_a_phone_says_that_it_scrolls(run, browser):
    hint = """() => [...document.querySelectorAll('.wide')].map(table =>
      [table.scrollWidth > table.clientWidth, getComputedStyle(table, '::before').height !== '0px'])"""
    seen = []
    for width in (360, 1400):
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.goto((run / "report.html").as_uri())
        seen += page.evaluate(hint)
        context.close()
    assert all(scrolls == says for scrolls, says in seen)
    assert {scrolls for scrolls, _ in seen} == {True, False}


def test_no_page_has_a_serious_fault_of_accessibility(run, browser):
    from axe_playwright_python.sync_playwright import Axe

    for scheme in ("light", "dark"):
        context = browser.new_context(offline=True, bypass_csp=True, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(240_000)
        for path in (
            [path for path in pages_of(run) if path.name != WHOLE]
            if scheme == "light"
            else [*pages_of(run)[:4], run / "records" / "04-training.html"]
        ):
            page.goto(path.as_uri())
            page.evaluate(
                "() => document.querySelectorAll('details').forEach(one => one.open = true)"
            )
            found = Axe().run(page).response["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:300])
                for one in found
                if one["impact"] in SERIOUS
            ]
            assert serious == [], f"{path.name} ({scheme})"
        context.close()


def test_the_index_is_sorted_by_a_click_and_by_keyboard(run, offline):
    second = run.parent / "another"
    if not second.exists():
        shutil.copytree(run / "records", second / "records")
    offline.goto((run.parent / "index.html").as_uri())
    names = "() => [...document.querySelectorAll('#runs tbody tr')].map(row => row.cells[0].textContent)"
    from runbook.records.pages.runs_index import write_runs_index

    write_runs_index(run.parent)
    offline.reload()
    offline.get_by_role("button", name="run", exact=True).click()
    assert offline.evaluate(names) == ["another", "local"]
    offline.get_by_role("button", name="run", exact=True).press("Enter")
    assert offline.evaluate(names) == ["local", "another"]
    assert offline.locator("th[aria-sort]").count() == 1


def test_a_page_is_readable_on_a_phone(run, browser):
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(
        offline=True, bypass_csp=True, viewport={"width": 360, "height": 740}
    )
    page = context.new_page()
    page.set_default_timeout(240_000)
    for path in pages_of(run):
        page.goto(path.as_uri())
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= 360, f"{path.name} is {wide} wide"
        found = Axe().run(page).response["violations"] if path.parent.name == "records" else []
        assert [one["id"] for one in found if one["impact"] in SERIOUS] == [], path.name
    context.close()
