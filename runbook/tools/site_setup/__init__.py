"""The tool site_setup."""
