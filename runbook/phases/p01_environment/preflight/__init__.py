"""`runbook preflight`: finds the defects of a cluster before a training job does."""
