"""A ladder of small trainings of one run's family, and the loss they forecast for it."""
