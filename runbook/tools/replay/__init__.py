"""`runbook replay`: train a step again on any machine, and explain any difference.

The cause may be the data, the program or the machine.
"""
