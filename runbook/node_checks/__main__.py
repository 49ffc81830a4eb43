"""`python -m runbook.node_checks RUNG...`: run the checks for these rungs on this node.

A job starts it once on each node. It writes each answer as an output line, and always exits with 0.
The reader of these lines decides whether the answers are good.
"""

import argparse
import os
import sys
from pathlib import Path

from runbook.node_checks import (
    caches,
    cores,
    foreign_programs,
    installation,
    machine,
    networks,
    operating_system,
    shared_folder,
    torch_child,
)
from runbook.node_checks.answers import HOSTS, PEERS, TORCH, PartState, Rung, node_names
from runbook.node_checks.fact_sheet.environment_facts import look_at_named_files
from runbook.node_checks.fact_sheet.folder_facts import look_at_opening_files
from runbook.node_checks.fact_sheet.groups import ask_facts
from runbook.node_checks.peers import ask_peers
from runbook.node_checks.scheduler_settings import look_at_scheduler_settings

LOCAL_SECONDS = 15.0
"""Time limit for a check that involves no other machine."""
FOLDER_SECONDS = 30.0
"""Time limit for a file server. If a megabyte takes longer, the server hangs or is overloaded."""
TORCH_SECONDS = 90.0
"""Time limit for importing torch.

On the clusters our documents describe, importing it from a cold shared file system took up to a
minute.
"""


def main() -> int:
    """Run the checks for each rung named on the command line."""
    arguments = _arguments()
    for name in arguments.rungs:
        rung = Rung(name)
        if name == HOSTS:
            _ask_host(rung, arguments.folder, arguments.token)
        elif name == TORCH:
            rung.ask(
                "torch",
                lambda: torch_child.look_at_torch(arguments.device, TORCH_SECONDS),
                TORCH_SECONDS + 5,
            )
        else:
            _ask_peers(rung)

        rung.write("end", PartState.DONE)

    return 0


def _ask_host(rung: Rung, folders: list[Path], token: str) -> None:
    """Check shared folders last, because these checks may hang."""
    rung.ask("software", machine.look_at_software, FOLDER_SECONDS)
    rung.ask("programs", installation.look_at_programs, FOLDER_SECONDS)
    rung.ask("sources", installation.look_at_sources, FOLDER_SECONDS)
    rung.ask("limits", machine.look_at_limits, LOCAL_SECONDS)
    rung.ask("memory", machine.look_at_memory, LOCAL_SECONDS)
    rung.ask("cores", cores.look_at_cores, LOCAL_SECONDS)
    rung.ask("scratch", machine.look_at_scratch, LOCAL_SECONDS)
    rung.ask("account", operating_system.look_at_account, FOLDER_SECONDS)
    rung.ask("devices", operating_system.look_at_devices, LOCAL_SECONDS)
    rung.ask("kernel", operating_system.look_at_kernel_settings, LOCAL_SECONDS)
    rung.ask(
        "foreign programs",
        lambda: foreign_programs.look_at_foreign_programs(_run_folder(folders)),
        LOCAL_SECONDS,
    )
    rung.ask("scheduler", look_at_scheduler_settings, LOCAL_SECONDS)
    rung.ask("tools", machine.look_at_tools, FOLDER_SECONDS)
    rung.ask("interfaces", networks.look_at_interfaces, LOCAL_SECONDS)
    rung.ask("names", networks.look_at_names, FOLDER_SECONDS)
    rung.ask("caches", caches.look_at_caches, FOLDER_SECONDS)
    rung.ask("stores", caches.look_at_stores, FOLDER_SECONDS)
    rung.ask("named files", look_at_named_files, LOCAL_SECONDS)
    rung.ask("opening files", look_at_opening_files, FOLDER_SECONDS)
    ask_facts(rung, folders)
    for number, folder in enumerate(folders):
        rung.ask(
            f"folder {number}",
            lambda folder=folder: shared_folder.look_at_folder(folder, token),  # type: ignore[misc]
            FOLDER_SECONDS,
        )

    if folders:
        rung.ask("clock", lambda: shared_folder.look_at_clock(folders[0]), FOLDER_SECONDS)


def _run_folder(folders: list[Path]) -> Path | None:
    """Return the run folder. The first folder is `environment/preflight` there."""
    return folders[0].parents[1] if folders else None


def _ask_peers(rung: Rung) -> None:
    if len(node_names()) > 1:
        ask_peers(rung)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runbook.node_checks", description=__doc__)
    parser.add_argument("rungs", nargs="+", choices=(HOSTS, TORCH, PEERS))
    parser.add_argument(
        "--folder",
        type=Path,
        action="append",
        default=[],
        help="a folder that all nodes share",
    )
    parser.add_argument(
        "--token", default="", help=("the content of the file `token` in each folder")
    )
    parser.add_argument("--device", default="cpu", help="the kind of device that the plan uses")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A hanging check must not keep the process alive.
    os._exit(code)
