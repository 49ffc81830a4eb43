"""Copies of runs without users, hosts, accounts, paths and buckets: `runbook report --redact`."""
