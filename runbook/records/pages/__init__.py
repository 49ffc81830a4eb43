"""HTML pages for records and runs."""
