"""Scores the weights from a run on tasks from lm-evaluation-harness.

The command is `runbook evaluate RUN --tasks A,B`, which needs the extra `evaluation`.
"""
