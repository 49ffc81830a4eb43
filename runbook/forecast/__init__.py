"""Forecasts the final loss in a training run, from small runs or from the first part of the curve.

The package only computes on tables: it needs no run folder, no plan and no torch. Only the modules
for computing import numpy and scipy, to let the command line start without them.
"""
