"""The phase of notebook 00-plan."""
