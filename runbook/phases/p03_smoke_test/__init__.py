"""The phase of notebook 03-smoke-test."""
