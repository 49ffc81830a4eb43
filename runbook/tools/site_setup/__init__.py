"""Drafts a site file and a first run file from a scheduler's answers: `runbook init --site`."""
