"""Figures for a run, each with units and a reference."""
