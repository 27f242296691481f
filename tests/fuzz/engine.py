"""Changes files of every format for a given time, and reports what no reader may do: `python -m tests.fuzz.engine`.

Each format runs in a child process of its own. Where atheris is installed, libFuzzer keeps the files that reach new
lines of rankrise and changes those again; elsewhere the valid file is changed anew each time. A finding is an exception
that is not a documented refusal, a file that took more than 10 s of the processor, or a process that grew beyond 500
MB; the file is saved, and the search goes on. A process that crashes or hangs ends the search in its format; its last
file is saved as `last`.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.limits import CPU_SECONDS, MOST_BYTES, limit_memory, peak_bytes

try:
    import atheris
except ImportError:  # there are builds for Linux only
    atheris = None
    from tests.fuzz.formats import FORMATS, Reader
else:
    with atheris.instrument_imports(include=["rankrise"]):
        from tests.fuzz.formats import FORMATS, Reader

_HANG_SECONDS = 60
_LEAST_CASES = 60  # so many files are read even if they take longer than the given time
_LONGEST = 2**16


class Search:
    """Reads files of one format and counts what came of it."""

    def __init__(self, form, folder, out):
        self.counts = {"cases": 0, "read": 0, "refused": 0, "findings": 0, "slowest": 0.0, "peak_mb": 0}
        self._out = out
        self._form = form
        self._seen = set()
        self._reader = Reader(form, folder)
        assert self._reader(form.valid()), f"a valid file of {form.name} must be read"

    def read(self, data):
        """Give one file to the readers."""
        (self._out / "last").write_bytes(data)
        begun = time.process_time()
        try:
            self.counts["read" if self._reader(data) else "refused"] += 1
        except Exception as error:
            self._save(data, _place(error), traceback.format_exc())
        seconds = time.process_time() - begun
        self.counts["cases"] += 1
        self.counts["slowest"] = max(self.counts["slowest"], round(seconds, 3))
        self.counts["peak_mb"] = peak_bytes() // 2**20
        if seconds > CPU_SECONDS:
            self._save(data, "slow", f"{seconds} s of the processor")
        if peak_bytes() > MOST_BYTES:
            self._save(data, "large", f"{peak_bytes()} bytes")
        if self.counts["cases"] % 50 == 1:
            self.report()

    def is_over(self, end):
        """Whether this process has used its time of the processor and has read the least number of files."""
        return time.process_time() > end and self.counts["cases"] >= _LEAST_CASES

    def report(self):
        """Write the counts where the parent finds them, also after a crash."""
        (self._out / "counts.json").write_text(json.dumps(self.counts))

    def _save(self, data, place, reason):
        if place not in self._seen:
            self._seen.add(place)
            self.counts["findings"] += 1
            name = hashlib.sha256(data).hexdigest()[:12]
            (self._out / f"{name}.bin").write_bytes(data)
            (self._out / f"{name}.txt").write_text(reason)
            self.report()


def _place(error):
    """Which exception was raised where first: the same place is one finding."""
    while error.__context__ is not None:
        error = error.__context__
    return type(error), *traceback.extract_tb(error.__traceback__)[-1][:2]


def _run(form, out, seconds, seed):
    """Search in this process, which ends here."""
    limit_memory()
    os.fsync = os.fstat  # no power fails here, and the disk is slow
    with tempfile.TemporaryDirectory() as folder:
        search = Search(form, Path(folder), out)
        valid, end = form.valid(), time.process_time() + seconds
        search.read(valid)
        search.read(b"")  # so that the counts hold a damaged file for certain, whatever the search makes
        if atheris is None:
            generator = random.Random(seed)
            while not search.is_over(end):
                search.read(form.mutate(valid, generator, valid))
        else:
            _fuzz(search, form, valid, out, end, seed)
        search.report()


def _fuzz(search, form, valid, out, end, seed):
    """libFuzzer leaves the process when it is done."""
    (out / "corpus").mkdir(exist_ok=True)
    (out / "corpus" / "valid").write_bytes(valid)

    def mutate(data, most, seed):
        generator = random.Random(seed)
        changed = atheris.Mutate(data, most) if generator.random() < 0.2 else form.mutate(data, generator, valid)
        return changed[:most]

    def read(data):
        if search.is_over(end):
            search.report()
            os._exit(0)
        search.read(data)

    options = (
        f"-max_len={_LONGEST}",
        "-len_control=0",
        f"-seed={seed + 1}",
        f"-timeout={_HANG_SECONDS}",
        "-verbosity=0",
    )
    atheris.Setup(["fuzz", *options, f"-artifact_prefix={out}/", "-rss_limit_mb=0", str(out / "corpus")], read,
                  custom_mutator=mutate)  # fmt: skip
    atheris.Fuzz()


def search(form, out, *, seconds, seed):
    """Search in a child process.

    Returns:
        Counts of cases, and in `ended` how the child ended: 0, or minus the signal that killed it.
    """
    out.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with (out / "log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            _run(form, out, seconds, seed)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + 10 * seconds + 2 * _HANG_SECONDS
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    counts = json.loads((out / "counts.json").read_text()) if (out / "counts.json").exists() else {}
    return {**counts, "ended": os.waitstatus_to_exitcode(found[1])}


def main():
    """Search in the formats one after another; print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for findings")
    parser.add_argument("--seconds", type=float, default=15, help="of the processor, for each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("formats", nargs="*", choices=[[], *FORMATS], metavar="format")
    given = parser.parse_args()
    for name in given.formats or FORMATS:
        found = search(FORMATS[name], given.out / name, seconds=given.seconds, seed=given.seed)
        print(json.dumps({"format": name, **found}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
