"""Jobs of a phase: submitting them, watching them, and deciding on restarts."""
