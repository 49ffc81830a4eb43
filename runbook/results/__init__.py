"""Results: what a run's files say, compared with the plan, with published results and with other runs."""
