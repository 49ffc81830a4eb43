"""The first job number of the stand-in for PBS.

It differs from process to process: a job's processes are found, and killed, by its number, so two
test processes at once must not share numbers.
"""

import os

FIRST_VARIABLE = "PBS_STAND_IN_FIRST"
FIRST_JOB = 1700 + os.getpid() % 1000 * 20
