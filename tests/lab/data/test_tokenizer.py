"""Bytes are UTF-8's; GPT-2's encoding in pieces is that of the whole."""

import builtins
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankrise.lab.data import _tokenizer
from rankrise.lab.data._tokenizer import BPETokenizer, ByteTokenizer


def write_bpe(folder):
    """An encoding in GPT-2's format: all bytes, and a few merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    folder.mkdir(parents=True, exist_ok=True)
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("Ġ", "Ċ"), ("Ċ", "Ċ"), ("i", "n")]
    vocab = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return folder


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return BPETokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


@given(st.text(alphabet="aé漢😀\n\0 "))
def test_bytes_are_those_of_utf8(text):
    tokens = ByteTokenizer().encode(text)
    assert bytes(tokens[:-1].tolist()) == text.encode()
    assert tokens[-1] == 256


spaced = st.text(alphabet="the in'\n\t  é1=", max_size=80)


@given(spaced)
@example("the \n the \n \n = the in =  \n\n  the")
@example("   the   ")
def test_pieces_are_encoded_as_the_whole(bpe, text):
    whole = bpe._tokenizer.encode(text).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tokenizer, "_CHUNK", 3)
        patch.setattr(_tokenizer, "_GROUP", 2)
        assert bpe.encode(text).tolist() == whole


def test_vocabulary_is_counted_and_text_comes_back(bpe):
    assert bpe.vocab_size == 263
    tokens = bpe.encode("the thin\n\nthe")
    assert len(tokens) < 12
    assert bpe.encode("").tolist() == []


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ("{", r"vocab.json must map tokens to integers;"),
        ("[1]", r"vocab.json must map tokens to integers;"),
        ('{"a": "b", "c": 1}', r"vocab.json must map tokens to integers;"),
        ('{"a": 0, "b": 2}', r"vocab.json must number its tokens 0, 1, … without a gap"),
        ("{}", "must number its tokens"),
        ('{"a": 0, "b": 1}', r"merges.txt must be the merges that go with .*vocab.json"),
    ],
)
def test_damaged_files_are_named(tmp_path, vocab, message):
    write_bpe(tmp_path)
    (tmp_path / "vocab.json").write_text(vocab)
    with pytest.raises(ValueError, match=message):
        BPETokenizer(tmp_path)


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "tokenizers":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"pip install rankrise\[hf\]; or ask for tokenizer='bytes'"):
        BPETokenizer(tmp_path)
