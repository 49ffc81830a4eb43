"""The trainer, which requires torch and megatron-core.

It reads `plan.json` and uses nothing else of the runbook.
"""
