"""The trainer: reads `plan.json`, needs torch and megatron-core, and nothing else of the runbook."""
