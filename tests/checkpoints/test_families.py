"""What PEFT makes of each family's adapter is what was reported, and heads on disk are those in memory."""

import math
import warnings

import pytest
import torch
from tests.checkpoints.families import FAMILIES, Family

from rankrise.checkpoints import diff, extract_lora
from rankrise.heads import resolve

pytestmark = pytest.mark.slow


def tune(model):
    """Every matrix is changed by two directions, everything else by a constant."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.01)
                continue
            shape = (parameter.shape[0], parameter[0].numel()) if parameter.ndim != 3 else parameter.shape
            left, right = (torch.randn(*shape[:-2], n, 2, generator=generator) for n in shape[-2:])
            change = (left @ right.mT).reshape(parameter.shape)
            parameter.add_((0.05 * parameter.float().norm() / change.norm() * change).to(parameter.dtype))


def saved(family: Family, folder):
    model = family.build()
    for side in ("base", "tuned"):
        model.save_pretrained(folder / side, max_shard_size=family.shard_size)
        if side == "base":
            tune(model)
    return folder / "base", folder / "tuned", type(model)


def loaded(kind, folder):
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def distance(one, goal):
    """‖one − goal‖_F over the parameters of `goal`, each once; saving a tied embedding whole unties it in `one`."""
    own = dict(one.named_parameters(remove_duplicate=False))
    return math.sqrt(
        sum(float((own[name] - p).detach().double().square().sum()) for name, p in goal.named_parameters())
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_peft_makes_of_the_adapter_is_what_was_reported(tmp_path, family):
    import peft

    base, tuned, kind = saved(family, tmp_path)
    goal = loaded(kind, tuned)
    change = distance(loaded(kind, base), goal)
    for save in ([], ["all"]):
        out = tmp_path / f"adapter{len(save)}"
        done = extract_lora(base, tuned, out=out, rank=4, save=save)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern", category=RuntimeWarning)
            merged = peft.PeftModel.from_pretrained(loaded(kind, base), out).merge_and_unload()
        assert distance(merged, goal) / change == pytest.approx(done.total_error, abs=1e-5)
        assert done.num_bytes < 3 * sum(file.stat().st_size for file in tuned.iterdir())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_heads_on_disk_are_those_in_memory(tmp_path, family):
    base, tuned, kind = saved(family, tmp_path)
    in_memory = sorted(layer.num_heads for layer in resolve(loaded(kind, base)))
    rows = diff(base, tuned).circuits()
    on_disk = {name: len({row.head for row in rows if row.name == name}) for name in {row.name for row in rows}}
    assert sorted(on_disk.values()) == in_memory
