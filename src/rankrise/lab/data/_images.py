"""One image file as bytes (3, S, S): decoded, made RGB, cut to its central square, resized."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_FORMATS = ("JPEG", "PNG")  # by content: ImageNet has a PNG called .JPEG


def decode(path: Path, size: int) -> Tensor:
    """The image in `path` as uint8, (3, size, size).

    The shorter side becomes `size`, the longer is cut evenly at both ends; bilinear with anti-aliasing. JPEGs much
    larger than needed are decoded at a fraction of their size. Greyscale, palette, CMYK and transparent images become
    RGB.

    Raises:
        ValueError: It cannot be decoded; names the file.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            image.draft(None, (size, size))
            width, height = image.size
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            pixels = _rgb(image).resize(
                (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
            )
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{path} must be a JPEG or PNG image; it is broken ({error}). Get it again, or remove it."
        ) from error
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # a palette may be transparent: its colours come first, then the transparency goes
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
