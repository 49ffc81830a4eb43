"""Forecasts of a training's loss: from small runs of the same family, and from the first part of a curve.

Everything here is arithmetic on tables: no run folder, no plan and no torch. numpy and scipy are
imported by the modules that compute, so that the command line starts without them.
"""
