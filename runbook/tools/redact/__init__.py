"""A copy of a run without names and places: `runbook report --redact`."""
