"""The steps of each notebook, in order; notebooks and the command line call these."""
