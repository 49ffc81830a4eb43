"""Copies of the newest state in node memory, which load faster than checkpoints on the shared disk.

places       the folder on each node, its files and their names
partners     the node of each rank, and the partner that holds a copy of its state
room         whether the copies fit into the node memory
state_file   one rank's state as a file with its checksum
which_copy   which copies a start loads: pure functions
exchange     sending files between partner ranks
copies       how copies are saved, chosen, loaded and removed during training
removal      removing the copies when training stops for good
"""
