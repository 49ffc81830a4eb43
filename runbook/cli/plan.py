"""`runbook init`, `adopt`, `lab`, `check`, `plan`, `rehearse`, `why`, `render`, `doctor`, `drill`.

These commands come before a job.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runbook.runs.command_options import (
    AS_JSON,
    AT_LEAST_1,
    EXISTING_FILE,
    FILE,
    FOLDER,
    RUNS,
    SET,
    phase_option,
)

if TYPE_CHECKING:
    from runbook.params.settings import Settings
    from runbook.tools.site_setup.draft_site import ClusterWish
    from runbook.tools.site_setup.recipes import Recipe


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--site",
    default="",
    metavar="NAME",
    help="Also write params/sites/NAME.yaml and params/NAME.yaml.",
)
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs"]),
    help="Default: slurm or pbs, whichever is installed here.",
)
@click.option(
    "--device",
    default="",
    metavar="NAME",
    help="The GPUs, such as A100-40GB (default: ask the scheduler).",
)
@click.option(
    "--devices-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs of a node (default: ask the scheduler).",
)
@click.option(
    "--cores-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="CPU cores that a job may use on a node (default: ask the scheduler).",
)
@click.option(
    "--model",
    default="",
    metavar="NAME",
    help="Also write a run file with the values of a published training, each with its source: "
    "125m to 175b, llama-3-8b, llama-3-70b.",
)
def init(
    folder: Path,
    site: str,
    model: str,
    **site_options: Any,
) -> None:
    """Make DIR a project: the seven notebooks, and params/ with every run, site and model. No file is replaced.

    With --site: a site file for your cluster and a first run file, from what its scheduler says
    (sinfo; qstat and pbsnodes). An unknown value is marked FILL_IN, and check refuses the file
    until you replace it.
    """
    from runbook.phases.notebook_copies import make_project
    from runbook.tools.site_setup.draft_site import ClusterWish, check_cluster_wish
    from runbook.tools.site_setup.recipes import find_recipe

    recipe = find_recipe(model) if model else None
    stated = {key: value for key, value in site_options.items() if value}
    cluster_wish = ClusterWish(site, **stated)
    if site:
        check_cluster_wish(cluster_wish)
    elif stated:
        raise click.UsageError(
            "--scheduler, --device, --devices-per-node and --cores-per-node are a site's: name it "
            "by --site."
        )

    written, existing = make_project(folder, clone=bool(site))
    existing_note = ""
    if existing:
        existing_note = f"; {len(existing)} exist and were kept"
    click.echo(f"{folder}: {len(written)} files written{existing_note}.")
    if recipe:
        _write_recipe(folder, recipe, site)
    if site:
        _write_site(folder, cluster_wish)
    elif not recipe:
        click.echo(
            f"Next: cd {folder}; runbook run local; or open notebooks/00-plan.ipynb in JupyterLab."
        )


def _write_recipe(folder: Path, recipe: "Recipe", site: str) -> None:
    from runbook.tools.site_setup.recipes import LOCAL_SITE, write_recipe

    path, is_written = write_recipe(folder, recipe, site or LOCAL_SITE)
    state = "written" if is_written else "exists and was kept"
    click.echo(f"{path}: {state}")
    click.echo(
        f"It trains on the shipped text at site {site or LOCAL_SITE}: write data.dataset, site "
        f"and jobs.training.nodes into it. Next: cd {folder}; runbook plan {path.stem} --search; "
        f"runbook check {path.stem}"
    )


def _write_site(folder: Path, cluster_wish: "ClusterWish") -> None:
    from runbook.tools.site_setup.draft_site import write_site

    site = cluster_wish.name
    draft = write_site(folder, cluster_wish)
    for path in (draft.site, draft.run):
        if path in draft.written:
            state = "written"
        else:
            state = "exists and was kept"

        click.echo(f"{path}: {state}")

    if draft.source:
        click.echo(f"Drafted from the answers of: {draft.source}.")
    else:
        click.echo("No scheduler answered on this machine.")

    if draft.silence:
        click.echo(f"Not answered: {draft.silence}")
    fill = ""
    if draft.marked:
        fill = f"fill in the {draft.marked} values marked FILL_IN in {draft.site}; "
    click.echo(
        f"Next: {fill}cd {folder}; runbook check {site}; runbook render {site} --out scripts; "
        f"runbook run {site}"
    )


@click.command()
@click.argument("scripts", metavar="[OLD_SCRIPT]...", nargs=-1, type=EXISTING_FILE)
@click.option("--out", type=FILE, help="The run file to write (default: params/<script>.yaml).")
@click.option("--replace", is_flag=True, help="Overwrite an existing run file.")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read this running process instead of a script.",
)
@click.option(
    "--job", metavar="ID", help="Read the script of this Slurm or PBS job instead of a file."
)
@click.option(
    "--launch",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="If the script starts several trainings, use the Nth (default: the last).",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything that was found as one JSON object."
)
def adopt(
    scripts: tuple[Path, ...],
    out: Path | None,
    replace: bool,
    pid: int | None,
    job: str | None,
    launch: int | None,
    as_json: bool,
) -> None:
    """Turn a job script, or a block of exports, into a run file, by running it in a sandbox with stub programs.

    The sandbox has no network, no devices and none of your files except copies of the small text
    files next to the script, and of those that it names in its checkout. The report compares every
    option of the script with the run file's own command, most important first, and names the
    script's known errors. If the script starts scripts in other folders, list them after it.
    OLD_SCRIPT may also be a log with Megatron's printed arguments, or the configuration of another
    program: torchtitan's TOML, the YAML of nanotron, GPT-NeoX, NeMo 2 or Megatron Bridge, or a
    recipe in Python, which is read and never executed.
    """
    from runbook.tools.adopt import adopt_scripts

    if sum(map(bool, (scripts, pid, job))) != 1:
        raise click.UsageError("give one of OLD_SCRIPT, --pid and --job")
    if pid:
        report = adopt_scripts.adopt_process(pid, out, replace=replace)
    elif job:
        report = adopt_scripts.adopt_job(job, out, replace=replace, launch=launch or 0)
    else:
        report = adopt_scripts.adopt(scripts, out, replace=replace, launch=launch or 0)

    _show(report.as_dict() if as_json else report.as_text())


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_name", metavar="RUN")
@click.argument("words", metavar="[-- WORDS OF JUPYTERLAB]", nargs=-1, type=click.UNPROCESSED)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--copy-only", is_flag=True, help="Copy the notebooks; start nothing.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Copy the masters again; existing copies move to lab/before-TIME.",
)
@SET
@click.option(
    "--as",
    "as_name",
    default="",
    metavar="NAME",
    help="Use a separate run folder, RUN--NAME, for these overrides.",
)
@RUNS
def lab(
    run_name: str,
    words: tuple[str, ...],
    set_words: tuple[str, ...],
    as_name: str,
    no_browser: bool,
    copy_only: bool,
    fresh: bool,
    runs: Path | None,
) -> None:
    """Open the notebooks of RUN in JupyterLab: copies in the run's folder, with RUN in their parameters cell.

    Changing a copy changes no other run and nothing in git. The records are the same as from the
    masters. If you call the command again, it opens the same copies. Words after -- go to
    JupyterLab: runbook lab RUN -- --port 8899 --ip 0.0.0.0
    """
    from runbook.phases.notebook_copies import (
        SETTINGS_VARIABLE,
        copies_text,
        make_copies,
        server_arguments,
        with_our_settings,
    )
    from runbook.runs.run_folder import RUNS_VARIABLE

    if runs is not None:
        os.environ[RUNS_VARIABLE] = str(runs.absolute())
    copies = make_copies(
        run_name,
        set_words=set_words,
        as_name=as_name,
        fresh=fresh,
    )
    click.echo(copies_text(copies))
    if copy_only:
        return
    os.environ[SETTINGS_VARIABLE] = with_our_settings(os.environ)
    from jupyterlab.labapp import LabApp

    options = ["--Application.log_level=ERROR"]
    if no_browser:
        options.append("--no-browser")
    click.echo("JupyterLab starts; Ctrl-C ends it. Jobs that were launched go on without it.")
    if os.geteuid() == 0 and "--allow-root" not in words:
        click.echo(
            f"You are root, as whom JupyterLab refuses to start: runbook lab {run_name} -- "
            "--allow-root"
        )

    LabApp.launch_instance([*server_arguments(copies), *options, *words])


@click.command()
@click.argument("run_name", metavar="RUN")
@SET
@AS_JSON
def check(run_name: str, set_words: tuple[str, ...], as_json: bool) -> None:
    """List everything that is wrong with RUN: keys, types, ranges, layout, memory, queue. Nothing is written."""
    from runbook.phases.plan_service import check_text, run_checks

    if as_json:
        name, checks = run_checks(run_name, set_words)
        _show({"run": name, "checks": [asdict(check) for check in checks]})
    else:
        click.echo(check_text(run_name, set_words))


@click.command()
@click.argument("run_name", metavar="RUN", required=False, default="")
@click.option(
    "--json", "as_json", is_flag=True, help="Print plan.json, or predictions as a JSON list."
)
@click.option(
    "--predict",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Instead of planning a run, predict the speed of each row of a table with the columns of "
    "published_results.csv.",
)
@click.option(
    "--search",
    "searching",
    is_flag=True,
    help="Rank the layouts that fit the nodes of RUN; no file changes.",
)
@SET
def plan(
    run_name: str,
    as_json: bool,
    table: Path | None,
    searching: bool,
    set_words: tuple[str, ...],
) -> None:
    """Compute sizes, layout, memory and time of RUN; nothing is written or submitted."""
    if bool(run_name) == bool(table):
        raise click.UsageError("give either RUN or --predict FILE.csv")
    if table:
        from runbook.tools.speed.predictions import predict_file, predictions_text

        predictions = predict_file(table)
        if as_json:
            _show([prediction.as_dict() for prediction in predictions])
        else:
            _show(predictions_text(predictions))

        return

    if searching:
        from runbook.phases.plan_service import search_run

        ranking = search_run(run_name, set_words)
        _show(ranking.as_dict() if as_json else ranking.as_text())
        return

    from runbook.phases.plan_service import load_plan, plan_text
    from runbook.runs.run_files import with_prompt_ids

    settings, run_plan = load_plan(run_name, set_words, measured=True)
    if as_json:
        _show(with_prompt_ids(settings, run_plan).as_dict())
    else:
        from runbook.phases.loss_forecast import show_planned_loss

        _show(plan_text(settings, run_plan))
        _show(f"\n{show_planned_loss(settings, run_plan)!r}")


def _show(content: Any) -> None:
    """Print text unchanged, and anything else as JSON."""
    if not isinstance(content, str):
        content = json.dumps(content, indent=1, ensure_ascii=False)
    click.echo(content)


@click.command()
@click.argument("run_name", metavar="RUN")
@phase_option("The training phase to rehearse.")
@click.option(
    "--ranks",
    default="",
    metavar="0,8",
    help="Rehearse these ranks instead of the first of each pipeline stage.",
)
@click.option(
    "--upstream",
    "checkout",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    metavar="CHECKOUT",
    help="Instead, start the document's own program in this folder by the rendered rank.sh, with a "
    "tiny model on CPUs.",
)
@click.option(
    "--installed",
    is_flag=True,
    help="With --upstream: use the packages installed here, not the site's versions.",
)
@click.option(
    "--jobs",
    type=AT_LEAST_1,
    default=1,
    show_default=True,
    help="With --upstream: start the program this many times, as a chain of jobs; each must "
    "continue from the checkpoint of the one before.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was counted as JSON.")
@click.option(
    "--pictures",
    type=FOLDER,
    help="Draw memory over a step and the schedule of all stages in this folder.",
)
@SET
def rehearse(
    run_name: str,
    phase: str,
    ranks: str,
    checkout: Path | None,
    installed: bool,
    jobs: int,
    as_json: bool,
    pictures: Path | None,
    set_words: tuple[str, ...],
) -> int:
    """Train one step of RUN at full size on fake tensors: memory, work, time and communication of each stage.

    The real trainer runs, rank by rank, as on the cluster; nothing is computed, sent or written. It
    needs torch, but no GPU. Exit code 1 if a stage does not fit its device, or if the program of
    CHECKOUT fails.
    """
    say = partial(click.echo, err=True)
    if checkout:
        from runbook.tools.try_upstream.start_upstream import start_upstream

        trial = start_upstream(
            run_name,
            set_words,
            phase=phase,
            checkout=checkout,
            say=say,
            installed=installed,
            jobs=jobs,
        )
        _show(trial.as_dict() if as_json else trial.as_text())
        return 0 if trial.works else 1

    from runbook.phases.rehearsal import rehearse_run
    from runbook.plan_file.json_records import as_json as json_of

    rehearsal = rehearse_run(
        run_name,
        set_words,
        phase=phase,
        ranks=_rank_numbers(ranks),
        say=say,
    )
    _show(json_of(rehearsal) if as_json else rehearsal.as_text())
    if pictures:
        for path in rehearsal.save_figures(pictures):
            click.echo(path, err=True)

    return 0 if rehearsal.fits else 1


def _rank_numbers(text: str) -> list[int]:
    """Return the ranks of `--ranks 0,8`, or none without the option."""
    if not text:
        return []
    numbers = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in numbers):
        raise click.UsageError(
            f"--ranks {text!r}: give numbers with commas between them, for example 0,8"
        )

    return [int(word) for word in numbers]


@click.command()
@click.argument("run_name", metavar="RUN")
@click.argument("key")
@SET
@AS_JSON
def why(
    run_name: str,
    key: str,
    set_words: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain what KEY means, where its value in RUN comes from, and what the documents call it."""
    from runbook.phases.plan_service import why_facts, why_text

    if as_json:
        _show({"values": why_facts(run_name, key, set_words)})
    else:
        click.echo(why_text(run_name, key, set_words))


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--out", required=True, type=FOLDER, help="Folder to write into.")
@click.option(
    "--placeholders",
    is_flag=True,
    help="Print a placeholder in capitals for every required value that is missing.",
)
@SET
def render(
    run_name: str,
    out: Path,
    placeholders: bool,
    set_words: tuple[str, ...],
) -> None:
    """Write OUT/jobs/<phase>/job.sh and arguments.json for each phase of RUN that submits a job, without a cluster.

    OUT has the layout of a run's folder: go to OUT/jobs/<phase> and submit job.sh from there.
    """
    from runbook.phases.plan_service import render_all

    for path in render_all(run_name, set_words, out, placeholders=placeholders):
        click.echo(path)


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False, default="")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a list of objects with name, status, message, rule and remedy.",
)
@SET
def doctor(run_name: str, as_json: bool, set_words: tuple[str, ...]) -> int:
    """Check what this machine has and lacks, and with RUN also its site; each row has a rule and a remedy.

    With RUN: required values, modules, scheduler, image, disk space for the plan, and the checks of
    `runbook preflight` on the nodes, if jobs.environment says how to reach them. Exit code 1 if a
    check fails.
    """
    from runbook.cli.preflight import released_by_signals
    from runbook.display import CheckTable
    from runbook.phases.p01_environment.doctor import all_checks, run_checks

    with released_by_signals():
        checks = run_checks(run_name, set_words) if run_name else all_checks()
    rows = []
    for check in checks:
        rows.append({**check.as_dict(), "status": check.verdict, "message": check.value})

    _show(rows if as_json else CheckTable(checks).as_text())
    return 1 if any(check.verdict == "fail" for check in checks) else 0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a list of objects with name, verdict, detail, fault and more.",
)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List the drills and what each does; nothing is started.",
)
@click.option(
    "--campaign",
    "campaign_time",
    default="",
    metavar="TIME",
    help="Simulate this long (30d) of faults for the run NAME; nothing is started.",
)
@click.option(
    "--queue",
    default="0",
    metavar="TIME",
    help="With --campaign: how long a new job waits in the queue.",
)
@click.option(
    "--person",
    default="8h",
    show_default=True,
    metavar="TIME",
    help="With --campaign: how long it takes until a person acts, if the rules require one.",
)
@SET
@click.option("--log", type=FILE, help="Write the output of the trainings to this file.")
@click.option("--page", type=FILE, help="Write the results to this file as Markdown.")
@click.option(
    "--again",
    is_flag=True,
    help="Retry a failed drill once. The report shows both attempts; the second decides the exit "
    "code.",
)
def drill(
    names: tuple[str, ...],
    as_json: bool,
    only_list: bool,
    campaign_time: str,
    queue: str,
    person: str,
    set_words: tuple[str, ...],
    log: Path | None,
    page: Path | None,
    again: bool,
) -> int:
    """Break a small training on this machine on purpose, and check that it ends as it should. Without NAME: all twenty.

    NAME is a drill's name, its number, or words of its name. A drill works in a temporary folder on
    two to four processes without a GPU, needs the train extra, and leaves no process behind. Exit
    code 1 if a drill fails.

    With --campaign, NAME is a run. The command simulates faults at a published rate, handled by
    that run's watchdog limits, rules for restarts and save interval, and shows what spare nodes or
    other intervals would gain.
    """
    if campaign_time:
        settings = _campaign_settings(names, set_words)
        return _show_campaign(
            settings,
            campaign_time,
            queue,
            person,
            as_json=as_json,
        )

    from runbook.records.twin import commit_of
    from runbook.tools.drills import report, table

    chosen = table.chosen_drills(names)
    if only_list:
        _list_drills(chosen, as_json=as_json)
        return 0

    if page and not page.absolute().parent.is_dir():
        raise click.UsageError(f"--page: {page.absolute().parent} is no folder; make it first.")
    verdicts = []
    # Unlike a signal, an exit lets the drills end the processes that they started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with log.open("w") if log else tempfile.TemporaryFile("w") as stream:
        for verdict in table.do_attempts(chosen, stream, again=again):
            verdicts.append(verdict)
            if not as_json:
                click.echo(report.verdict_line(verdict))

    # The sort is stable, so the second attempt of a drill follows the first.
    verdicts.sort(key=lambda verdict: chosen.index(verdict.name))
    if page:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        page.write_text(report.page_text(verdicts, date, commit_of(Path(__file__).parent)))

    if as_json:
        click.echo(json.dumps([verdict.as_dict() for verdict in verdicts], indent=1))
    else:
        click.echo(f"{report.score(verdicts)} (of {len(table.DRILLS)} drills that there are)")

    last_verdicts = {verdict.name: verdict.verdict for verdict in verdicts}
    return 0 if set(last_verdicts.values()) <= {"pass"} else 1


