"""The table of a run that is being written: a plain Arrow IPC stream of record batches (blocks) with checksums.

Any Arrow reader can read the file while it grows. A block is in the kernel's hands when `append` returns, so a killed
process loses none of the blocks that were appended. The reader ignores a block that was cut short. A block is written
in two halves, so an interrupt may leave only the first half, followed by whole blocks; the reader goes on with those.
"""

import contextlib
import errno
import io
import os
import struct
import weakref
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.store._atomic import replacing_in
from rankrise.store._failpoints import failpoint
from rankrise.store._table import schema
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show

if TYPE_CHECKING:
    import pyarrow as pa

_CHECKSUM = b"crc32"
_MARK = b"\xff\xff\xff\xff"  # every message of an Arrow stream begins with this mark
_BYTES_PER_ROW = 128  # a stream may have this many bytes for each allowed row; full blocks have about 50
_MOST_CHUNKS, _MOST_LOOSE = 16, 10_000  # most chunks and rows that a tail keeps unpacked
_MOST_TRIES = 64  # how often the reader looks for a whole block after a torn one


class StreamWriter:
    """Makes a new stream file with the given rows, then appends to it."""

    def __init__(self, folder: UntrustedFolder, name: str, table: "pa.Table | None" = None) -> None:
        import pyarrow as pa

        self._folder = folder
        self._buffer = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._buffer, schema())
        empty = pa.RecordBatch.from_pylist([], schema=schema())
        start = self._message(empty, is_first=True)
        for block in [] if table is None else table.to_batches():
            start += self._message(block)
        with replacing_in(folder, name, "stream") as temporary:
            temporary.file.write(start)
            temporary.file.flush()
            self._descriptor = os.dup(temporary.file.fileno())  # the file keeps this descriptor when it is renamed
            self._close = weakref.finalize(self, os.close, self._descriptor)
        self._end = len(start)

    def append(self, block: "pa.RecordBatch") -> None:
        """Write one block; after any exception, an interrupt included, the file ends where it did before.

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
            self._end += len(message)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise

    def sync(self) -> None:
        """Ask the kernel to put what was appended on the disk.

        Raises:
            OSError: The kernel cannot write, or the file or its folder was removed or replaced.
        """
        failpoint("block.sync")
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the run directory was removed")
        self._folder.check_in_place()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; the stream stays as it is. A second call does nothing."""
        self._close()
        self._descriptor = -1

    def _message(self, block: "pa.RecordBatch", *, is_first: bool = False) -> bytes:
        """Return the bytes of a block; the first message has the schema of the stream before it."""
        if not is_first and self._buffer.tell():  # an interrupt came between the write and the reset below
            self._buffer.seek(0)
            self._buffer.truncate()
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
    num_unread_bytes: int  # bytes after the last good block: a block being written, cut short, or damaged
    num_torn_blocks: int = 0  # blocks that were cut in the middle and are followed by whole ones


def read_stream(folder: UntrustedFolder, name: str, *, most_rows: int | None = None) -> StreamContents:
    """Read the good blocks, up to the first block that is cut short at the end of the file or has a wrong checksum.

    Args:
        folder: The run.
        name: The file.
        most_rows: Refuse a stream that has more rows, that is far larger than its rows need, or that is compressed;
            with None the file is trusted.

    Raises:
        FileNotFoundError: There is no such file.
        UntrustedInputError: Not even the head of the stream can be read, its columns are not those of a run, or it is
            too large.
    """
    import pyarrow as pa

    data = folder.read(name, most_bytes=_most_bytes(most_rows))
    reader = _Reader(folder.show(name), most_rows)
    num_torn = _read_blocks(reader, data)
    table = pa.Table.from_batches(reader.blocks, schema=schema()).combine_chunks()
    return StreamContents(table, len(data) - reader.end, num_torn)


