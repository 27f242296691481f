"""`rankrise lora` and `rankrise resize` as a user runs them."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

import rankrise as rr
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


@pytest.fixture
def pair(tmp_path):
    g = torch.Generator().manual_seed(0)
    weight, left, right = (torch.randn(*shape, generator=g) for shape in ((40, 60), (40, 3), (3, 60)))
    norm = torch.ones(60)
    for side, change in (("base", 0.0), ("tuned", 0.1)):
        (tmp_path / side).mkdir()
        tensors = {"h.0.up.weight": weight + change * left @ right, "h.0.norm.weight": norm + change}
        save_file(tensors | {"h.0.down.weight": weight}, tmp_path / side / "model.safetensors")
    return tmp_path / "base", tmp_path / "tuned"


def test_advice_adapter_and_resize(rankrise, pair, tmp_path):
    advice = rankrise("lora", *pair, "--energy", "0.9")
    assert advice.returncode == 0, advice.stderr
    assert "rank by 90% of the energy of every module" in advice.stdout
    assert '"target_modules": ["h.0.up"]' in advice.stdout
    assert "h.0.norm" in advice.stdout  # not carried, with the name to save
    assert "wrote" not in advice.stderr
    done = rankrise("lora", *pair, "--floor", "--out", tmp_path / "adapter", "--save", "h.0.norm", "--json")
    record = json.loads(done.stdout)
    assert record["advice"]["config"]["rank_pattern"] == {r"h\.0\.up": 3}
    assert record["error"] < 1e-5
    assert record["modules_to_save"] == ["h.0.norm"]
    assert record["unchanged"] == ["h.0.down.weight"]
    assert done.stderr.splitlines()[-1].startswith(f"wrote {tmp_path / 'adapter'}")
    small = rankrise("resize", tmp_path / "adapter", "--rank", "1", "--out", tmp_path / "small")
    assert small.returncode == 0, small.stderr
    assert "rank by rank 1 everywhere" in small.stdout
    assert (tmp_path / "small" / "adapter_config.json").exists()


def test_dry_run_stops_before_any_weight_is_read(rankrise, pair, tmp_path):
    done = rankrise("lora", *pair, "--dry-run", "--out", tmp_path / "adapter")
    assert (done.returncode, (tmp_path / "adapter").exists()) == (0, False)
    assert done.stdout.startswith("matched    3 tensors")


def test_advice_from_a_tracked_run(rankrise, tmp_path):
    model = torch.nn.TransformerEncoderLayer(d_model=16, nhead=2, dim_feedforward=16)
    with rr.RankTracker(model, out=tmp_path / "run", every=1, spectra=1) as tracker:
        for step in (1, 2):
            with torch.no_grad():
                model.self_attn.out_proj.weight += 0.1 * torch.ones(16, 1) @ torch.randn(1, 16)
            tracker.step(step)
    done = rankrise("lora", tmp_path / "run", "--steps", "1", "--json")
    record = json.loads(done.stdout)
    assert {m["name"]: m["rank"] for m in record["modules"]}["self_attn.out_proj"] == 1
    assert record["rule"].endswith("at step 1")
    wrong = rankrise("lora", tmp_path / "run", "--out", tmp_path / "a")
    assert wrong.returncode == 2
    assert "A tracked run gives advice only; leave out --out" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--energy", "2"), 1, "`energy` must be in (0, 1]; got 2."),
        (("--rank", "2", "--budget", "9"), 1, "One rule must decide the ranks; got `rank` and `budget`."),
        (("--save", "h.0.nrm"), 1, "it has no 'h.0.nrm'. Did you mean 'h.0.norm'?"),
        (("--dtype", "int8"), 2, "`--dtype` must be float32, bfloat16 or float16; got int8."),
        (("--tokens", "a,b"), 2, "`--tokens` must be whole numbers like 1,2,3; got a,b."),
    ],
)
def test_mistakes_are_one_sentence(rankrise, pair, args, code, message):
    done = rankrise("lora", *pair, *args)
    assert (done.returncode, done.stdout) == (code, "")
    text = " ".join(done.stderr.replace("│", " ").split())
    assert message in text
    assert "Traceback" not in done.stderr


def test_one_checkpoint_is_not_enough(rankrise, pair):
    done = rankrise("lora", pair[0])
    assert done.returncode == 2
    assert "is no run: add TUNED" in " ".join(done.stderr.replace("│", " ").split())


def test_verify_without_transformers_is_said_before_any_work(rankrise, pair, tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = rankrise("lora", *pair, "--out", tmp_path / "a", "--verify")
    assert done.returncode == 1
    assert (
        "`verify` needs the packages transformers and peft, which are not installed: pip install 'rankrise[hf,peft]'"
        in done.stderr
    )
    assert not (tmp_path / "a").exists()


def save_pair(folder, base, tuned):
    for side, tensors in (("base", base), ("tuned", tuned)):
        (folder / side).mkdir(parents=True)
        save_file(tensors, folder / side / "model.safetensors")
    return folder / "base", folder / "tuned"


def test_what_only_the_tuned_model_has_is_said(rankrise, tmp_path):
    weight = torch.randn(30, 8)
    base = {"embed_tokens.weight": weight, "up.weight": weight[:8].clone(), "up.bias": torch.zeros(8)}
    tuned = {"embed_tokens.weight": torch.cat([weight, weight[:2]]), "up.weight": weight[:8] + torch.ones(8, 8),
             "up.bias": torch.ones(8), "score.weight": torch.randn(3, 8)}  # fmt: skip
    done = rankrise("lora", *save_pair(tmp_path / "p", base, tuned), "--rank", "1")
    assert done.returncode == 0, done.stderr
    assert "with what is not carried" not in done.stdout
    assert "without the 2 that only the tuned model has, which are not carried" in done.stdout
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "only in the tuned" in rows["score.weight"]
    assert "new rows" in rows["embed_tokens.weight"]
    assert rows["reshaped"].endswith("embed_tokens.weight (30, 8) and (32, 8)")
    assert rows["extra"].endswith("1: score.weight")
    assert "nan" not in done.stdout  # the bias has nothing to be relative to


def test_control_characters_do_not_reach_the_terminal(rankrise, tmp_path):
    names = ("a\x9b2J.weight", "b\u202e.weight", "c\x1b[2J.weight", "up.weight")
    base = {name: torch.zeros(8, 8) for name in names}
    tuned = {name: torch.ones(8, 8) for name in names}
    pair = save_pair(tmp_path / "p", base, tuned)
    for options in ((), ("--json",)):
        done = rankrise("lora", *pair, "--rank", "1", *options)
        assert done.returncode == 0, done.stderr
        assert "x9b2J" in done.stdout or "u009b2J" in done.stdout
        assert not [c for c in done.stdout + done.stderr if c != "\n" and not c.isprintable()]


def test_dry_run_as_json(rankrise, pair):
    done = rankrise("lora", *pair, "--dry-run", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["matched"], record["problems"]) == (0, 3, [])


def test_a_device_that_is_not_there_is_one_sentence(rankrise, pair):
    done = rankrise("lora", *pair, "--device", "foo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "rankrise: `device` must be there; got 'foo' and no such device was found. Leave it out.\n"


def test_notes_are_shown(rankrise, tmp_path):
    generator = torch.Generator().manual_seed(0)
    base = {f"h.{n}.up.weight": torch.randn(40, 30 + 2 * n, generator=generator) for n in range(3)}
    tuned = {name: w + 0.1 * torch.randn(w.shape, generator=generator) for name, w in base.items()}
    pair = save_pair(tmp_path / "p", base, tuned)
    done = rankrise("lora", *pair, "--energy", "0.99")
    assert "more parameters than the weight: save it whole" in done.stdout
    assert "parameters are no fewer than the 3,840 of the weights they change" in done.stdout
    snapped = rankrise("lora", *pair, "--budget", "1300", "--snap")
    assert "note: other ranks within the budget might keep up to" in snapped.stdout
    assert json.loads(rankrise("lora", *pair, "--budget", "1300", "--snap", "--json").stdout)["advice"]["gap"] > 0
