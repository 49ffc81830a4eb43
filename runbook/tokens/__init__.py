"""Text to verified token files: sources, tokenizers, `.bin` and `.idx`."""
