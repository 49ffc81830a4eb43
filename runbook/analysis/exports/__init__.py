"""A log or a run's metrics for other programs: CSV, Parquet, TensorBoard, MLflow, trackio."""

from __future__ import annotations

from runbook.analysis.exports.target import KINDS, Target, export, parse_target

__all__ = ["KINDS", "Target", "export", "parse_target"]
