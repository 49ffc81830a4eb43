"""Scores a run's weights in tasks of lm-evaluation-harness.

The command is `runbook evaluate RUN --tasks A,B`, which needs the extra `evaluation`.
"""
