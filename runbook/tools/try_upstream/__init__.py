"""Starts the framework's own programs, scaled down, on CPUs: `runbook rehearse --upstream`."""
