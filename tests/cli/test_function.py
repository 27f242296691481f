"""`rankrise function` and `rankrise lora --function` as a user runs them."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.planted import planted_pair

from rankrise.cli import main


@pytest.fixture
def rankrise(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def text_of(done):
    """What went to stderr, without the frame that typer draws."""
    return " ".join(done.stderr.replace("│", " ").split())


def test_curve_ranks_and_adapter(rankrise, tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "llama", rank=4, size=0.3)
    generator = torch.Generator().manual_seed(0)
    save_file({"input_ids": torch.randint(64, (6, 8), generator=generator)}, tmp_path / "data.safetensors")
    data = ("--data", tmp_path / "data.safetensors")
    done = rankrise("function", base, tuned, *data)
    assert done.returncode == 0, done.stderr
    assert "D, random directions" in done.stdout
    assert "queries and keys" in done.stdout
    record = json.loads(rankrise("function", base, tuned, *data, "--json").stdout)
    assert record["parts"][0]["points"][-1]["distance"] < 1e-6
    adapter = rankrise("lora", base, tuned, "--function", "0.2", *data, "--out", tmp_path / "a", "--verify", "--json")
    assert adapter.returncode == 0, adapter.stderr
    assert "D = " in adapter.stderr
    advice = json.loads(adapter.stdout)
    assert advice["rule"] == "the ranks that were given"
    assert 0 < advice["logits"]["relative_error"] < 1


def test_mistakes_are_one_sentence(rankrise, tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2")
    alone = rankrise("lora", base, tuned, "--function", "0.1")
    assert alone.returncode == 2
    assert "`--function` and `--data` must be given together" in text_of(alone)
    wrong = rankrise("function", base, tuned, "--data", base / "config.json", "--error", "3")
    assert wrong.returncode == 2
    assert "`--error` must be between 0 and 1; got 3" in text_of(wrong)
