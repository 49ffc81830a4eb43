"""A ladder of small trainings of one run's family, and the loss that they forecast for the run itself."""
