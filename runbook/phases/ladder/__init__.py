"""A ladder: small trainings that resemble the run, from which the run's loss is forecast."""
