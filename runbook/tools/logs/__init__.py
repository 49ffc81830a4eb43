"""Exports of training logs: `runbook logs --to`."""
