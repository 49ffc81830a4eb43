"""GPT-3 pre-training as notebooks that run for real; see README.md."""

__version__ = "0.1.0"
