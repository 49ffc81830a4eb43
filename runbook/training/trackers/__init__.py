"""Sends metrics to Weights & Biases, MLflow and trackio, in one process per tracker.

The process follows metrics.jsonl and validation.jsonl. A tracker that hangs, fails or crashes
affects only that process. The trainer never waits for trackers between two steps.
"""
