"""Drafts a site file and a first run file from what a scheduler answers: `runbook init --site`."""
