"""Tasks of lm-evaluation-harness over a run's weights.

The command is `runbook evaluate RUN --tasks A,B`; it needs the extra `evaluation`.
"""
