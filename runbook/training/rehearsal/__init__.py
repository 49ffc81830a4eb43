"""The trainer at full size without the machines.

One rank of a job on fake tensors, with everything counted.
"""
