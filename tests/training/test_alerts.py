"""Each alarm is sent to other places only once and never delays training, and no log contains the
address of such a place.
"""

import json
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from suite.messages import count_of, says

from runbook.core.processes import wait_until
from runbook.plan_file import schema
from runbook.tools.drills import faults
from runbook.training.alerts import AlertSender
from runbook.training.messages import TrainingMessage

from . import specs

pytestmark = pytest.mark.training
SPIKE_AT_12 = {"RUNBOOK_FAULTS": "spike:step=12,factor=3"}
SPIKE = {"RUNBOOK_FAULTS": "spike:step=6,factor=3"}


@pytest.fixture
def webhook():
    """Start a server on this machine that keeps posted data.

    `/gone` does not exist, and `/slow` does not answer.
    """
    posted = []
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.append((self.path, self.headers["Content-Type"], content))
            if self.path == "/slow":
                ended.wait(60)
            self.send_response(404 if self.path == "/gone" else 200)
            self.end_headers()

        def log_message(self, *_):
            """Do not log requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    ended.set()
    server.shutdown()
    server.server_close()


def allow(run, command):
    """Return a training environment with a configuration that allows this command."""
    file = run / "config" / "gpt3-runbook" / "allowed-commands"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"other words\n{command}\n")
    return {"XDG_CONFIG_HOME": str(run / "config")}


def train(zygote, run, alerts, **extra):
    extra = allow(run, alerts["alarm_command"]) | extra
    job = zygote.train(run, specs.spec(iterations=8, log=alerts), extra=extra)
    assert job.code == 0, job.err
    return job


def test_an_alarm_is_posted_and_piped_once_and_a_healthy_training_is_silent(zygote, run, webhook):
    address, posted = webhook
    alerts = {
        "alarm_webhook": "env:ALARM_ADDRESS",
        "alarm_command": f"tee -a '{run / 'mails of ada'}'",
    }
    assert train(zygote, run, alerts, ALARM_ADDRESS=f"{address}/secret").events("alarm") == []
    assert posted == [] and not (run / "mails of ada").exists()
    (run / "events.jsonl").unlink()
    job = zygote.train(
        run,
        specs.spec(iterations=16, log=alerts),
        extra=SPIKE_AT_12
        | {"ALARM_ADDRESS": f"{address}/secret"}
        | allow(run, alerts["alarm_command"]),
    )
    (event,) = job.events("alarm")
    alarm = TrainingMessage.ALARM.fill(kind="spike", iteration=12, evidence=event["evidence"])
    text = f"{run.name}: {alarm}"
    assert posted == [("/secret", "application/json", {**event, "run": run.name, "text": text})]
    mails = run / "mails of ada"
    assert mails.read_text() == f"{text}\n"
    assert "secret" not in job.out + job.err + (run / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("path", "error", "detail"),
    [
        ("/gone", "HTTPError", "404"),
        (":1/x", "URLError", "[Errno 111] Connection refused"),
        ("", "URLError", TrainingMessage.NO_HTTP_ADDRESS.fill(reference="file:{file}")),
    ],
)
def test_a_channel_that_fails_is_said_once_without_its_address(
    zygote, run, webhook, path, error, detail
):
    address = {"/gone": f"{webhook[0]}/gone", "": "ftp://hidden"}.get(
        path, f"http://127.0.0.1{path}"
    )
    (run / "address").write_text(f"{address}\n")
    detail = detail.replace("{file}", str(run / "address"))
    alerts = {"alarm_webhook": f"file:{run / 'address'}", "alarm_command": "false"}
    job = train(zygote, run, alerts, **SPIKE)
    message = TrainingMessage.ALARM_NOT_SENT
    by_command = {"key": "alarm_command", "error": "CalledProcessError", "detail": 1}
    assert count_of(job.out, message, **by_command) == 1
    assert count_of(job.out, message, key="alarm_webhook", error=error, detail=detail) == 1
    assert count_of(job.out, message) == 2
    assert address not in job.out + job.err and len(job.metrics) == 8


@pytest.mark.parametrize("allowed", ["", "touch", "touch {}.other", "# touch {}"])
def test_a_command_that_nobody_allowed_is_not_started_and_said_once(tmp_path, monkeypatch, allowed):
    command = f"touch {tmp_path / 'started'}"
    for name, value in allow(tmp_path, allowed.format(tmp_path / "started")).items():
        monkeypatch.setenv(name, value)
    said = []
    monkeypatch.setattr("runbook.training.alerts.say", said.append)
    alerts = AlertSender(schema.parse(specs.spec(log={"alarm_command": command})))
    for number in range(2):
        alerts.send(f"alarm {number}", {"event": "alarm"})
        alerts.close()
    (line,) = said
    assert says(line, TrainingMessage.COMMAND_NOT_ALLOWED, key="alarm_command")
    assert not (tmp_path / "started").exists()
    subprocess.run(["bash", "-c", line.partition("trust it: ")[2]], check=True)
    alerts.send("alarm 3", {"event": "alarm"})
    alerts.close()
    assert (tmp_path / "started").exists(), "what the line says to do allows it"


def test_a_slow_channel_holds_nothing_up(webhook, monkeypatch):
    address, posted = webhook
    monkeypatch.setenv("ALARM_ADDRESS", f"{address}/slow")
    monkeypatch.setattr("runbook.training.alerts.CHANNEL_SECONDS", 1.0)
    said = []
    monkeypatch.setattr("runbook.training.alerts.say", said.append)
    alerts = AlertSender(schema.parse(specs.spec(log={"alarm_webhook": "env:ALARM_ADDRESS"})))
    answered = []
    for number in range(3):
        alerts.send(f"alarm {number}", {"event": "alarm"})
        answered.append(len(said))
    assert answered == [0, 0, 0], "no alarm waits for the answer to an earlier one"
    alerts.close()
    assert wait_until(lambda: len(posted) == 3, 60)
    assert said == [
        TrainingMessage.ALARM_NOT_SENT.fill(key="alarm_webhook", error="TimeoutError", detail="")
    ]


def test_what_is_posted_is_json_where_a_number_is_none(webhook, monkeypatch):
    address, posted = webhook
    monkeypatch.setenv("ALARM_ADDRESS", address)
    monkeypatch.setattr("runbook.training.alerts.say", pytest.fail)
    alerts = AlertSender(schema.parse(specs.spec(log={"alarm_webhook": "env:ALARM_ADDRESS"})))
    alerts.send("the loss is no number", {"event": "alarm", "value": float("nan")})
    alerts.close()
    assert [content["value"] for _, _, content in posted] == [None]


def test_a_training_that_fails_sends_why(zygote, run, webhook):
    address, posted = webhook
    content = specs.spec(iterations=8, log={"alarm_webhook": "env:ALARM_ADDRESS"})
    job = zygote.train(
        run, content, extra={"RUNBOOK_FAULTS": "raise:step=3", "ALARM_ADDRESS": address}
    )
    assert job.code == 1
    (failed,) = job.events("failed")
    failure = TrainingMessage.TRAINING_FAILED.fill(message=failed["message"])
    assert [content["text"] for _, _, content in posted] == [f"{run.name}: {failure}"]
    assert failed["message"] == f"RuntimeError: {faults.ON_PURPOSE}"
