"""`runbook replay`: train one step of a run again, anywhere, and say what differs: data, program or machine."""
