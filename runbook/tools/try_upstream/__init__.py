"""Start the framework's own training programs, made small, on CPUs: `runbook rehearse --upstream`."""
