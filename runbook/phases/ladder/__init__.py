"""A ladder of small trainings like the run, from which the run's loss is forecast."""
