"""Running a job script in a sandbox, and what it was seen to do there."""
