"""Results of a training: metrics, checks, failures, tables and figures."""
