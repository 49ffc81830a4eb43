"""Heartbeats, hangs, stops, bad steps, and injected faults."""
