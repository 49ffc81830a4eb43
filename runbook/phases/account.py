"""Where the wall time of a training over many jobs went, and what each interruption cost."""

from __future__ import annotations

from runbook.analysis.drawing import as_svg
from runbook.analysis.figures import goodput_figure
from runbook.analysis.ledger import interruption_rows, ledger, ledger_rows
from runbook.display import show_figure, show_table, show_text
from runbook.phases import trained
from runbook.phases.campaign import Campaign


def show_account(campaign: Campaign) -> None:
    """The phase's account as a figure and a table, its interruptions one by one, its goodput among the results."""
    one = trained.read(campaign, campaign.phase)
    account = ledger(one.history, one.validation, one.events)
    if account is None:
        show_text(f"{campaign.phase} has made no step yet.")
        return
    share = account.goodput or 0.0
    told = (
        f"{share:.1%} of {account.wall_seconds:.0f} s were productive steps, over {account.jobs} jobs; "
        f"{account.lost_steps} steps were done again, {account.missing_steps} are missing."
    )
    show_figure(as_svg(goodput_figure(account, f"Where the wall time of {campaign.phase} went")).text, told)
    show_table(ledger_rows(account), title="The account")
    if account.interruptions:
        show_table(interruption_rows(account), title="Interruptions")
    for key, value in (("goodput", share), ("lost_steps", account.lost_steps), ("jobs", account.jobs)):
        campaign.session.result(key, trained.rounded(value))
