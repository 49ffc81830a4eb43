"""`runbook replay`: train one step of a run again on any machine, and explain any difference.

The cause may be the data, the program or the machine.
"""
