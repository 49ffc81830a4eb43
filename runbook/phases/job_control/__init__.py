"""Jobs of a phase: submitting them, watching them, and deciding about restarts."""
