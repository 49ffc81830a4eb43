"""What follows a job: decided by the standard library alone, so that a job decides it as well."""
