"""A server of the live page in a process of its own, and what it streams."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

COMMAND = [sys.executable, "-c", "from rankrise.cli import main; main()", "serve"]


@contextlib.contextmanager
def serving(folder, *options):
    """Run `rankrise serve` on a folder; give the process with its address as `url`."""
    process = subprocess.Popen(
        [*COMMAND, str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    try:
        process.url = process.stdout.readline().strip()
        assert process.url, process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(url, path, *, method="GET", headers=None):
    """Status, headers and body of one answer; the path is sent as it is, `..` included."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def events(url, path="events"):
    """Yield the events of a stream as (name, data), one after the other, until the caller stops."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", f"{parts.path}{path}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def each():
            name = ""
            for line in answer:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield name, json.loads(text.removeprefix("data: "))

        yield each()