class StreamTail:
    """Reads a stream again and again; each reading takes in only the blocks that were added since the one before.

    Between two readings all rows but the last ones are kept packed, in a fifth to a quarter of the memory of a table.

    Args:
        folder: The run.
        name: The file.
        most_rows: As for `read_stream`.
    """

    def __init__(self, folder: UntrustedFolder, name: str, *, most_rows: int | None = None) -> None:
        self._folder, self._name, self._most_rows = folder, name, most_rows
        self._start_over()

    def _start_over(self) -> None:
        self._file: tuple[int, int] | None = None  # device and inode
        self._head = b""  # the schema, which comes before the first block
        self._end = 0  # where the last good block ends
        self._packed: pa.Buffer | None = None  # the first rows
        self._loose = schema().empty_table()  # the rows after those
        self._num_rows = 0

    def read(self) -> "pa.Table":
        """Return all rows so far. A file that was cut, or replaced as resuming does, is read again from its beginning.

        Raises:
            FileNotFoundError: There is no such file.
            UntrustedInputError: As for `read_stream`.
        """
        with self._folder.open(self._name, most_bytes=_most_bytes(self._most_rows)) as file:
            status = os.fstat(file.fileno())
            if self._file != (status.st_dev, status.st_ino) or status.st_size < self._end:
                self._start_over()
                self._file = status.st_dev, status.st_ino
            file.seek(self._end)
            new = file.read(max(0, status.st_size - self._end))
        if new:
            self._add(new)
        return self._table()

    def _table(self) -> "pa.Table":
        import pyarrow as pa

        packed = [] if self._packed is None else [pa.ipc.open_stream(self._packed).read_all()]
        return pa.concat_tables([*packed, self._loose])

    def _pack(self) -> None:
        import pyarrow as pa

        table, sink = self._table().combine_chunks(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema(), options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        self._packed, self._loose = sink.getvalue(), schema().empty_table()

    def _add(self, new: bytes) -> None:
        import pyarrow as pa

        data = self._head + new
        left = None if self._most_rows is None else self._most_rows - self._num_rows
        reader = _Reader(self._folder.show(self._name), left, goes_on=bool(self._head))
        reader.end = len(self._head)
        _read_blocks(reader, data)
        self._end += reader.end - len(self._head)
        if not self._head:
            self._head = data[: reader.head]
        if reader.blocks:
            # A copy is made, because blocks are views of the bytes of the file, half of which are heads of messages.
            new_rows = pa.Table.from_batches(reader.blocks, schema=schema()).combine_chunks()
            self._num_rows += new_rows.num_rows
            if self._loose["step"].num_chunks > _MOST_CHUNKS or self._loose.num_rows > _MOST_LOOSE:
                self._pack()  # only from the second reading on, so that a long run opens quickly
            self._loose = pa.concat_tables([self._loose, new_rows])


def _most_bytes(most_rows: int | None) -> int | None:
    return None if most_rows is None else _BYTES_PER_ROW * most_rows + 2**20


def _read_blocks(reader: "_Reader", data: bytes) -> int:
    """Read all good blocks, also those after torn ones; return the number of torn ones."""
    reader.read_from(0, data)
    num_torn, num_halves = 0, 0
    begin = reader.end
    for _ in range(_MOST_TRIES):
        begin = _next_whole(data, begin)
        if begin == len(data):
            break
        num_halves += 1
        if reader.read_from(begin, data[: reader.head] + data[begin:]):
            num_torn, num_halves, begin = num_torn + num_halves, 0, reader.end
    return num_torn


class _Reader:
    """Collects the good blocks of a stream; if the reading `goes_on` from an earlier one there may be no new block."""

    def __init__(self, where: str, most_rows: int | None, *, goes_on: bool = False) -> None:
        self.blocks: list[pa.RecordBatch] = []
        self.head = 0  # length of the schema, which comes before the first block
        self.end = 0  # where the last good block ends
        self._num_rows = 0
        self._where, self._most_rows, self._goes_on = where, most_rows, goes_on

    def read_from(self, begin: int, stream: bytes) -> bool:
        """Read blocks of a stream whose first block lies at `begin` of the file. Return whether one of them is good."""
        import pyarrow as pa

        source = pa.BufferReader(stream)
        shift = max(0, begin - self.head)
        num_before = len(self.blocks)
        try:
            reader = pa.ipc.open_stream(source)
            if not reader.schema.equals(schema()):
                raise pa.ArrowInvalid(f"its columns are {show(reader.schema.names)}")
            self.head = source.tell()
            while True:
                self._refuse_compressed(stream, source.tell())
                found = reader.read_next_batch_with_custom_metadata()
                if found.custom_metadata is None or int(found.custom_metadata[_CHECKSUM]) != _checksum(found.batch):
                    break
                self._add(found.batch)
                self.end = shift + source.tell()
        except StopIteration:
            self.end = shift + source.tell()
        except UntrustedInputError:
            raise
        except (
            pa.ArrowException,
            OSError,
            KeyError,
            ValueError,
        ) as error:  # Arrow raises any of these for a stream that was cut
            if not self.blocks and not self._goes_on:
                raise UntrustedInputError(
                    f"{self._where} must be the Arrow stream of a run; {show(error)}. Restore it, or drop the run."
                ) from error
        return len(self.blocks) > num_before

    def _add(self, block: "pa.RecordBatch") -> None:
        self._num_rows += block.num_rows
        if self._most_rows is not None and self._num_rows > self._most_rows:
            raise UntrustedInputError(
                f"{self._where} must have at most {self._most_rows} rows; it has more. "
                "Pass `most_rows`, or set RANKRISE_MOST_ROWS, to read it."
            )
        self.blocks.append(block)

    def _refuse_compressed(self, stream: bytes, at: int) -> None:
        """Refuse a compressed block before unpacking it: a run has none, and a small one could fill the memory."""
        message = None if self._most_rows is None else _parse(stream, at)
        if message is not None and message.is_compressed:
            raise ValueError("a block must not be compressed; this one is")


@dataclass(frozen=True)
class _Message:
    """What the head of an Arrow message says."""

    num_metadata_bytes: int
    num_bytes: int  # length of the whole message
    is_compressed: bool


def _parse(data: bytes, at: int) -> _Message | None:
    """Read the head of the message at a place, a flatbuffer of type `Message`; None if there is none."""
    try:
        if data[at : at + 4] != _MARK:
            return None
        (size,) = struct.unpack_from("<i", data, at + 4)
        metadata = data[at + 8 : at + 8 + size]
        if not 0 < size == len(metadata):
            return None
        (root,) = struct.unpack_from("<I", metadata, 0)
        header = _slot(metadata, root, 2)
        body = _slot(metadata, root, 3)
        (num_body_bytes,) = struct.unpack_from("<q", metadata, body) if body else (0,)
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        return _Message(size, 8 + size + num_body_bytes, bool(header and _slot(metadata, batch, 3)))
    except struct.error:
        return None


def _slot(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table lies; 0 if the field is not there."""
    virtual = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, virtual)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, virtual + 4 + 2 * number)
    return table + offset if offset else 0


def _next_whole(data: bytes, begin: int) -> int:
    """Return where the next whole block begins after the torn block at `begin`; the length of `data` if there is none.

    `append` writes a block in two halves, so a block was torn only where exactly its first half lies before the next
    one. Anything else is damage, after which nothing is trusted.
    """
    at = data.find(_MARK, begin + 1)
    while at >= 0:
        num_bytes = 2 * (at - begin)
        torn, following = _parse(data[begin:at], 0), _parse(data, at)
        if following is not None:
            if torn is not None and torn.num_bytes == num_bytes:
                return at
            if torn is None and _is_cut_head(data[begin:at], following, num_bytes):
                return at
        at = data.find(_MARK, at + 1)
    return len(data)


def _is_cut_head(torn: bytes, following: _Message, num_bytes: int) -> bool:
    """Whether a piece is the beginning of a block that was cut within its metadata."""
    if len(torn) < 8 or torn[:4] != _MARK:
        return False
    size: int = struct.unpack_from("<i", torn, 4)[0]
    return abs(size - following.num_metadata_bytes) < 64 and len(torn) < 8 + size <= num_bytes


def _checksum(block: "pa.RecordBatch") -> int:
    """Return the CRC of a block as Arrow writes it. Blocks with impossible offsets have been refused before."""
    block.validate(full=True)
    return zlib.crc32(block.serialize())
