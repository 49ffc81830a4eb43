"""Faults on purpose: each drill breaks one thing in a small training on this machine, and judges how it ends."""
