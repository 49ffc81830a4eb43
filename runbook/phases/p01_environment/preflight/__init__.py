"""`runbook preflight`: what is wrong with a cluster, found before a job finds it."""
