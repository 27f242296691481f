"""Who may read the page: the token in its address, the name of the host, and nothing but GET and HEAD.

A web page of somebody else in the same browser must not read runs. Such a page does not know the token. If its owner
makes a host name lead to this machine (DNS rebinding), that name is not among the hosts that are answered.
"""

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY = frozenset({"0.0.0.0", "::", ""})


class Guard:
    """Lets only those requests pass that name the right host and whose path begins with the token.

    Args:
        app: The application that answers these requests; it sees the path after the token only.
        token: What the address must hold.
        host: The address that the server listens on.
    """

    def __init__(self, app: App, token: str, host: str) -> None:
        self._app, self._token, self._host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal:
            await _refuse(send, *refusal)
            return
        path = "/" + scope["path"].split("/", 2)[2]
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET and HEAD are answered: this page reads runs and changes nothing."
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not is_host(hosts[0], self._host):
            return 400, "The host must be the one that `rankrise serve` printed. Open that address."
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(first.encode(), self._token.encode()):
            return (
                403,
                "The address must hold the token that `rankrise serve` printed and end in a slash. Open that one.",
            )
        return None


def is_host(value: str, listening: str) -> bool:
    """Whether a `Host` header names this machine, judged by the address that the server listens on.

    >>> is_host("localhost:8321", "127.0.0.1"), is_host("evil.example", "127.0.0.1"), is_host("[::1]:80", "::1")
    (True, False, True)
    >>> is_host("192.168.0.7:8321", "0.0.0.0"), is_host("192.168.0.7:8321", "127.0.0.1")
    (True, False)
    """
    name = value.strip().lower()
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = name.partition(":")
    if port and not (port.isascii() and port.isdecimal()):
        return False
    if name == listening.lower() or name in _LOOPBACK:
        return True
    return listening in _ANY and (_is_address(name) or name == socket.gethostname().lower())


def _is_address(name: str) -> bool:
    """Whether a name is an address in numbers, which no name server can make lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return sending


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = f"{sentence}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
