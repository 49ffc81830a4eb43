"""The first job number of the stand-in for PBS.

It differs between processes: a job's processes are found and killed by its number, so two
concurrent test processes must not share numbers.
"""

import os

FIRST_VARIABLE = "PBS_STAND_IN_FIRST"
FIRST_JOB = 1700 + os.getpid() % 1000 * 20
