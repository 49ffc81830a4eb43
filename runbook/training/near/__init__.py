"""Copies of the newest state in node memory, which load faster than checkpoints on the shared disk.

places       the folder on each node, its files and their names
state_file   one rank's state as a file with its checksum
choice       which copies a start loads: pure functions
exchange     sending files between partner ranks
copies       the life of the copies: saved, chosen, loaded, removed
"""
