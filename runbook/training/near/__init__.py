"""Copies of the newest state in node memory, nearer than the checkpoints on the shared file system.

places       the folder on each node, its files and their names
state_file   one rank's state as a file with its checksum
choice       which copies a start takes: pure functions
exchange     the way of files between partner ranks
copies       the life of the copies: saved, chosen, loaded, removed
"""
