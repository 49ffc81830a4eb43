"""The trainer at full size without the machines: one rank of a job on fake tensors, with everything counted."""
