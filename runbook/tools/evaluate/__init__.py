"""Tasks of lm-evaluation-harness on a run's weights.

The command is `runbook evaluate RUN --tasks A,B`, which needs the extra `evaluation`.
"""
