"""`runbook replay`: train one step of a run again on any machine, and explain what differs.

The cause may be the data, the program or the machine.
"""
