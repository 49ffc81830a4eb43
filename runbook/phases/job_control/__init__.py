"""Jobs of a phase: submit, watch, decide on a restart."""
