"""Changes to valid files: of bytes, and of the structure within, which gets past magic numbers and checksums.

Every function takes bytes and a `random.Random`, and returns bytes; the same generator gives the same file again.
"""

import copy
import io
import json
import struct
import warnings
import zipfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

INTEGERS = (0, 1, 2, 4, 127, 128, 255, 2**15, 2**16 - 1, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63)
NUMBERS = (0, -1, 1, 3, 10**9, -(10**9), 2**31, 2**63, 2**64, 10**400, 0.5, -1e308, float("nan"), float("inf"))
TEXTS = ("", "a\0b", "\x1b[2J", "\ud800", "../x", "/etc/passwd", "x" * 10_000, "kq", "spectrum", ".*.*a", "é" * 300)
OTHERS = (None, True, False, [], {}, [[]], {"a": {}}, [0] * 20)
VALUES = (*NUMBERS, *TEXTS, *OTHERS)
_MOST_TABLE_BYTES = 2**22


def change_bytes(data, random, valid):
    """One to four flips, truncations, length fields, copies, or a splice with a valid file."""
    data = bytearray(data)
    for _ in range(random.randint(1, 4)):
        random.choice(_CHANGES)(data, random, valid)
    return bytes(data)


def _flip(data, random, _):
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _truncate(data, random, _):
    del data[random.randrange(len(data) + 1) :]


def _put_length(data, random, _):
    """Near the head or the tail, where formats keep their sizes, or anywhere."""
    kind = random.choice(("<H", "<I", "<Q", ">I"))
    size = struct.calcsize(kind)
    if len(data) > size:
        last = len(data) - size
        at = random.choice(
            (random.randint(0, min(64, last)), last - random.randint(0, min(64, last)), random.randint(0, last))
        )
        value = random.choice((*INTEGERS, len(data), random.randint(0, 2**16))) % 2 ** (8 * size)
        data[at : at + size] = struct.pack(kind, value)


def _copy(data, random, _):
    if data:
        begin = random.randrange(len(data))
        piece = data[begin : begin + random.randint(1, 64)]
        at = random.randrange(len(data) + 1)
        data[at : at + random.choice((0, len(piece)))] = piece


def _splice(data, random, valid):
    at = random.randrange(len(data) + 1)
    data[at:] = valid[random.randrange(len(valid) + 1) :]


_CHANGES = (_flip, _flip, _truncate, _put_length, _put_length, _copy, _splice)


def change_json(data, random, valid):
    """Replace, move, rename, repeat or remove a value anywhere in a document; a key may come twice."""
    value = _parse(data)
    if not isinstance(value, dict):
        value = json.loads(valid)
    for _ in range(random.randint(1, 3)):
        value = _change_value(value, random)
    text = json.dumps(value)
    if random.random() < 0.05:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    if random.random() < 0.03:
        depth = random.choice((70, 100_000))
        text = text.replace("null", "[" * depth + "]" * depth, 1) if "null" in text else "[" * depth
    return text.encode()


def _parse(data):
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _change_value(value, random):
    places = list(_places(value))
    if not places:
        return copy.deepcopy(random.choice(VALUES))
    holder, key = random.choice(places)
    action = random.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1:
        other, name = random.choice(places)
        holder[key] = copy.deepcopy(other[name])
    elif action == 2 and isinstance(holder, dict):
        holder[random.choice((f"{key}x", *TEXTS))] = holder.pop(key)
    elif action == 3 and isinstance(holder, list):
        holder[:] = copy.deepcopy(holder * random.choice((2, 3, 50)))
    elif action == 4 and isinstance(holder, dict):
        holder[random.choice(TEXTS)] = copy.deepcopy(random.choice(VALUES))
    elif action == 5:
        holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(random.choice(VALUES))
    return value


def _places(value, depth=0):
    """Every (container, key) of a document."""
    if isinstance(value, dict | list) and depth < 50:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)


