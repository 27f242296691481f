"""Figures as files: what the files already show is not drawn again, and nothing else is ever taken for it."""

import dataclasses
import os

import pytest

from rankrise.view import Axis, FigureData, Panel, Trace, _saved, save_figure

FIGURE = FigureData("a", "t", "", (Panel("", Axis("x"), Axis("y"), (Trace((0.0, 1.0), (0.0, 1.0), "b"),)),), 1, 1, ())


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The names of the figures that are drawn from now on, by a user with an empty cache."""
    names, draw_files = [], _saved.draw_files

    def counted(figure, *targets):
        names.append(figure.title)
        return draw_files(figure, *targets)

    monkeypatch.setattr(_saved, "draw_files", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return names


def test_a_figure_is_drawn_once(drawn, tmp_path):
    first = [path.read_bytes() for path in save_figure(FIGURE, tmp_path)]
    paths = save_figure(FIGURE, tmp_path)
    assert [path.read_bytes() for path in paths] == first
    assert drawn == ["t"]
    assert [path.name for path in paths] == ["a.svg", "a.png", "a.csv"]


def test_another_figure_of_the_same_name_is_drawn(drawn, tmp_path):
    other = dataclasses.replace(FIGURE, title="u")
    for figure in (FIGURE, other, other, FIGURE):
        save_figure(figure, tmp_path)
    assert drawn == ["t", "u", "t"]


def test_another_version_of_the_renderer_draws_again(drawn, tmp_path, monkeypatch):
    save_figure(FIGURE, tmp_path)
    monkeypatch.setattr(_saved, "_renderer", lambda: "0" * 64)
    save_figure(FIGURE, tmp_path)
    assert drawn == ["t", "t"]


def spoil(path, how):
    whole = path.read_bytes()
    path.unlink()
    if how == "cut off":
        path.write_bytes(whole[:-1])
    elif how == "other bytes":
        path.write_bytes(whole + b"<!-- -->")
    elif how == "a link":  # even to the right bytes, which its owner can change after the check
        path.with_name("elsewhere").write_bytes(whole)
        path.symlink_to(path.with_name("elsewhere"))
    elif how == "a pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("how", ["missing", "cut off", "other bytes", "a link", "a pipe"])
@pytest.mark.parametrize("kind", [0, 1], ids=["svg", "png"])
def test_a_picture_that_was_changed_is_drawn_again(kind, how, drawn, tmp_path):
    paths = save_figure(FIGURE, tmp_path)
    whole = paths[kind].read_bytes()
    spoil(paths[kind], how)
    save_figure(FIGURE, tmp_path)
    assert drawn == ["t", "t"]
    assert paths[kind].read_bytes() == whole
    assert not paths[kind].is_symlink()


@pytest.mark.parametrize("note", [b"", b"\xff\xfe", b"0" * 64], ids=["empty", "binary", "another digest"])
def test_a_damaged_note_draws_again(note, drawn, tmp_path):
    svg, _, _ = save_figure(FIGURE, tmp_path)
    _saved._note_of(svg).write_bytes(note)
    save_figure(FIGURE, tmp_path)
    save_figure(FIGURE, tmp_path)
    assert drawn == ["t", "t"]


def test_a_folder_of_somebody_else_is_drawn_again(drawn, tmp_path, monkeypatch):
    """The folder holds nothing that could vouch for its pictures: the notes of its sender are not in it."""
    save_figure(FIGURE, tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["a.csv", "a.png", "a.svg"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    save_figure(FIGURE, tmp_path / "report")
    assert drawn == ["t", "t"]


def test_without_a_cache_folder_figures_are_drawn_every_time(drawn, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert all(path.is_file() for path in save_figure(FIGURE, tmp_path))
    assert drawn == ["t", "t"]
