"""Fixtures and hooks for all tests: see the modules in suite/."""

from suite.signals import answer_inherited_signals

answer_inherited_signals()
pytest_plugins = ["suite.rotation", "suite.report"]  # report imports rotation
