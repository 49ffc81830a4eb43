"""A training as a job: submit, watch, stop, resume, and read what it left."""
