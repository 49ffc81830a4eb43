"""Publishes multiple runs as one static site, for any web server or a file:// address."""
