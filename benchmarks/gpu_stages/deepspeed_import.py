"""Imports DeepSpeed in the same way as the trainer, while the process waits for its start signal."""

from runbook.training.engines import deepspeed_start

deepspeed_start.import_deepspeed()
