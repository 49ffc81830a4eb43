"""Sends metrics to Weights & Biases, MLflow and trackio, in one process per tracker.

The process follows metrics.jsonl and validation.jsonl. If a tracker hangs, fails or crashes, only
that process is affected. The trainer never waits for trackers between two steps.
"""
