"""Figures of a run, each with units and a reference."""
