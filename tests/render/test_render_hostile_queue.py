"""Whatever a person types never changes the structure of a queue script. All 200 values arrive
unchanged.
"""

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from sites import PACKAGE, settings_of
from suite.messages import refuses
from suite.scripts import environment_of
from test_render_hostile import VALUE

from runbook.core import shell
from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.task_job import Task, render_task
from runbook.jobs.render.training_job import render_job
from runbook.planning import make_plan

MARK = "a mark "
"""A prefix for every value, so that each one is quoted and no value contains another."""


def with_hostile(value, recorder=None):
    """Return the LUMI run with this value wherever a person can write one: paths, image, options,
    environment.
    """
    own = settings_of("lumi-13b", "jobs.stage=/stage", "training.framework=runbook", "site=lumi")
    container = own.site.container.model_copy(update={"image": f"/{value}", "options": [value]})
    site = own.site.model_copy(
        update={
            "container": container,
            "environment": {f"{value}:": {"HOSTILE": value, "GONE": None}},
            "modules": [value],
            "step_options": [value],
            "paths": {},
            "binding": own.site.binding.model_copy(update={"cpu_masks": []}),
            "python": str(recorder or "python3"),
            "node_setup": [],
        }
    )
    return replace(own, site=site)


def unmarked(script, value, before="/"):
    """Replace each quoted occurrence of the value in a script with one word."""
    places = [
        shlex.quote(f"{value}:").replace("\n", " "),
        shlex.quote(f"{before}{value}"),
        shlex.quote(value),
    ]
    for place in places:
        assert place in script
        script = script.replace(place, "VALUE")
    return script


def job_of(own):
    return render_job(own, make_plan(own), "04-training", package=PACKAGE)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=VALUE)
@example(value="$(touch made)")
@example(value="'; touch made; '")
@example(value="\ntouch made\n")
@example(value="x\n#SBATCH --account=other")
def test_the_script_is_the_harmless_one_but_for_the_quoted_value(value):
    plain = unmarked(job_of(with_hostile(MARK)).script, MARK)
    script = unmarked(job_of(with_hostile(MARK + value)).script, MARK + value)
    assert script == plain


@settings(max_examples=200, deadline=None)
@given(value=VALUE)
@example(value="$(touch made)")
@example(value="\ntouch made\n")
@example(value="x\n#SBATCH --account=other")
def test_a_job_of_the_data_phase_is_the_harmless_one_but_for_the_quoted_value(value):
    assume(
        str(PACKAGE / (MARK + value)) == f"{PACKAGE}/{MARK}{value}"
    )  # a path loses a slash at its end

    def script(text):
        own = settings_of("lumi-13b")
        own = replace(
            own, site=own.site.model_copy(update={"environment": {f"{text}:": {"HOSTILE": text}}})
        )
        task = Task(f"{text}:", ("python3", text), is_array=True)
        return unmarked(render_task(own, "02-data", task, PACKAGE / text).script, text, "/project/")

    assert script(MARK + value) == script(MARK)


@pytest.mark.jobs
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=VALUE)
@example(value="$(touch made)")
@example(value="a\nb")
def test_the_program_gets_the_value_as_it_is(value, recorder, tmp_path):
    folder = "/" + value.strip("/").replace("/", "_")
    own = settings_of("lumi-13b", "training.framework=megatron-deepspeed")
    own = replace(
        own, site=own.site.model_copy(update={"paths": {"tensorboard": folder}, "launcher": "srun"})
    )
    checkout = own.site.frameworks["megatron-deepspeed"].model_copy(update={"folder": folder})
    own = replace(
        own,
        site=own.site.model_copy(
            update={"frameworks": {"megatron-deepspeed": checkout}, "python": str(recorder)}
        ),
    )
    job = job_of(own)
    (tmp_path / "rank.sh").write_text(job.files["rank.sh"], encoding="utf-8")
    environment = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "RUNBOOK_JOB_FOLDER": str(tmp_path)}
    said = shell.run(["bash", str(tmp_path / "rank.sh")], cwd=tmp_path, env=environment)
    arguments, _, seen = json.loads(said.out)
    assert arguments == ["-u", f"{folder.rstrip('/')}/pretrain_gpt.py", *job.arguments]
    assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == ("3", "3", "16")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value", ["two words", "a;b", "$(x)", "a\n#SBATCH --account=b", "'", "ü", "a#b"]
)
@pytest.mark.parametrize("run", ["lumi-13b", "polaris-25b"])
def test_what_cannot_stand_in_a_queues_line_is_refused(run, value):
    own = settings_of(run)
    training = own.run.jobs.training.model_copy(update={"account": value})
    jobs = own.run.jobs.model_copy(update={"training": training})
    own = replace(own, run=own.run.model_copy(update={"jobs": jobs}))
    with refuses(ParamsError, JobMessage.NOT_A_DIRECTIVE_WORD):
        job_of(own)


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("/a,b", JobMessage.MOUNT_WITH_SEPARATOR.of()),
        ("/a:/b:/c", JobMessage.MOUNT_WITH_SEPARATOR.of()),
        ("a", JobMessage.MOUNT_NOT_ABSOLUTE.of()),
    ],
)
def test_a_mount_that_would_be_read_as_two_is_refused(mount, why):
    own = settings_of("azure-175b")
    container = own.site.container.model_copy(update={"mounts": [mount]})
    own = replace(own, site=own.site.model_copy(update={"container": container}))
    with refuses(ParamsError, why):
        job_of(own)


def test_only_the_known_names_in_braces_are_filled_in_by_the_job():
    own = settings_of("lumi-13b")
    variables = {"A": "/tmp/{user}-{job}", "B": "{home} {{user}} $user", "C": "{stage}/x"}
    own = replace(own, site=own.site.model_copy(update={"environment": {"g": variables}}))
    script = job_of(own).script
    user = "a; touch $made"
    number = "* 7"
    environment = environment_of(script, variables={"user": user, "job_number": number})
    assert environment["A"] == f"/tmp/{user}-{number}"
    assert environment["B"] == f"{{home}} {{{user}}} $user"
    assert environment["C"] == "/GIVE_JOBS_STAGE/x"
