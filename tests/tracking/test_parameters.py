"""Weights are read as they are, and kept as they were."""

import pytest
import torch
from tests.tracking.models import small_model

import rankrise as rr
from rankrise.tracking._parameters import InitialWeights, copy_in_float32, is_sharded, names_of, read_weights, signature

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, on compiling
NAME = "layers.0.self_attn.in_proj_weight"


@pytest.mark.parametrize(("dtype", "kept"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_copies_do_not_follow_training(dtype, kept):
    model = small_model(dtype=dtype)
    copies = copy_in_float32(read_weights(model, [NAME]))
    before = copies[NAME].clone()
    with torch.no_grad():
        model.get_parameter(NAME).add_(1.0)
    assert copies[NAME].dtype == kept
    assert torch.equal(copies[NAME], before)


def test_reading_without_keeping_gives_nothing():
    assert read_weights(small_model(), [NAME], keep=False) == {}
    assert not is_sharded(small_model())


@pytest.mark.parametrize("place", ["auto", "device", "cpu", "disk"])
def test_every_place_gives_the_same_pair(tmp_path, place):
    from safetensors.torch import save_file

    model = small_model()
    copies = copy_in_float32(read_weights(model, [NAME]))
    save_file(copies, tmp_path / "initial.safetensors")
    initial = InitialWeights(copies, place, tmp_path / "initial.safetensors", {f"_orig_mod.{NAME}": NAME})
    now, start = initial.pair({f"_orig_mod.{NAME}": model.get_parameter(NAME).detach() + 1})
    assert torch.equal(start[f"_orig_mod.{NAME}"], copies[NAME])
    assert torch.equal(now[f"_orig_mod.{NAME}"], copies[NAME] + 1)
    assert initial.num_bytes == copies[NAME].nbytes


def test_disk_that_refused_the_file_falls_back_to_memory():
    copies = {NAME: torch.ones(2)}
    assert InitialWeights(copies, "disk", None, {NAME: NAME}).place == "cpu"


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.full((2,), torch.nan), "'w' must be finite before the first step; got NaN"),
        (torch.empty(2, device="meta"), "'w' must hold numbers; it is on the meta device"),
    ],
)
def test_weights_that_are_no_start_are_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        copy_in_float32({"w": weight})


def test_unknown_place_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`initial` must be one of auto, device, cpu, disk; got 'moon'"):
        rr.RankTracker(small_model(), tmp_path, initial="moon")
    assert list(tmp_path.iterdir()) == []


def test_partitioned_models_are_refused(tmp_path):
    model = small_model()
    model.layers[0].linear1.weight = torch.nn.Parameter(torch.empty(0))
    model.layers[0].linear1.weight.ds_id = 1
    with pytest.raises(ValueError, match=r"DeepSpeed ZeRO-3 hides their shapes\. Use FSDP2"):
        rr.RankTracker(model, tmp_path)
    wrapper = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
    with pytest.raises(ValueError, match=r"FSDP1 hides their shapes\. Use FSDP2"):
        rr.RankTracker(wrapper(small_model()), tmp_path)


def test_names_and_shapes():
    assert set(names_of(torch.nn.DataParallel(torch.compile(small_model()))).values()) == set(names_of(small_model()))
    assert (NAME, (36, 12)) in signature(small_model(), [NAME, "gone"])
    assert signature(small_model(), [NAME]) == signature(small_model(seed=1).eval(), [NAME])
    assert signature(small_model(), [NAME]) != signature(small_model(heads=2), [NAME])  # shapes are the same
    assert signature(small_model(), [NAME]) != signature(torch.nn.Sequential(small_model()), [NAME])


def test_a_module_called_module_keeps_its_own_initial_weights(tmp_path):
    """Stripped where only some names have it, `module.` would leave one copy for two parameters."""
    twins = {"module": small_model(seed=0), "layers": small_model(seed=1).layers}
    model = torch.nn.ModuleDict(twins)
    with rr.RankTracker(model, tmp_path, every=1) as tracker:
        names = set(tracker.head_map.parameters())
        tracker.step(0)
    assert {f"module.{NAME}", NAME} <= names
    assert set(rr.store.load_initial(tmp_path)) == names


def test_a_compiled_block_is_stored_under_its_plain_name(tmp_path):
    model = small_model()
    plain = rr.heads.resolve(model).parameters()
    model.layers[0] = torch.compile(model.layers[0])
    with rr.RankTracker(model, tmp_path, every=1) as tracker:
        tracker.step(0)
    assert set(rr.store.load_initial(tmp_path)) == set(plain)
