"""The stream is plain Arrow, survives being cut anywhere, and notices any flipped bit."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankrise.store import _blocks, rows
from rankrise.store._untrusted import UntrustedFolder

NUM_BLOCKS = 4


def StreamWriter(path):
    return _blocks.StreamWriter(UntrustedFolder(path.parent), path.name)


def read_stream(path):
    return _blocks.read_stream(UntrustedFolder(path.parent), path.name, most_rows=10**6)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "metrics.arrows"
    writer = StreamWriter(path)
    ends = [path.stat().st_size]
    for step in range(NUM_BLOCKS):
        writer.append(rows(step, "spectrum", [[3.0, 2.0, 1.0]], circuit="q", layers=[0]))
        ends.append(path.stat().st_size)
    writer.close()
    return path.read_bytes(), ends


def steps_of(path):
    return read_stream(path).table["step"].to_pylist()[::3]


def test_any_arrow_reader_reads_it_while_it_grows(tmp_path):
    writer = StreamWriter(tmp_path / "s")
    for step in range(3):
        writer.append(rows(step, "loss", [0.5]))
        with pa.ipc.open_stream(pa.BufferReader((tmp_path / "s").read_bytes())) as reader:
            assert reader.read_all()["step"].to_pylist() == list(range(step + 1))
    writer.close()


@given(data=st.data())
def test_torn_tail_gives_the_blocks_before_it(stream, tmp_path_factory, data):
    content, ends = stream
    length = data.draw(st.integers(ends[0], len(content)))
    path = tmp_path_factory.mktemp("torn") / "s"
    path.write_bytes(content[:length])
    whole = sum(end <= length for end in ends) - 1
    assert steps_of(path) == list(range(whole))
    assert read_stream(path).num_unread_bytes == length - ends[whole]


@given(data=st.data())
def test_flipped_bit_never_gives_a_wrong_number(stream, tmp_path_factory, data):
    content, ends = stream
    place = data.draw(st.integers(ends[0], len(content) - 1))
    flipped = bytearray(content)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flip") / "s"
    path.write_bytes(flipped)
    contents = read_stream(path)
    good = pa.ipc.open_stream(pa.BufferReader(content)).read_all()
    assert contents.table.equals(good.slice(0, contents.table.num_rows))
    before = sum(end <= place for end in ends) - 1
    assert contents.table.num_rows >= 3 * before  # padding may be flipped without harm


def test_what_is_not_a_stream_is_refused(tmp_path):
    (tmp_path / "s").write_bytes(b"not arrow at all")
    with pytest.raises(ValueError, match="must be the Arrow stream of a run"):
        read_stream(tmp_path / "s")
    other = pa.table({"a": [1]})
    with pa.OSFile(str(tmp_path / "s"), "wb") as file, pa.ipc.new_stream(file, other.schema) as writer:
        writer.write_table(other)
    with pytest.raises(ValueError, match=r"its columns are \['a'\]"):
        read_stream(tmp_path / "s")


def test_append_that_fails_leaves_the_stream_as_it_was(tmp_path, monkeypatch):
    writer = StreamWriter(tmp_path / "s")
    writer.append(rows(0, "loss", [1.0]))
    monkeypatch.setenv("RANKRISE_FAILPOINT", "block.half:full")
    with pytest.raises(OSError, match="No space left"):
        writer.append(rows(1, "loss", [2.0]))
    monkeypatch.delenv("RANKRISE_FAILPOINT")
    writer.append(rows(2, "loss", [3.0]))
    writer.close()
    contents = read_stream(tmp_path / "s")
    assert contents.table["step"].to_pylist() == [0, 2]
    assert contents.num_unread_bytes == 0


@pytest.mark.parametrize("place", ["block.write", "block.half"])
def test_interrupt_within_a_block_leaves_the_stream_as_it_was(tmp_path, monkeypatch, place):
    writer = StreamWriter(tmp_path / "s")
    writer.append(rows(0, "loss", [1.0]))

    def interrupt(name):
        if name == place:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rankrise.store._blocks.failpoint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(rows(1, "loss", [2.0]))
    writer.append(rows(2, "loss", [3.0]))
    writer.close()
    contents = read_stream(tmp_path / "s")
    assert contents.table["step"].to_pylist() == [0, 2]
    assert contents.num_unread_bytes == contents.num_torn_blocks == 0


@pytest.mark.parametrize("num_values", [1, 40, 1000])
@pytest.mark.parametrize("torn", [(0,), (1,), (1, 2), (0, 2)])
def test_torn_block_is_skipped_when_a_whole_one_follows(tmp_path, num_values, torn):
    path = tmp_path / "s"
    writer = StreamWriter(path)
    ends = [path.stat().st_size]
    for step in range(NUM_BLOCKS):
        writer.append(rows(step, "spectrum", [[1.0] * num_values], circuit="q", layers=[0]))
        ends.append(path.stat().st_size)
    writer.close()
    content = path.read_bytes()
    pieces = [content[a : a + (b - a) // 2 if i in torn else b] for i, (a, b) in enumerate(itertools.pairwise(ends))]
    path.write_bytes(content[: ends[0]] + b"".join(pieces))
    contents = read_stream(path)
    assert contents.table["step"].to_pylist()[::num_values] == [i for i in range(NUM_BLOCKS) if i not in torn]
    assert contents.num_unread_bytes == 0
    assert contents.num_torn_blocks >= 1
