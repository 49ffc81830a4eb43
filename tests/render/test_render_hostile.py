"""Whatever a person types into a site file, or as a folder name, is a value and never a command."""

import json
import secrets
import socket

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings, strategies

from runbook.core import shell
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.training_job import render_job, write_job

# Every character that a shell, a template engine or a path could interpret, and any other text.
SPICE = strategies.sampled_from("'\"`\\&|><*~!#$;- \n\r\t\u2028ü→😀") | strategies.sampled_from(
    [
        "$(touch made)",
        "`touch made`",
        ";touch made;",
        "\ntouch made\n",
        "${HOME}",
        "{{ run }}",
        "{% raw %}",
        "<%# x #%>",
        "-rf",
    ]
)
TEXT = strategies.lists(
    SPICE | strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0")),
    max_size=6,
)
VALUE = TEXT.map("".join)
FOLDER = VALUE.map(
    lambda text: text.replace("/", "_").encode()[:120].decode(errors="ignore")
).filter(lambda text: text not in ("", ".", ".."))


@pytest.mark.jobs
@settings(
    max_examples=25,
    deadline=None,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # shrinking a failing example takes minutes, because each one is a job
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(folder=FOLDER, value=VALUE, group=VALUE)
@example(folder="$(touch made)", value="'; touch made; '", group="x\ntouch made")
@example(folder="-\n", value="\n", group="\n")
@example(folder="a\n\n", value="${x", group="}}")
def test_values_arrive_as_they_are_and_start_nothing(
    folder, value, group, make_settings, make_plan, recorder, tmp_path
):
    run_folder = tmp_path / secrets.token_hex(4) / folder
    python = run_folder / value.replace("/", "_").encode()[:100].decode(errors="ignore") / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(recorder)
    site_environment = {f"{group}:": {"HOSTILE": value, "GONE": None}, "last": {"SECOND": group}}
    job = render_job(
        make_settings(site_environment), make_plan(1), "04-training", python=str(python)
    )
    job_folder = JobFolder(run_folder / "jobs" / "04-training-2")
    write_job(job_folder, job)

    said = shell.run(["bash", str(job_folder.script)], cwd=tmp_path, env={"GONE": "here"})

    arguments, where, environment = json.loads(said.out)
    assert arguments == ["-m", "runbook.training", *job.arguments]
    assert where == str(run_folder)
    assert environment["HOSTILE"] == value
    assert environment["SECOND"] == group
    assert "GONE" not in environment
    assert environment["RUNBOOK_JOB_FOLDER"] == str(job_folder.path)
    assert job_folder.exit_code.read_text().split() == ["0"]
    assert not [path for path in tmp_path.rglob("made") if path.is_file()]
    assert sorted(path.name for path in job_folder.path.iterdir()) == [
        "arguments.json",
        "exit_code",
        "heartbeat",
        "job.sh",
        "reason",
        "started",
    ]


@pytest.mark.jobs
def test_ranks_are_told_who_they_are(make_settings, make_plan, recorder, tmp_path):
    job = render_job(make_settings(cores=0), make_plan(3), "03-smoke-test", python=str(recorder))
    folder = JobFolder(tmp_path / "jobs" / "03-smoke-test")
    write_job(folder, job)
    said = shell.run(["bash", "job.sh"], cwd=folder.path, env={"OMP_NUM_THREADS": "77"})
    ranks = [environment for _, _, environment in map(json.loads, said.out.splitlines())]
    assert sorted(rank["RANK"] for rank in ranks) == ["0", "1", "2"]
    for rank in ranks:
        assert rank["LOCAL_RANK"] == rank["RANK"]
        assert rank["WORLD_SIZE"] == rank["LOCAL_WORLD_SIZE"] == "3"
        assert rank["MASTER_ADDR"] == "127.0.0.1"
        assert 20000 <= int(rank["MASTER_PORT"]) < 30000
        assert rank["MASTER_PORT"] == ranks[0]["MASTER_PORT"]
        assert 1 <= int(rank["OMP_NUM_THREADS"]) < 77
        assert rank["PYTHONUNBUFFERED"] == "1"


@pytest.mark.jobs
def test_a_port_in_use_is_not_taken(make_settings, make_plan, tmp_path):
    script = render_job(make_settings(), make_plan(), "03-smoke-test").script
    question = next(line for line in script.splitlines() if line.startswith("port_is_used()"))
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        assert (
            shell.run(["bash", "-c", f"{question}\nport_is_used {port}"], check=False).exit_code
            == 0
        )
    assert shell.run(["bash", "-c", f"{question}\nport_is_used {port}"], check=False).exit_code == 1
