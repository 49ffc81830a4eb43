"""Publishes multiple runs as a static website, for any web server or a file:// address."""
