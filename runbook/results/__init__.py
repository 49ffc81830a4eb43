"""Results from a training run: metrics, checks, failures, tables and figures."""
