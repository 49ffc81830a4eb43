"""Turns text from any source into verified token files (`.bin` and `.idx`)."""
