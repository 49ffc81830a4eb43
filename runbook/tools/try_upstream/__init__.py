"""Start the documents' own programs, made small, on CPUs: `runbook rehearse --upstream`."""
