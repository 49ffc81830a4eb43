"""Functions that the notebooks call: a package for each phase, and code that the phases share."""
