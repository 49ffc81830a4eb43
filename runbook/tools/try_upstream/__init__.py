"""Start the framework's own programs, made small, on CPUs: `runbook rehearse --upstream`."""
