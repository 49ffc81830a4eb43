"""Starts the frameworks' own programs on CPUs, scaled down: `runbook rehearse --upstream`."""
