"""The command line `runbook`, which responds to Ctrl-C from its first import on.

`runbook NAME` is in `cli/NAME.py`, which is imported when the command is called.
"""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line, even while Python imports its modules."""
    try:
        from runbook.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        sys.exit(130)
