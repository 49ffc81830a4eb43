"""HTML pages of records and runs."""
