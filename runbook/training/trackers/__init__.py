"""Weights & Biases, MLflow and trackio, fed while a training runs by a process for each of them.

The process follows metrics.jsonl and validation.jsonl. Whatever a tracker does, hang or fail or
crash, happens there and not in the trainer, which never waits for it between two steps.
"""
