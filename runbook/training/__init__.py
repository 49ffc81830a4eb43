"""The trainer, which requires torch and megatron-core.

The trainer reads `plan.json` and no other runbook file.
"""
