"""Alerts: alarms sent to a webhook and to a command while the training goes on."""

import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from threading import Thread, current_thread
from typing import Any
from urllib.error import URLError

from runbook.plan_file.json_records import as_line
from runbook.plan_file.schema import PhasePlan

CHANNEL_SECONDS = 10.0  # for an answer


class AlertSender:
    """The channels of one training; neither a slow nor a broken one holds it up."""

    def __init__(self, spec: PhasePlan, say: Callable[[str], None]) -> None:
        self.spec, self._say = spec, say
        self._broken: dict[str, Thread] = {}  # by key: the thread that says so
        self._threads: list[Thread] = []

    def send(self, text: str, event: Mapping[str, object]) -> None:
        """Send a text, to the webhook with the event it is about, in a thread for each channel."""
        run, log = self.spec.root.resolve().name, self.spec.log
        channels = (("alarm_webhook", post, log.alarm_webhook), ("alarm_command", pipe, log.alarm_command))
        for key, channel, address in channels:
            if address:
                arguments = (key, channel, address, {"run": run, "text": f"{run}: {text}", **event})
                self._threads.append(Thread(target=self._send, args=arguments, daemon=True))
                self._threads[-1].start()

    def _send(self, key: str, channel: Any, address: str, content: dict[str, object]) -> None:
        try:
            channel(address, content)
        except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
            if self._broken.setdefault(key, current_thread()) is current_thread():
                # Not the error's own text: it may hold the address.
                names = ("code", "reason", "returncode", "strerror")
                detail = next((value for name in names if (value := getattr(error, name, None))), "")
                self._say(
                    f"training.{key} could not send an alarm, and the training goes on: {type(error).__name__} {detail}"
                )

    def close(self) -> None:
        """Wait a moment for what is on its way."""
        end = time.monotonic() + CHANNEL_SECONDS + 2.0  # so that what failed at its limit is said
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def post(reference: str, content: Mapping[str, object]) -> None:
    """POST as JSON to the address that `env:NAME` or `file:PATH` holds."""
    kind, _, place = reference.partition(":")
    address = os.environ.get(place, "") if kind == "env" else Path(place).expanduser().read_text("utf-8")
    if not address.strip().startswith(("http://", "https://")):
        raise URLError(f"{reference} holds no http:// or https:// address")
    request = urllib.request.Request(address.strip(), as_line(content), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=CHANNEL_SECONDS):
        pass


def pipe(command: str, content: Mapping[str, object]) -> None:
    """Run a command with the text on its standard input."""
    text = f"{content['text']}\n"
    subprocess.run(
        shlex.split(command), input=text, text=True, timeout=CHANNEL_SECONDS, check=True, capture_output=True
    )