def _list_drills(names: Sequence[str], *, as_json: bool) -> None:
    """Print the drills, each with the fault it causes."""
    from runbook.tools.drills import table

    rows = [{"name": name, "fault": table.summary(name)} for name in names]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return

    for row in rows:
        click.echo(f"{row['name']:24} {row['fault']}")


def _campaign_settings(names: tuple[str, ...], set_words: tuple[str, ...]) -> "Settings":
    from runbook.params.run_loader import load

    if len(names) != 1:
        raise click.UsageError("--campaign takes the name of one run.")
    return load(names[0], set_words=set_words)


def _show_campaign(
    settings: "Settings",
    campaign_time: str,
    queue: str,
    person: str,
    *,
    as_json: bool,
) -> int:
    """Print a simulated campaign of one run."""
    from runbook.plan_file import json_records
    from runbook.planning import FULL
    from runbook.runs.machine import make_plan_here
    from runbook.tools.drills.campaign import CampaignTerms, run_campaign

    terms = CampaignTerms(
        seconds=_seconds("--campaign", campaign_time),
        restarts=settings.job(FULL).restarts,
        spares=settings.job(FULL).spares,
        queue=_seconds("--queue", queue),
        person=_seconds("--person", person),
        writes_copies=settings.run.training.framework == "runbook",
    )
    campaign = run_campaign(make_plan_here(settings), terms)
    if as_json:
        click.echo(json.dumps(json_records.as_json(campaign), indent=1))
    else:
        click.echo(campaign.as_table().as_text())

    return 0


def _seconds(option: str, text: str) -> float:
    from runbook.core.units import parse_duration

    try:
        return float(parse_duration(text))
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
