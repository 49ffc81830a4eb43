"""A job of 02-data on a node (`python -m`): its share of the shards, or what is left of them."""

import logging
import os
import sys
from pathlib import Path

from runbook import params
from runbook.core.errors import RunbookError
from runbook.params import Settings
from runbook.planning.sizes import same_fields
from runbook.tokens.pipeline.options import TokenizeOptions
from runbook.tokens.pipeline.tokenize import prepare, prepare_share
from runbook.workflow.prerequisites.token_files import token_groups
from runbook.workflow.run_files import read_plan_file

_log = logging.getLogger(__name__)


def tokenize(settings: Settings, folder: Path, share: tuple[int, int] | None) -> None:
    """Make one share of every pair of token files, or, without a share, all that is left, joined."""
    options = TokenizeOptions(**same_fields(TokenizeOptions, settings.run.data))
    for inputs, prefix in token_groups(settings, read_plan_file(folder).data, folder):
        if share is None:
            manifest = prepare(inputs, prefix, options)
            _log.info("%s: %d tokens", prefix.name, manifest.tokens)
        else:
            made, of = prepare_share(inputs, prefix, share, options)
            _log.info(
                "%s: share %d of %d, %d of its %d shards were missing",
                prefix.name,
                *share,
                made,
                of,
            )


def main() -> int:
    """PROJECT [--join], in a run's folder; the share comes from the queue's array, and is left out with --join."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder = Path.cwd()
    count = int(os.environ.get("RUNBOOK_ELEMENTS", "1"))
    if count > 1 and "--join" not in sys.argv:
        share = (int(os.environ["RUNBOOK_ELEMENT"]), count)
    else:
        share = None
    try:
        tokenize(params.load(str(folder / "run.yaml"), project=Path(sys.argv[1])), folder, share)
    except RunbookError as error:
        _log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
