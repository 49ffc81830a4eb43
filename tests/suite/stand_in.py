"""The first job number that the stand-in for PBS uses.

Each test process has its own number: a job's processes are found and killed by the job number, so
two test processes must not share numbers.
"""

import os

FIRST_VARIABLE = "PBS_STAND_IN_FIRST"
FIRST_JOB = 1700 + os.getpid() % 1000 * 20
