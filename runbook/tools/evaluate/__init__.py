"""Tasks of lm-evaluation-harness over a run's weights.

`runbook evaluate RUN --tasks A,B`, the extra `evaluation`.
"""
