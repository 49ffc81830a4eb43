"""The phases in a run, in order. Each has the same name as its notebook."""

PLAN = "00-plan"
ENVIRONMENT = "01-environment"
DATA = "02-data"
SMOKE = "03-smoke-test"
FULL = "04-training"
ANALYSIS = "05-analysis"
EVALUATION = "06-evaluation"
PHASES = (PLAN, ENVIRONMENT, DATA, SMOKE, FULL, ANALYSIS, EVALUATION)
TRAINING_PHASES = (SMOKE, FULL)
"""Phases that run a training job."""
