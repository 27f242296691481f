"""What all open pages share: one list, one reader for each run, and a record of the changes that each page must get."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rankrise.runs import RunData
from rankrise.store import RunFollower
from rankrise.view.live._catalogue import Catalogue, Listed
from rankrise.view.live._snapshot import summary
from rankrise.view.live._watch import Watched

_POLL = 0.4  # seconds between two looks at the runs that pages show
_LIST_POLL = 1.0  # seconds between two looks at the folder, while a page shows the list
_SHARE = 0.2  # of a core that looking at the folder may take
_KEPT = 30.0  # seconds that a run stays in memory after the last page has left it
_MOST_IDLE = 16  # most runs that stay in memory without a page
_LARGEST = 2**26  # most bytes of a table that is summarised in the list before anybody opens the run
LIST = ""  # the target of a page that shows the list

_Found = TypeVar("_Found")


@dataclass(eq=False)
class Page:
    """One event stream.

    Attributes:
        targets: The ids of the runs that the page shows, or `LIST`.
        waiting: What has changed since the page was told.
    """

    targets: tuple[str, ...]
    waiting: set[str]
    version: int = -1  # version of the list that the page has
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, target: str) -> None:
        """Say that something has changed."""
        self.waiting.add(target)
        self._event.set()

    async def changed(self, seconds: float) -> set[str]:
        """Return what has changed as soon as something has, or nothing after so many seconds."""
        if not self.waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()
        found, self.waiting = self.waiting, set()
        return found


@dataclass(frozen=True)
class _Row:
    """A row of the list."""

    entry: Listed | None  # None if the run is gone
    summary: dict[str, Any] = field(default_factory=dict)
    of: Listed | None = None  # the entry that the summary belongs to
    version: int = 0  # version of the list in which the row changed last
    free_at: float = 0.0  # time from which the run may be summarised again

    @property
    def changed(self) -> float:
        return self.entry.changed if self.entry else 0.0

    @property
    def is_summarised(self) -> bool:
        return self.entry is None or self.entry.state == "damaged" or self.entry is self.of


class Hub:
    """Reads the runs of one folder for all pages.

    Args:
        root: The folder that is served.
    """

    def __init__(self, root: Path) -> None:
        self.catalogue = Catalogue(root)
        self.is_closing = False
        self._pages: set[Page] = set()
        self._watched: dict[str, Watched] = {}
        self._rows: dict[str, _Row] = {}
        self._version = 0
        self._listed_at = -float("inf")
        self._list_cost = 0.0

    @contextlib.contextmanager
    def page(self, targets: tuple[str, ...]) -> Iterator[Page]:
        """Register an event stream that looks at runs, or at the list, as long as the context lasts."""
        page = Page(targets, set(targets))
        watched = [self.watched(target) for target in targets if target != LIST]
        self._pages.add(page)
        for run in watched:
            run.num_pages += 1
        try:
            yield page
        finally:
            self._pages.discard(page)
            for run in watched:
                run.num_pages -= 1
                run.idle_since = time.monotonic()

    def watched(self, run_id: str) -> Watched:
        """Return the reader of a run, which is made if there is none yet.

        Raises:
            LookupError: No run of the list has this id.
        """
        if run_id not in self._watched:
            entry = self.catalogue.find(run_id)
            if entry is None:
                raise LookupError("The run must be in the folder that is served; it is not.")
            self._watched[run_id] = Watched(run_id, entry.path, self.catalogue)
        return self._watched[run_id]

    async def refresh_list(self) -> None:
        """Look at the folder again, unless it was looked at just now."""
        if time.monotonic() - self._listed_at < max(_LIST_POLL, self._list_cost / _SHARE):
            return
        self._listed_at = time.monotonic()
        changes, self._list_cost = await asyncio.to_thread(_timed, self.catalogue.refresh)
        self._listed_at = time.monotonic()
        if changes.changed or changes.gone:
            self._version += 1
            for entry in changes.changed:
                before = self._rows.get(entry.id)
                self._rows[entry.id] = replace(before or _Row(entry), entry=entry, version=self._version)
            for run_id in changes.gone:
                self._rows[run_id] = replace(self._rows[run_id], entry=None, version=self._version)
            self._tell(LIST)

    def list_json(self, page: Page | None = None) -> bytes:
        """Return the list as JSON; for a page that has an earlier version, only the rows that are new."""
        since = -1 if page is None else page.version
        new = {run_id: row for run_id, row in self._rows.items() if row.version > since}
        if page is not None:
            page.version = self._version
        record = {
            "runs": [{**row.entry.to_json(), **row.summary} for row in new.values() if row.entry],
            "gone": [run_id for run_id, row in new.items() if not row.entry],
        }
        return json.dumps(record, allow_nan=False, separators=(",", ":")).encode()

    async def work(self) -> None:
        """Follow the runs and the folder until cancelled."""
        await asyncio.gather(self._follow(), self._find_stages(), self._follow_list(), self._summarise())

    def close(self) -> None:
        """End all event streams."""
        self.is_closing = True
        for page in self._pages:
            for target in page.targets:
                page.tell(target)

    async def _follow(self) -> None:
        while True:
            await self._each(Watched.look)
            self._drop_idle()
            await asyncio.sleep(_POLL)

    async def _find_stages(self) -> None:
        while True:
            await self._each(Watched.find_stages)
            await asyncio.sleep(_POLL)

    async def _each(self, look: Callable[[Watched], bool]) -> None:
        for run in list(self._watched.values()):
            if run.num_pages and await asyncio.to_thread(look, run):
                self._tell(run.run_id)

    async def _follow_list(self) -> None:
        while True:
            if any(LIST in page.targets for page in self._pages):
                await self.refresh_list()
            await asyncio.sleep(_LIST_POLL / 2)

    async def _summarise(self) -> None:
        """Summarise every run once for the list, and a run that changes again, as long as a page shows the list."""
        while True:
            for row in sorted(self._rows.values(), key=lambda row: -row.changed):
                if not any(LIST in page.targets for page in self._pages):
                    break
                begin = time.monotonic()
                if row.entry is None or row.is_summarised or begin < row.free_at:
                    continue
                found, cost = await asyncio.to_thread(_timed, functools.partial(self._summary, row.entry))
                self._version += 1
                now = self._rows[row.entry.id]
                self._rows[row.entry.id] = replace(
                    now, summary=found, of=row.entry, version=self._version, free_at=begin + max(5.0, 50 * cost)
                )
                self._tell(LIST)
                await asyncio.sleep(cost)
            await asyncio.sleep(_LIST_POLL / 2)

    def _summary(self, entry: Listed) -> dict[str, Any]:
        try:
            follower = RunFollower(self.catalogue.folder(entry.path))
            try:
                if max(size for _, size, _ in follower.stamp()) > _LARGEST:
                    return {}
                return summary(RunData.of_followed(self.catalogue.root / entry.path, follower.read()))
            finally:
                follower.close()
        except Exception:  # a run may hold anything, and the others must be listed
            return {}

    def _tell(self, target: str) -> None:
        for page in self._pages:
            if target in page.targets:
                page.tell(target)

    def _drop_idle(self) -> None:
        idle = sorted((run for run in self._watched.values() if not run.num_pages), key=lambda run: run.idle_since)
        old = [run for run in idle if time.monotonic() - run.idle_since > _KEPT]
        for run in {id(run): run for run in [*idle[:-_MOST_IDLE], *old]}.values():
            del self._watched[run.run_id]
            run.close()


def _timed(work: Callable[[], _Found]) -> tuple[_Found, float]:
    """What a function returns, and the CPU time that it took: waiting for a busy machine costs nobody anything."""
    begin = time.thread_time()
    return work(), time.thread_time() - begin
