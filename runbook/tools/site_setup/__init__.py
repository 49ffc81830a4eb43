"""Draft a site file and a first run file from what a cluster's scheduler says: `runbook init --site`."""
