"""Results in a run's files, compared with the plan, published results and other runs."""
