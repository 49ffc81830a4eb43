"""What a training did: metrics, checks, failures, tables and figures."""
