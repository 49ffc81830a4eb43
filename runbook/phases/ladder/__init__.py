"""Ladders: small training runs that resemble a run, used to forecast its loss."""
