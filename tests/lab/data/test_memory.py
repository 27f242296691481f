"""Blocks of a text: inputs and next tokens, one block after another."""

import torch

from rankrise.lab.data._memory import Tokens


def test_targets_are_the_next_tokens():
    text = torch.arange(22, dtype=torch.int32)
    dataset = Tokens(text, text[:9], context=4, vocab_size=30)
    assert (dataset.num_train, dataset.num_test) == (5, 2)
    inputs, targets = next(dataset.test_batches(batch_size=2))
    assert inputs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert targets.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    seen = [row for batch in dataset.train_batches(batch_size=1, seed=0, epoch=0) for row in batch.inputs.tolist()]
    assert sorted(seen) == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def test_block_needs_a_next_token():
    assert Tokens(torch.arange(8), torch.arange(9), context=4, vocab_size=9).num_train == 1
    assert Tokens(torch.arange(8), torch.arange(9), context=4, vocab_size=9).num_test == 2
