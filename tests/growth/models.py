"""A byte GPT, small enough to train in a test, with text to train it on."""

import argparse
from pathlib import Path

import torch
from tests.checkpoints.planted import build

TEXT = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long() % 64


def batch(generator, size=8, length=32):
    """Random pieces of the text, folded to the vocabulary."""
    starts = torch.randint(len(TEXT) - length, (size,), generator=generator)
    return torch.stack([TEXT[start : start + length] for start in starts])


def loss_of(model, ids):
    """Next-token loss."""
    return model(input_ids=ids, labels=ids).loss


def byte_gpt(steps=0, seed=0):
    """Return a Llama of two layers that was trained for some steps on other bytes than the text."""
    model = build("llama", seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = (batch(generator) * 7 + 3) % 64  # the same statistics under other names
        loss_of(model, ids).backward()
        optimiser.step()
        optimiser.zero_grad()
    return model
