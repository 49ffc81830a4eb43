"""Exports training logs: `runbook logs --to`."""
