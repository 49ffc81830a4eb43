"""The functions that the notebooks call, in a package for each phase, and the phases' shared code."""
