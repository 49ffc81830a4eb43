"""Sends a training's numbers to Weights & Biases, MLflow and trackio, in one process per tracker.

The process follows metrics.jsonl and validation.jsonl. If a tracker hangs, fails or crashes, it
does so in that process and not in the trainer, which never waits for it between two steps.
"""
