"""The table while the run goes on: a plain Arrow IPC stream, a record batch (a block) at a time, each with a checksum.

Any Arrow reader can read the file while it grows. A block is in the kernel's hands when `append` returns, so a killed
process loses none of those; a block that was cut short is ignored by the reader.
"""

import contextlib
import errno
import io
import os
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.store._atomic import replacing
from rankrise.store._failpoints import failpoint
from rankrise.store._table import schema

if TYPE_CHECKING:
    import pyarrow as pa

_CHECKSUM = b"crc32"


class StreamWriter:
    """Makes the stream file anew with the rows given, then appends to it."""

    def __init__(self, path: Path, table: "pa.Table | None" = None) -> None:
        import pyarrow as pa

        self._buffer = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._buffer, schema())
        empty = pa.RecordBatch.from_pylist([], schema=schema())
        start = b"".join(self._message(block) for block in (empty, *([] if table is None else table.to_batches())))
        with replacing(path, "stream") as temporary:
            temporary.write_bytes(start)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._end = len(start)

    def append(self, block: "pa.RecordBatch") -> None:
        """Write one block; after an error the file ends where it did before.

        Raises:
            OSError: The disk is full, read-only, or gone.
        """
        message = self._message(block)
        try:
            failpoint("block.write")
            half = len(message) // 2
            self._write(message[:half])
            failpoint("block.half")
            self._write(message[half:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(message)

    def sync(self) -> None:
        """Ask the kernel to put what was appended on the disk.

        Raises:
            OSError: It cannot, or the file was removed.
        """
        failpoint("block.sync")
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the run directory was removed")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; the stream stays as it is. A second call does nothing."""
        self._close()
        self._descriptor = -1

    def _message(self, block: "pa.RecordBatch") -> bytes:
        self._writer.write_batch(block, custom_metadata={_CHECKSUM: str(_checksum(block))})
        message = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return message

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


@dataclass(frozen=True)
class StreamContents:
    """What could be read of a stream."""

    table: "pa.Table"
    num_unread_bytes: int  # after the last good block: a block being written, cut short, or damaged


def read_stream(path: Path) -> StreamContents:
    """Read every good block up to the first that is not: cut short, or of another checksum.

    Raises:
        ValueError: Not even the head of the stream can be read, or its columns are not those of a run.
    """
    import pyarrow as pa

    data = path.read_bytes()
    source = pa.BufferReader(data)
    blocks: list[pa.RecordBatch] = []
    end = 0
    try:
        reader = pa.ipc.open_stream(source)
        if not reader.schema.equals(schema()):
            raise pa.ArrowInvalid(f"its columns are {reader.schema.names}")
        while True:
            found = reader.read_next_batch_with_custom_metadata()
            if found.custom_metadata is None or int(found.custom_metadata[_CHECKSUM]) != _checksum(found.batch):
                break
            blocks.append(found.batch)
            end = source.tell()
    except StopIteration:
        end = source.tell()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:  # Arrow says "cut short" by several of these
        if not blocks:
            raise ValueError(
                f"{path} must be the Arrow stream of a run; {error}. Restore it, or drop the run."
            ) from error
    return StreamContents(pa.Table.from_batches(blocks, schema=schema()).combine_chunks(), len(data) - end)


def _checksum(block: "pa.RecordBatch") -> int:
    """CRC of the block as Arrow writes it; a block whose offsets lead astray is refused before."""
    block.validate(full=True)
    return zlib.crc32(block.serialize())
