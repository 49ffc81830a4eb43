"""Forecasts the final loss of a training run, from small runs or from the first part of its curve.

Everything here is arithmetic on tables: no run folder, no plan and no torch. numpy and scipy are
imported by the modules that compute, so that the command line starts without them.
"""
