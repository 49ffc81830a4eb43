"""`python -m runbook` is the command `runbook`."""

from runbook.cli import main

main()
