"""The live page as a web application: what each address answers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise._extras import require
from rankrise.view._colours import colour_ramps, run_colours
from rankrise.view._page import asset
from rankrise.view.live._guard import Guard
from rankrise.view.live._hub import LIST, Hub, Page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_ASSETS = Path(__file__).parent / "assets"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_HEARTBEAT = 15.0  # seconds without news after which a stream says that it is still there
_LEAST_PAUSE = 0.25  # least seconds between two messages of one stream
_MOST_RUNS = 12  # most runs that one page shows over each other


def live_app(hub: Hub, *, token: str, host: str = "127.0.0.1") -> Guard:
    """Make the application that shows the runs of a hub.

    | address after the token | answer |
    |---|---|
    | `/` and files of the page | the page |
    | `/runs` | the list |
    | `/run?run=ID` | one run |
    | `/spectra?run=ID&circuit=kq&layer=0&head=0` | the spectra of one head |
    | `/verdicts` | the verdicts on claims |
    | `/events` | an event for every change of the list |
    | `/events?run=ID&run=ID` | an event for every change of these runs |

    Raises:
        ModuleNotFoundError: starlette is not installed.
    """
    require("The live page", "starlette")
    return Guard(_routes(hub), token, host)


def _routes(hub: Hub) -> "Starlette":
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    files = _files()

    def as_json(content: bytes) -> Response:
        return Response(content, media_type="application/json")

    async def file(request: "Request") -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return PlainTextResponse("There is no such page.\n", 404)
        content, kind = files[name]
        return Response(content, media_type=kind)

    async def runs(request: "Request") -> Response:
        await hub.refresh_list()
        return as_json(hub.list_json())

    async def run(request: "Request") -> Response:
        (run_id,) = request.query_params.getlist("run")[:1] or [""]
        if not await _is_known(hub, run_id):
            return PlainTextResponse("There is no such run.\n", 404)
        return as_json(await asyncio.to_thread(hub.watched(run_id).payload))

    async def spectra(request: "Request") -> Response:
        query = request.query_params
        if not await _is_known(hub, query.get("run", "")):
            return PlainTextResponse("There is no such run.\n", 404)
        try:
            place = {name: int(query.get(name, "")) for name in ("layer", "head")}
            found = await asyncio.to_thread(
                hub.watched(query["run"]).spectra, circuit=query.get("circuit", ""), **place
            )
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", 404)
        return as_json(json.dumps(found).encode())

    async def verdicts(request: "Request") -> Response:
        return as_json(json.dumps(await asyncio.to_thread(hub.catalogue.verdicts)).encode())

    async def events(request: "Request") -> Response:
        wanted = tuple(dict.fromkeys(request.query_params.getlist("run")))
        if len(wanted) > _MOST_RUNS:
            return PlainTextResponse(f"At most {_MOST_RUNS} runs can be shown over each other.\n", 400)
        for run_id in wanted:
            if not await _is_known(hub, run_id):
                return PlainTextResponse("There is no such run.\n", 404)
        return StreamingResponse(_events(hub, wanted or (LIST,)), media_type="text/event-stream")

    addresses = {
        "/": file,
        "/runs": runs,
        "/run": run,
        "/spectra": spectra,
        "/verdicts": verdicts,
        "/events": events,
        "/{name}": file,
    }
    routes = [Route(path, answer, methods=["GET"]) for path, answer in addresses.items()]
    return Starlette(routes=routes, lifespan=lambda app: _working(hub))


@contextlib.asynccontextmanager
async def _working(hub: Hub) -> AsyncIterator[None]:
    task = asyncio.create_task(hub.work())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _is_known(hub: Hub, run_id: str) -> bool:
    if hub.catalogue.find(run_id) is None:
        await hub.refresh_list()
    return hub.catalogue.find(run_id) is not None


async def _events(hub: Hub, targets: tuple[str, ...]) -> AsyncIterator[bytes]:
    """Yield an event for every target, and then one whenever a target has changed."""
    with hub.page(targets) as page:
        if LIST in targets:
            await hub.refresh_list()
        while not hub.is_closing:
            changed = await page.changed(_HEARTBEAT)
            if not changed:
                yield b": nothing new\n\n"
            for target in changed:
                yield await _event(hub, page, target)
            await asyncio.sleep(_LEAST_PAUSE)


async def _event(hub: Hub, page: Page, target: str) -> bytes:
    if target == LIST:
        return b"event: list\ndata: " + hub.list_json(page) + b"\n\n"
    return b"event: run\ndata: " + await asyncio.to_thread(hub.watched(target).payload) + b"\n\n"


def _files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page by name; they are read once, so that no request can name another file."""
    found = {
        path.name: (path.read_bytes(), _KINDS[path.suffix])
        for path in sorted(_ASSETS.iterdir())
        if path.suffix in _KINDS
    }
    found["page.css"] = asset("page.css").encode(), "text/css"
    palette = {"RAMPS": colour_ramps(), "RUNS": run_colours()}
    script = "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in palette.items())
    found["palette.js"] = script.encode(), "text/javascript"
    return found
