"""A ladder of small trainings from one run's family, and the loss that they forecast for the run."""
