"""Run the live page until the user stops it."""

import contextlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from rankrise._extras import require
from rankrise.view.live._app import live_app
from rankrise.view.live._hub import Hub

PORT = 8321  # the port that is tried first


def serve(
    folder: Path, *, host: str = "127.0.0.1", port: int | None = None, started: Callable[[str], None] | None = None
) -> None:
    """Show the runs below a folder on a page, until Ctrl-C. Only files are read; no training is touched.

    Args:
        folder: The folder; it may itself be a run, and runs that begin later appear.
        host: The address to listen on. Any other than the default lets other machines send requests, which need the
            token too.
        port: The port; by default 8321, or a free one if that is taken.
        started: Called with the address of the page, which holds a token, when the page can be opened.

    Raises:
        ModuleNotFoundError: starlette or uvicorn is not installed.
        NotADirectoryError: The folder does not exist or is a file.
        OSError: The port is taken, or the address is not one of this machine.
    """
    require("The live page", "starlette", "uvicorn")
    if not folder.is_dir():
        raise NotADirectoryError(f"`folder` must be a folder that holds runs; {folder} is none.")
    listening = _listen(host, port)
    token = secrets.token_urlsafe(24)
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listening.getsockname()[1]}/{token}/"
    hub = Hub(folder)
    import uvicorn

    class Server(uvicorn.Server):
        """Ends the event streams first, because uvicorn waits for every answer to be complete."""

        def handle_exit(self, sig: int, frame: object) -> None:
            hub.close()
            super().handle_exit(sig, frame)  # type: ignore[arg-type]

    app = live_app(hub, token=token, host=host)
    settings = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=2, ws="none"
    )
    server = Server(settings)
    if started is not None:
        started(url)  # the socket listens already, so that a page that is opened now waits for its answer
    try:
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has closed everything
            server.run(sockets=[listening])
    finally:
        listening.close()


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, or on a free one if no port is asked for and the usual one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (PORT, 0) if port is None else (port,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if port is None and candidate == PORT:
                continue
            raise OSError(
                f"`--host` and `--port` must be free; {host}:{candidate or PORT} is not: {error.strerror}. "
                "Leave both out, or name others."
            ) from None
        return listening
    raise AssertionError("unreachable")