def change_safetensors(data, random, valid):
    """Another header before the same tensors, of the length that the file says."""
    header, tensors = _split(data) or _split(valid)
    text = change_json(header, random, header)
    return struct.pack("<Q", len(text)) + text + tensors[: random.choice((None, None, len(tensors) // 2))]


def change_metadata(data, random, valid):
    """Another document within the metadata of a header, as a text, or another header."""
    header, tensors = _split(data) or _split(valid)
    record = json.loads(header)
    texts = record.get("__metadata__")
    if not isinstance(texts, dict) or not texts or random.random() < 0.3:
        return change_safetensors(data, random, valid)
    name = random.choice(list(texts))
    before = texts[name].encode("utf-8", "replace") if isinstance(texts[name], str) else b""
    valid_texts = json.loads(_split(valid)[0])["__metadata__"]
    texts[name] = change_json(before, random, next(iter(valid_texts.values())).encode()).decode("utf-8", "replace")
    text = json.dumps(record).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def _split(data):
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    return (header, data[8 + length :]) if isinstance(_parse(header), dict) else None


def change_zip(data, random, valid):
    """Another content or name of one member, or one member more, with sizes and checksums as they must be."""
    members = _members(data) or _members(valid)
    name = random.choice(list(members))
    action = random.randrange(6)
    if action == 0 and len(members) > 1:
        del members[name]
    elif action == 1:
        members[random.choice((f"{name}x", "../x", "a/data.pkl", "version"))] = members.pop(name)
    elif action == 2:
        members[name] = members[random.choice(list(members))]
    elif action == 3 and name.endswith(".npy"):
        members[name] = _npy(random) + members[name][128:]
    else:
        members[name] = change_bytes(members[name], random, members[random.choice(list(members))])
    buffer = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED,) * 3 + (zipfile.ZIP_DEFLATED,))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
            if random.random() < 0.02:
                archive.writestr(member, content)
    return buffer.getvalue()


def _members(data):
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {item.filename: archive.read(item) for item in archive.infolist() if item.file_size < 2**20}
    except Exception:  # whatever `zipfile` raises for a file that was changed before
        return None


def _npy(random):
    """The header of an array that claims what it likes."""
    kind = random.choice(("<f8", "<f4", "<i8", "|O", "<c16", "|b1", "<U4", "<f2", "|V8", "nonsense", "<m8"))
    sizes = [random.choice((0, 1, 2, 3, 5, 10**4, 10**9, 2**40, -1)) for _ in range(random.randint(0, 4))]
    text = repr({"descr": kind, "fortran_order": random.random() < 0.5, "shape": tuple(sizes)})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"


def change_parquet(_, random, valid):
    """Other rows, columns and types in a file that is sound Parquet.

    The valid file is changed, because plain Arrow may end the process on a file that was changed before.
    """
    table = _change_table(pq.read_table(io.BytesIO(valid)), random)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression=random.choice(("zstd", "none", "snappy")),
        use_dictionary=random.random() < 0.5,
        row_group_size=random.choice((None, 1, 7)) if table.num_rows < 1000 else None,
    )
    return sink.getvalue()


def change_stream(_, random, valid):
    """Other rows, columns and types in a stream whose blocks have the checksums that they need.

    The valid file is changed, as by `change_parquet`.
    """
    table = _change_table(pa.ipc.open_stream(pa.BufferReader(valid)).read_all(), random)
    options = pa.ipc.IpcWriteOptions(compression=random.choice((None,) * 9 + ("zstd",)))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for block in table.to_batches(max_chunksize=random.choice((1, 5, 1000))):
            checksum = zlib.crc32(block.serialize()) if random.random() < 0.98 else random.choice(("", "x", -1))
            writer.write_batch(block, custom_metadata={"crc32": str(checksum)})
    return sink.getvalue()


def _change_table(table, random):
    for _ in range(random.randint(1, 3)):
        table = random.choice((_change_cells,) * 5 + (_change_rows, _change_rows, _change_columns))(table, random)
    return table


def _change_cells(table, random):
    """Some values of one column, of the type that the column has."""
    at = random.randrange(table.num_columns)
    field, values = table.schema.field(at), table.column(at).to_pylist()
    if not values:
        return table
    if pa.types.is_integer(field.type):
        most = 2 ** (field.type.bit_width - 1)
        new = [n for n in (-1, 0, 1, 2, 7, 10**6, 10**9, -most, most - 1) if n < most]
    elif pa.types.is_floating(field.type):
        new = [0.0, -1.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")]
    else:
        new = [text for text in TEXTS if text != "\ud800"]
    for place in random.sample(range(len(values)), min(len(values), random.choice((1, 2, 5, 10**6)))):
        values[place] = random.choice(new) if random.random() < 0.7 else random.choice(values)
    try:
        return table.set_column(at, field, pa.array(values, field.type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return table


def _change_rows(table, random):
    places = list(range(table.num_rows))
    action = random.randrange(4)
    if action == 0:
        places = sorted(random.sample(places, random.randint(0, len(places))))
    elif action == 1:
        random.shuffle(places)
    elif action == 2:
        places = [*places, *random.choices(places or [0], k=random.randint(0, 5) if places else 0)]
    else:
        most = max(1, _MOST_TABLE_BYTES // max(1, table.nbytes))  # so that the search itself stays within its memory
        places = places * min(random.choice((2, 10, 200)), most)
    return table.take(pa.array(places, pa.int64()))


def _change_columns(table, random):
    at = random.randrange(table.num_columns)
    name = table.schema.names[at]
    action = random.randrange(4)
    if action == 0 and table.num_columns > 1:
        return table.remove_column(at)
    if action == 1:
        return table.rename_columns(
            [random.choice(TEXTS[:3]) if i == at else n for i, n in enumerate(table.schema.names)]
        )
    kind = random.choice((pa.int64(), pa.float32(), pa.string(), pa.bool_(), pa.dictionary(pa.int8(), pa.string())))
    try:
        if action == 2:
            return table.set_column(at, pa.field(name, kind, nullable=False), table.column(at).cast(kind))
        return table.set_column(at, pa.field(name, kind), pa.nulls(table.num_rows, kind))
    except (pa.ArrowException, TypeError, ValueError):
        return table
