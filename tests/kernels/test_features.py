"""Fisher features against the dense projection, and as files from somebody else."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.kernels.networks import built, dense, mlp
from torch import nn

from rankrise.kernels import FisherFeatures
from rankrise.store import UntrustedInputError

SCALES = {"lse": 1, "outputs": 3}


@pytest.mark.parametrize("rows", SCALES)
@pytest.mark.parametrize("whiten", [True, False])
def test_features_of_new_inputs_are_the_dense_projection(rows, whiten):
    model, x = built("MLP")
    new = x.flip(0)[:3] + 0.3
    features = FisherFeatures(2, rows=rows, whiten=whiten, damping=1e-3, chunk=2).fit(model, x)
    v, v_new = dense(model, x, rows), dense(model, new, rows)
    mean_square = v.square().mean(0)
    scale = (mean_square + 1e-3 * mean_square.max()).rsqrt() if whiten else torch.ones(v.shape[1])
    right = torch.linalg.svd((v - v.mean(0)) * scale, full_matrices=False)[2][:2].mT
    expected = (((v_new - v.mean(0)) * scale) @ right).reshape(3, -1)
    found = features.transform(new)
    assert found.shape == (3, 2 * SCALES[rows])
    torch.testing.assert_close(found.abs(), expected.abs(), atol=1e-8, rtol=1e-8)
    seen = features.transform(x).reshape(-1, 2)
    torch.testing.assert_close(seen.norm(dim=0), features.values)


def test_saved_features_are_the_same(tmp_path):
    model, x = built("CNN")
    features = FisherFeatures(3, rows="fisher").fit(model, x)
    features.save(tmp_path / "features.safetensors")
    again = FisherFeatures.load(tmp_path / "features.safetensors", model)
    assert (again.rows, again.k) == ("fisher", 3)
    assert torch.equal(again.transform(x), features.transform(x))
    assert torch.equal(again.values, features.values)


def test_rows_of_ones_own_are_given_again(tmp_path):
    model, x = built("MLP")
    own = lambda z: z[:, :1].square()  # noqa: E731
    features = FisherFeatures(2, rows=own).fit(model, x)
    features.save(tmp_path / "own.safetensors")
    assert torch.equal(
        FisherFeatures.load(tmp_path / "own.safetensors", model, rows=own).transform(x), features.transform(x)
    )
    with pytest.raises(ValueError, match=r"`rows` must be the function of the fit for own\.safetensors; got None"):
        FisherFeatures.load(tmp_path / "own.safetensors", model)


def test_another_network_is_refused(tmp_path):
    model, x = built("MLP")
    features = FisherFeatures(2).fit(model, x)
    features.save(tmp_path / "f.safetensors")
    with torch.no_grad():
        model[0].weight[0, 0] += 0.01
    with pytest.raises(ValueError, match="must be those that the features were fitted to; they differ"):
        features.transform(x)
    wider = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3)).double().eval()
    with pytest.raises(ValueError, match="must be those that the features were fitted to"):
        FisherFeatures.load(tmp_path / "f.safetensors", wider).transform(x)
    with pytest.raises(ValueError, match=r"`rows` must be left out for f\.safetensors; got 'sum'"):
        FisherFeatures.load(tmp_path / "f.safetensors", model, rows="sum")


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.pop("mean"),
        lambda held: held.update(more=torch.ones(1)),
        lambda held: held.update(directions=torch.ones(93, 3)),
        lambda held: held.update(directions=held["directions"] * torch.nan),
        lambda held: held.update(rows=torch.tensor(7)),
        lambda held: held.update(rows=torch.tensor([0, 1])),
        lambda held: held.update(values=torch.tensor(1.0)),
        lambda held: held.update(norms=torch.tensor([1, 2])),
    ],
)
def test_file_that_holds_something_else_is_refused(tmp_path, change):
    model, x = built("MLP")
    FisherFeatures(2).fit(model, x).save(tmp_path / "f.safetensors")
    held = load_file(tmp_path / "f.safetensors")
    change(held)
    save_file(held, tmp_path / "f.safetensors")
    with pytest.raises(UntrustedInputError, match=r"f\.safetensors must hold what FisherFeatures\.save wrote"):
        FisherFeatures.load(tmp_path / "f.safetensors", model)


def test_links_and_broken_files_are_refused(tmp_path):
    model, x = built("MLP")
    FisherFeatures(2).fit(model, x).save(tmp_path / "f.safetensors")
    os.symlink(tmp_path / "f.safetensors", tmp_path / "link.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 100)
    for name in ("link", "broken", "missing"):
        with pytest.raises(ValueError, match=rf"{name}\.safetensors"):
            FisherFeatures.load(tmp_path / f"{name}.safetensors", model)


def test_refusals():
    with pytest.raises(ValueError, match="`k` must be at least 1 and `damping` at least 0; got 0 and 1e-08"):
        FisherFeatures(0)
    with pytest.raises(ValueError, match="`rows` must be sum, lse"):
        FisherFeatures(rows="score")
    with pytest.raises(ValueError, match="`transform` must come after `fit` or `load`"):
        FisherFeatures().transform(torch.ones(1, 6))
    with pytest.raises(ValueError, match="`save` must come after `fit`"):
        FisherFeatures().save("f.safetensors")
    with pytest.raises(ValueError, match="must be in evaluation mode"):
        FisherFeatures(1).fit(mlp().train(), torch.ones(2, 6))
