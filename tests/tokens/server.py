"""An HTTP server on 127.0.0.1 that misbehaves as a test requests."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What the server has, and what it does wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Content by path, which begins with a slash."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers returned instead of content, one for each request, until there are no
    more.
    """

    answers_of_each_file: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers for the first requests to each path, whichever thread asks first."""

    cut_at: float = 1.0
    """Every connection ends after this share of the content."""

    next_pages: dict[str, str] = field(default_factory=dict)
    """Path to the next page of a list, by page path. It is sent in a Link header."""

    ranges: bool = True
    tags: bool = True
    silent: bool = False
    """Whether the server accepts connections and sends nothing."""

    commit: str = ""
    """The commit that the Hub reports for each file."""

    redirect: str = ""
    """Address to which every request is redirected."""

    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    address: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        behaviour: Behaviour = self.server.behaviour  # type: ignore[attr-defined]
        with self.server.lock:  # type: ignore[attr-defined]
            earlier = sum(path == self.path for path, _ in behaviour.requests)
            behaviour.requests.append((self.path, dict(self.headers)))
            answer = behaviour.answers.pop(0) if behaviour.answers else None
            if earlier < len(behaviour.answers_of_each_file):
                answer = behaviour.answers_of_each_file[earlier]
        if behaviour.silent:
            threading.Event().wait(1.0)
            self.close_connection = True
            return
        if answer is not None:
            self._say(answer[0], answer[1], b"no")
        elif behaviour.redirect:
            self._say(302, {"Location": behaviour.redirect + self.path}, b"")
        elif self.path not in behaviour.files:
            self._say(404, {}, b"not here")
        else:
            self._send(behaviour, behaviour.files[self.path])

    def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, behaviour: Behaviour, content: bytes) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        start = 0
        wanted = self.headers.get("Range", "")
        same = self.headers.get("If-Range", tag) == tag
        if behaviour.ranges and wanted and same:
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            if start >= len(content):
                self._say(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if behaviour.tags:
            self.send_header("ETag", tag)
        if next_page := behaviour.next_pages.get(self.path):
            self.send_header("Link", f'<{behaviour.address}{next_page}>; rel="next"')
        if behaviour.commit:
            self.send_header("X-Repo-Commit", behaviour.commit)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = content[start:]
        if behaviour.cut_at < 1:
            self.wfile.write(
                body[: max(1, int(len(body) * behaviour.cut_at))] if len(body) > 10 else body
            )
            self.close_connection = True
        else:
            self.wfile.write(body)


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Behaviour]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.behaviour = behaviour  # type: ignore[attr-defined]
    server.lock = threading.Lock()  # type: ignore[attr-defined]
    behaviour.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def hub_tree(files: dict[str, bytes]) -> bytes:
    """Return what the Hub's tree endpoint returns for these files."""
    entries = [{"type": "directory", "path": "train", "size": 0, "oid": "0"}]
    for path, content in files.items():
        entry = {"type": "file", "path": path, "size": len(content), "oid": "git-sum"}
        entry["lfs"] = {
            "oid": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
        entries.append(entry)
    return json.dumps(entries).encode()
