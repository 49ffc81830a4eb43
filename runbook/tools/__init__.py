"""Tools that a run does not need: each has its own folder and command, and none imports another."""
