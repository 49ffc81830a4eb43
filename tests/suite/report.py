"""The report at the end: seconds per marker, the tests left for another turn, the skipped tests,
and the packages that they need.

With RUNBOOK_TEST_REPORT, the report is also written there as JSON. tools/run_tests.py adds up the
reports from several processes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .rotation import LEFT_OUT

REPORT_VARIABLE = "RUNBOOK_TEST_REPORT"
UNMARKED = "quick"
MARKERS = ("browser", "slurm", "notebooks", "training", "jobs")
"""The markers that show what a test starts. A test with several markers counts under the first."""


@dataclass
class SuiteReport:
    """The results from one or several test runs."""

    tests: Counter[str] = field(default_factory=Counter)
    """Tests by marker."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Wall time by marker, including fixtures."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Tests that were skipped, by reason."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Tests left for another turn, by family."""
    failed: list[str] = field(default_factory=list)
    """Tests that failed, or could not be set up."""

    def add(self, other: SuiteReport) -> None:
        """Add the results of another process."""
        self.tests.update(other.tests)
        self.seconds.update(other.seconds)
        self.skipped.update(other.skipped)
        self.left_out.update(other.left_out)
        self.failed.extend(other.failed)

    def lines(self) -> list[str]:
        """Return the report as lines: one for each marker, one for the rotation, and one for
        skipped tests.
        """
        texts = [
            f"{marker:10}{count:5} tests{self.seconds[marker]:9.0f} s"
            for marker, count in sorted(self.tests.items(), key=lambda row: -self.seconds[row[0]])
        ]
        if self.left_out:
            families = ", ".join(
                f"{name} ({count})" for name, count in sorted(self.left_out.items())
            )
            texts.append(f"left to another turn (make test-all runs them too): {families}")
        if self.skipped:
            reasons = "; ".join(
                f"{count} x {reason}" for reason, count in self.skipped.most_common()
            )
            texts.append(f"skipped: {reasons}")
        return texts

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(vars(self)))


def read_report(path: Path) -> SuiteReport:
    """Read what `write` wrote."""
    content = json.loads(path.read_text())
    counters = {
        name: Counter(content[name]) for name in ("tests", "seconds", "skipped", "left_out")
    }
    return SuiteReport(**counters, failed=content["failed"])


class Reporter:
    """Gathers the report while tests run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.report = SuiteReport()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, and add the time that its set-up, call and teardown took."""
        marker = next((name for name in MARKERS if name in report.keywords), UNMARKED)
        self.report.seconds[marker] += report.duration
        if report.when == "setup":
            self.report.tests[marker] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.report.skipped[reason] += 1
        if report.failed:
            self.report.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.report.failed.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the report, and write it if requested."""
        self.report.left_out.update(self.config.stash[LEFT_OUT])
        terminalreporter.section("seconds per marker", sep="-")
        for text in self.report.lines():
            terminalreporter.write_line(text)
        if path := os.environ.get(REPORT_VARIABLE):
            self.report.write(Path(path))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporter(config))
