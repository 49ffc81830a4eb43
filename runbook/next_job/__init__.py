"""What follows a job. It uses only the standard library, so that the job itself can decide it."""
