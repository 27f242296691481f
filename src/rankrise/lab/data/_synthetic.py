"""Images and text made of integers: the same bytes on every machine, with something to learn in them.

Images: each class has a template of 8 × 8 squares; an image is its template, half as strong, plus uniform noise.
Text: a Markov chain; after every token one of four others, with odds 4 : 2 : 1 : 1, so that no model of it has a loss
below 1.75 bits = 1.213 nats per token.
"""

import torch
from torch import Tensor

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._memory import Images, Tokens
from rankrise.lab.data._mix import Purpose, below, bits, key
from rankrise.lab.data._normalise import CENTRED
from rankrise.lab.data._subset import random_labels

_CELLS = 8  # squares along a side of a template
_NOISE = 96  # amplitude, of 255
_CHUNK = 500  # images drawn at once: 8 bytes a pixel while they are


def synthetic_images(config: DataConfig) -> Images:
    """Classes in turn: 10 of them, 2,000 + 400 images of 32 × 32 unless told otherwise."""
    num_classes = config.num_classes or 10
    size = config.image_size or 32
    train = _draw_images(config.num_train or 2000, num_classes, size, config.seed, Purpose.NOISE)
    test = _draw_images(config.num_test or 400, num_classes, size, config.seed, Purpose.TEST)
    if config.random_labels:
        train = train[0], random_labels(len(train[1]), num_classes, seed=config.seed)
    return Images(train, test, num_classes=num_classes, normalisation=CENTRED, augment=config.augment)


def _draw_images(num: int, num_classes: int, size: int, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor]:
    labels = torch.arange(num) % num_classes
    shape = (num_classes, 3, _CELLS, _CELLS)
    cells = bits(key(seed, Purpose.TEMPLATES), torch.arange(num_classes * 3 * _CELLS**2)).view(shape)
    line = torch.arange(size) * _CELLS // size
    templates = (64 + below(cells, 128)).to(torch.int16)[:, :, line][:, :, :, line]
    images = torch.empty(num, 3, size, size, dtype=torch.uint8)
    pixels = images[0].numel()
    for begin in range(0, num, _CHUNK):
        part = images[begin : begin + _CHUNK]
        place = torch.arange(begin * pixels, begin * pixels + part.numel()).view(part.shape)
        noise = (below(bits(key(seed, purpose), place), 2 * _NOISE + 1) - _NOISE).to(torch.int16)
        part.copy_((templates[labels[begin : begin + _CHUNK]] + noise).clamp_(0, 255))
    return images, labels


def synthetic_text(config: DataConfig) -> Tokens:
    """A vocabulary of 64; 512 + 64 blocks of 64 tokens unless told otherwise."""
    vocab_size = config.num_classes or 64
    context = config.context or 64
    train = _walk((config.num_train or 512) * context + 1, vocab_size, config.seed, Purpose.WALK)
    test = _walk((config.num_test or 64) * context + 1, vocab_size, config.seed, Purpose.TEST)
    return Tokens(train, test, context=context, vocab_size=vocab_size)


def _walk(length: int, vocab_size: int, seed: int, purpose: Purpose) -> Tensor:
    """Tokens of the chain, one after another; the chain is the seed's, the walk through it the purpose's."""
    chain = bits(key(seed, Purpose.CHAIN), torch.arange(vocab_size**2)).view(vocab_size, vocab_size)
    successors = chain.argsort(dim=1)[:, :4].tolist()
    turn = (0, 0, 0, 0, 1, 1, 2, 3) if vocab_size >= 4 else (0, 0, 0, 0, 1, 1, 1, 1)
    tokens = [0]
    for die in below(bits(key(seed, purpose), torch.arange(length - 1)), 8).tolist():
        tokens.append(successors[tokens[-1]][turn[die]])
    return torch.tensor(tokens, dtype=torch.int32)
