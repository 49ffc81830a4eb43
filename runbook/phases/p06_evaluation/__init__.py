"""The phase of notebook 06-evaluation."""
