"""Time limits for the last preflight stage, in which ranks meet and use each process group.

The program on each rank ends a step that takes longer, the job script ends the ranks, and the rules
show the limits.
"""

MEETING_SECONDS = 120
"""Seconds within which all ranks must arrive.

The slowest node has to import torch and megatron-core from a cold file system.
"""
GROUP_SECONDS = 60
"""Seconds allowed for each step with a process group: to create it, and to run an all-reduce over
it.

The first NCCL collective over 1,024 ranks takes a few seconds, so a collective that takes a minute
hangs.
"""
GIVE_UP_SECONDS = 10
"""Extra seconds to let the torch timeout take effect first, since the torch error says more."""
IMPORT_SECONDS = 150
"""Seconds allowed to import megatron-core before the ranks meet.

On overloaded cores, the import and the rendezvous took 189 s (2026-11-28, two Slurm nodes on two
cores at a load of 20), and the limit for the stage ended the ranks in the next step, which seemed
to hang. This limit is short enough to let the ranks report the import before the stage ends.
"""
START_SECONDS = 40
"""Seconds in which the launcher starts the ranks' program."""
_LAST_ARRIVAL_SECONDS = max(IMPORT_SECONDS, MEETING_SECONDS)
STAGE_SECONDS = START_SECONDS + _LAST_ARRIVAL_SECONDS + GROUP_SECONDS + 2 * GIVE_UP_SECONDS
"""Seconds the stage takes if the last rank arrives at the last moment and a group hangs."""
