"""Jobs that share a folder and run one after the other, and whether the next one will train."""

from runbook.jobs import job_folder
from runbook.jobs.job_folder import JobFolder
from runbook.plan_file.errors import STOPPED
from runbook.plan_file.job_ends import Action


def chain_of(folder: JobFolder) -> list[str]:
    """Return the ids of all jobs that share a folder, in order.

    Return an empty list if there is no chain.
    """
    return job_folder.read_text(folder.chain).split()


def followers_of(folder: JobFolder) -> list[str]:
    """Return the ids of the jobs that follow the last started job in a chain."""
    chain = chain_of(folder)
    start = job_folder.read_started(folder)
    if start is None or start.job_id not in chain:
        return chain[1:]
    return chain[chain.index(start.job_id) + 1 :]


def chain_goes_on(folder: JobFolder) -> bool:
    """Return whether the next job of a chain trains, according to the rule in chain.sh.j2."""
    if folder.cancelled.exists() or folder.stop_requested.exists():
        return False
    # Read the decision file before looking for its saved copy, because the next job may move it in
    # between.
    start = job_folder.read_started(folder)
    decision = job_folder.read_text(folder.decision)
    if decision:
        return decision.startswith(f"{Action.GO_ON}\n")
    # Without a start record, either no job has started, or the next job is moving the previous
    # job's files away. It moves the decision file first.
    if start is None or folder.decision_kept_for(start.job_id).exists():
        return True

    # Read the file in the same way as chain.sh.j2 does. A job killed along with its script
    # leaves no file, whatever exit code its queue reports.
    return job_folder.read_text(folder.exit_code).strip() in ("", str(STOPPED))
