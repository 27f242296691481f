"""Runs that pages look at: each run is read once for all pages, and only its new part is read."""

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankrise.runs import RunData, RunStage
from rankrise.store import RunFollower, show
from rankrise.view.live._catalogue import Catalogue
from rankrise.view.live._snapshot import snapshot, spectra, told_stages

_REST = 4.0  # after reading a run, times the CPU time that it took; a run that is large is read less often
_STAGE_REST = 10.0  # the same for its stages
_LEAST_STAGE_REST = 2.0  # seconds
_REMOVED = "The run was removed from the folder; what is below was read before."


@dataclass
class Watched:
    """One run that pages look at.

    Attributes:
        run_id: The id that pages have for the run.
        path: Where the run is below the folder that is served.
        num_pages: How many pages look at it now.
        idle_since: When the last page left.
    """

    run_id: str
    path: str
    catalogue: Catalogue
    num_pages: int = 0
    idle_since: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _follower: RunFollower | None = None
    _seen: object = None
    _stages: tuple[RunStage, ...] | None = None
    _stages_of: object = None  # the state of the run for which they were found
    _payload: bytes = b""
    _free_at: float = 0.0
    _stages_at: float = 0.0

    def payload(self) -> bytes:
        """Return the run as JSON; the run is read first if no page looks at it."""
        if not self._payload or not self.num_pages:
            self.look()
        return self._payload

    def look(self) -> bool:
        """Read the run if it has changed, unless it was read just now; return whether the payload is new."""
        with self._lock:
            if time.monotonic() < self._free_at:
                return False
            begin = time.thread_time()  # waiting for a disk or for a training beside costs nobody anything
            try:
                try:
                    follower = self._opened()
                    seen = (follower.stamp(), follower.state())
                except FileNotFoundError:
                    self._forget()
                    return self._say({"state": "removed", "problem": _REMOVED})
                if seen == self._seen:
                    return False
                followed = follower.read()
                self._seen = seen
                return self._say(snapshot(RunData.of_followed(self._path(), followed), followed.state, self._stages))
            except Exception as error:  # a run may hold anything, and the others must be shown
                self._forget()
                return self._say({"state": "damaged", "problem": " ".join(show(error).split())})
            finally:
                self._free_at = time.monotonic() + _REST * (time.thread_time() - begin)

    def find_stages(self) -> bool:
        """Find the stages of the run as it was read last, unless they are known; return whether the payload is new."""
        with self._lock:
            begin, seen = time.thread_time(), self._seen
            if seen in (None, self._stages_of) or time.monotonic() < self._stages_at:
                return False
            try:
                run = RunData.of_followed(self._path(), self._opened().read())
            except (OSError, ValueError):  # the next look says what became of the run
                return False
        try:
            stages = run.stages()  # this may take seconds, during which pages are answered
        except Exception:  # a run may hold anything, as above
            stages = ()
        rest = max(_LEAST_STAGE_REST, _STAGE_REST * (time.thread_time() - begin))
        with self._lock:
            self._stages_at = time.monotonic() + rest
            if self._seen is None:  # the run was lost meanwhile
                return False
            self._stages, self._stages_of = stages, seen
            return self._say({**json.loads(self._payload), "stages": told_stages(stages)})

    def spectra(self, **place: Any) -> dict[str, Any]:
        """Return the spectra of one head as JSON values.

        Raises:
            ValueError: The head has no spectra.
        """
        self.payload()
        with self._lock:
            try:
                run = RunData.of_followed(self._path(), self._opened().read())
            except OSError:
                raise ValueError("The run must be in the folder to show its spectra; it was removed.") from None
        return spectra(run, **place)

    def close(self) -> None:
        """Close the files, and forget what was read from them."""
        with self._lock:
            self._forget()

    def _path(self) -> Path:
        return self.catalogue.root / self.path

    def _opened(self) -> RunFollower:
        """Return the reader of the run that is at the path now, which may be another run than before."""
        folder = self.catalogue.folder(self.path)
        if self._follower is not None and self._follower.is_in(folder):
            folder.close()
        else:
            self._forget()
            self._follower = RunFollower(folder)
        return self._follower

    def _say(self, record: dict[str, Any]) -> bool:
        entry = self.catalogue.find(self.run_id)
        record = {"id": self.run_id, "name": self.path, "differs": entry.differs if entry else "", **record}
        payload = json.dumps(record, allow_nan=False, separators=(",", ":")).encode()
        is_new = payload != self._payload
        self._payload = payload
        return is_new

    def _forget(self) -> None:
        if self._follower is not None:
            self._follower.close()
        self._follower = self._seen = self._stages = self._stages_of = None
