"""Sends alarms and events to a webhook, or to a command the user has allowed."""

import contextlib
import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from threading import Thread, current_thread
from typing import Any
from urllib.error import URLError

from runbook.plan_file.allowed_commands import allowed_commands_file, how_to_allow, is_allowed
from runbook.plan_file.json_records import as_line
from runbook.plan_file.schema import PhasePlan
from runbook.training.job_output import say
from runbook.training.messages import TrainingMessage


class NotAllowedError(Exception):
    """Raised if the user has not allowed a command. The error text explains how to allow it."""


CHANNEL_SECONDS = 10.0  # Seconds to wait for an answer from a channel
SENT_EVENTS = {"failed": TrainingMessage.TRAINING_FAILED}
"""Events in events.jsonl to send like alarms.

The fields in an event fill the placeholders in the message.
"""


class AlertSender:
    """Sends alarms about a training run to the channels chosen for it.

    A slow or broken channel does not delay the training.
    """

    def __init__(self, spec: PhasePlan) -> None:
        self.spec = spec
        # By channel, the thread that failed first: a broken channel is reported only once
        self._broken: dict[str, Thread] = {}
        self._threads: list[Thread] = []

    def send(self, text: str, event: Mapping[str, object]) -> None:
        """Send a message, with one thread per channel.

        The webhook also receives the event as JSON.
        """
        run = self.spec.root.resolve().name
        log = self.spec.log
        channels = (
            ("alarm_webhook", post, log.alarm_webhook),
            ("alarm_command", pipe, log.alarm_command),
        )
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for key, channel, address in channels:
            if address.strip():
                arguments = (key, channel, address, {"run": run, "text": f"{run}: {text}", **event})
                self._threads.append(
                    Thread(
                        target=self._send,
                        args=arguments,
                        daemon=True,
                    )
                )
                # If no more threads can be started, the alarm is still in the log
                with contextlib.suppress(RuntimeError):
                    self._threads[-1].start()

    def send_event(self, event: Mapping[str, object]) -> None:
        """Send an event from events.jsonl if it is one of `SENT_EVENTS`."""
        message = SENT_EVENTS.get(str(event["event"]))
        if message is not None:
            self.send(message.fill(**event), event)

    def _send(
        self,
        key: str,
        channel: Any,
        address: str,
        content: dict[str, object],
    ) -> None:
        try:
            channel(address, content)
        except NotAllowedError as error:
            if self._broken.setdefault(key, current_thread()) is current_thread():
                say(
                    TrainingMessage.COMMAND_NOT_ALLOWED.fill(
                        key=key, allowed=allowed_commands_file(), error=error
                    )
                )
        except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
            if self._broken.setdefault(key, current_thread()) is current_thread():
                # The error text is left out, since it may contain the address.
                names = ("code", "reason", "returncode", "strerror")
                detail = next(
                    (value for name in names if (value := getattr(error, name, None))), ""
                )
                say(
                    TrainingMessage.ALARM_NOT_SENT.fill(
                        key=key, error=type(error).__name__, detail=detail
                    )
                )

    def close(self) -> None:
        """Wait briefly for alarms still being sent."""
        # If a channel fails exactly at its time limit, it is still reported
        end = time.monotonic() + CHANNEL_SECONDS + 2.0
        for thread in filter(Thread.is_alive, self._threads):
            thread.join(max(0.0, end - time.monotonic()))


def post(reference: str, content: Mapping[str, object]) -> None:
    """Send JSON by POST to the address that `env:NAME` or `file:PATH` contains."""
    kind, _, target = reference.partition(":")
    if kind == "env":
        address = os.environ.get(target, "")
    else:
        address = Path(target).expanduser().read_text("utf-8")

    if not address.strip().startswith(("http://", "https://")):
        raise URLError(TrainingMessage.NO_HTTP_ADDRESS.fill(reference=reference))
    request = urllib.request.Request(
        address.strip(), as_line(content), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=CHANNEL_SECONDS):
        pass


def pipe(command: str, content: Mapping[str, object]) -> None:
    """If the user has allowed this command, run it with the message on standard input."""
    if not is_allowed(command):
        raise NotAllowedError(how_to_allow(command))
    # A child process that keeps running must not hold a pipe to this process open
    silent, text = (
        subprocess.DEVNULL,
        f"{content['text']}\n".encode(),
    )
    subprocess.run(
        shlex.split(command),
        input=text,
        timeout=CHANNEL_SECONDS,
        check=True,
        stdout=silent,
        stderr=silent,
    )
