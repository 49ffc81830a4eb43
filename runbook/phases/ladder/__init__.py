"""A ladder: small training runs that resemble the run, from which the run's loss is forecast."""
