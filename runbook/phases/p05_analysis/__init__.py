"""The phase of notebook 05-analysis."""
