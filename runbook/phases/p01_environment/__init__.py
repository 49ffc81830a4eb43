"""The phase of notebook 01-environment, and `runbook doctor`."""
