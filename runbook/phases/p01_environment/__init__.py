"""Phase behind notebook 01-environment, and `runbook doctor`."""
