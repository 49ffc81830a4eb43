"""`runbook preflight`: find the faults of a cluster before a job meets them."""
