"""Every kind of image becomes RGB bytes of one size; a broken one is named."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankrise.lab.data._images import decode

GRADIENT = np.linspace(0, 255, 40 * 60, dtype=np.uint8).reshape(40, 60)


def save(path, mode, **options):
    Image.fromarray(GRADIENT).convert("RGB").convert(mode).save(path, **options)
    return path


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *((mode, "a.png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *((mode, "a.jpg") for mode in ("L", "RGB", "CMYK")),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, mode, name):
    image = decode(save(tmp_path / name, mode), 20)
    assert (image.shape, image.dtype) == ((3, 20, 20), torch.uint8)
    if mode != "1":
        grey = decode(save(tmp_path / "grey.png", "L"), 20)
        assert float((image.float() - grey.float()).abs().mean()) < 12  # CMYK and palettes are coarse


def test_palette_with_transparency(tmp_path):
    image = Image.fromarray(GRADIENT).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert decode(tmp_path / "a.png", 10).shape == (3, 10, 10)


def test_middle_is_kept_and_nothing_resized_when_it_fits(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (20, 34, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    assert np.array_equal(decode(tmp_path / "a.png", 20).permute(1, 2, 0).numpy(), array[:, 7:27])


def test_large_jpeg_is_close_to_the_exact_resize(tmp_path):
    array = np.kron(np.random.default_rng(0).integers(0, 256, (8, 8, 3)), np.ones((64, 64, 1))).astype(np.uint8)
    Image.fromarray(array).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(array).save(tmp_path / "a.png")
    difference = decode(tmp_path / "a.jpg", 64).float() - decode(tmp_path / "a.png", 64).float()
    assert float(difference.abs().mean()) < 6


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_truncated_image_is_named(tmp_path, name, kept):
    path = save(tmp_path / name, "RGB")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=rf"{name} must be a JPEG or PNG image; it is broken \(.*Get it again"):
        decode(path, 16)


def test_other_formats_are_refused_whatever_their_name(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(GRADIENT).save(path, format="GIF")
    with pytest.raises(ValueError, match=r"a.png must be a JPEG or PNG image"):
        decode(path, 16)


def test_huge_image_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"a.png must be a JPEG or PNG image; it is broken \(Image size"):
        decode(save(tmp_path / "a.png", "RGB"), 16)


@given(st.integers(0, 400), st.integers(0, 255))
def test_flipped_bytes_give_an_image_or_its_name(tmp_path_factory, position, value):
    buffer = io.BytesIO()
    Image.fromarray(GRADIENT).convert("RGB").save(buffer, format="JPEG")
    content = bytearray(buffer.getvalue())
    content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "flipped.jpg"
    path.write_bytes(content)
    try:
        assert decode(path, 16).shape == (3, 16, 16)
    except ValueError as error:
        message = str(error)
        assert "flipped.jpg must be" in message
