"""Redacted copies of runs, without names and places: `runbook report --redact`."""
