"""Turns text into verified token files: sources, tokenizers, `.bin` and `.idx`."""
