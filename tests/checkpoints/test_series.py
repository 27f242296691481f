"""Which files are the steps of a series, and which neighbours do not belong together."""

import pytest
import torch
from safetensors.torch import save_file

from rankrise.checkpoints import find_steps, open_checkpoint
from rankrise.checkpoints.compare._sources import jumps, number_steps


def make(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        if "." in name:
            (folder / name).touch()
        else:
            (folder / name).mkdir()
    return folder


def steps(folder):
    return [(step.step, step.path.name) for step in find_steps(folder)]


def test_folders_of_a_trainer_by_number(tmp_path):
    make(tmp_path, "checkpoint-1000", "checkpoint-200", "runs", "logs-1", "config.json")
    assert steps(tmp_path) == [(200, "checkpoint-200"), (1000, "checkpoint-1000")]


def test_numbered_files(tmp_path):
    make(tmp_path, "0000100_adapters.safetensors", "0000200_adapters.safetensors", "adapters.safetensors", "x_3.json")
    assert [n for n, _ in steps(tmp_path)] == [100, 200]
    make(tmp_path / "torch", "epoch_0.pt", "epoch_10.pt", "rng_state_1.pth", "rng_state_2.pth", "rng_state_3.pth")
    assert [n for n, _ in steps(tmp_path / "torch")] == [0, 10]


def test_links_out_of_the_folder_are_left_out(tmp_path):
    make(tmp_path / "elsewhere", "checkpoint-3")
    run = make(tmp_path / "run", "checkpoint-1", "checkpoint-2")
    (run / "checkpoint-3").symlink_to(tmp_path / "elsewhere" / "checkpoint-3")
    assert [n for n, _ in steps(run)] == [1, 2]


@pytest.mark.parametrize("names", [(), ("checkpoint-1",), ("a", "b"), ("model-00001-of-00002.safetensors",)])
def test_fewer_than_two(tmp_path, names):
    make(tmp_path, *names)
    with pytest.raises(ValueError, match="must hold numbered checkpoints"):
        find_steps(tmp_path)


def test_given_paths_are_ordered_by_their_numbers_or_stay_in_order(tmp_path):
    assert [step.step for step in number_steps(["a/step-20", "a/step-3"])] == [3, 20]
    assert [(step.step, step.path.name) for step in number_steps(["b", "a"])] == [(1, "b"), (2, "a")]
    assert [step.step for step in number_steps(["x-1/final", "y-1/final"])] == [1, 2]
    files = [f"run7/12345678901234567890/checkpoint-{n}/model.safetensors" for n in (200, 1000, 30)]
    assert [step.step for step in number_steps(files)] == [30, 200, 1000]


@pytest.mark.parametrize(
    "names",
    [
        ("epoch0-step400", "epoch1-step100"),
        ("sft-7b", "dpo-3b"),
        ("run2/checkpoint-200", "run1/checkpoint-100"),
        ("step-10", "step-010"),
        (f"step-{10**20}", "step-1"),
    ],
)
def test_names_that_differ_in_more_than_a_number_keep_their_order(names):
    assert [(step.step, str(step.path)) for step in number_steps(names)] == list(enumerate(names, start=1))


def test_a_folder_of_epochs_and_steps(tmp_path):
    names = ("epoch_0_step_900", "epoch_1_step_20", "epoch_1_step_100", "epoch_10_step_5")
    make(tmp_path, *reversed(names), "logs")
    assert steps(tmp_path) == list(enumerate(names, start=1))
    make(tmp_path / "one", "llama-2-7b-step100", "llama-2-7b-step20")
    assert steps(tmp_path / "one") == [(20, "llama-2-7b-step20"), (100, "llama-2-7b-step100")]


def test_shards_are_no_series(tmp_path):
    make(tmp_path, *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)))
    with pytest.raises(ValueError, match="got 0 of them"):
        find_steps(tmp_path)


def test_links_into_the_blobs_of_the_hubs_cache_are_steps(tmp_path):
    blobs = make(tmp_path / "blobs", "a.x", "b.x")
    folder = tmp_path / "snapshots" / "0f0f"
    folder.mkdir(parents=True)
    for name, blob in (("step-1.safetensors", "a.x"), ("step-2.safetensors", "b.x")):
        (folder / name).symlink_to(blobs / blob)
    assert [n for n, _ in steps(folder)] == [1, 2]


def test_jumps():
    assert jumps([1, 2, 3], [1.0, 2.0, 3.0], [None, 0.9, 0.95]) == []
    ((before, after, why),) = jumps([1, 2, 3], [1.0, 2.0, 3.0], [None, 0.9, 0.05])
    assert (before, after) == (2, 3)
    assert "cosine 0.05" in why
    ((*_, why),) = jumps([1, 2], [2.0, 0.5], [None, 0.9])
    assert "shrinks to 25%" in why
    assert jumps([1, 2], [None, 1.0], [None, None]) == []


@pytest.mark.parametrize("name", ["step-{}.th", "step-{}", "step-{}.weights", "step-{}.bin"])
@pytest.mark.parametrize("old", [False, True])
def test_files_are_told_apart_by_content_and_not_by_extension(tmp_path, name, old):
    for n in (1, 2):
        torch.save({"w": torch.ones(2, n)}, tmp_path / name.format(n), _use_new_zipfile_serialization=not old)
        (tmp_path / f"notes-{n}.txt").write_text("PK")
        torch.save({"step": n}, tmp_path / f"rng_state_{n}.pth")
    (tmp_path / "notes-3.txt").write_text("")
    assert [step.path.name for step in find_steps(tmp_path)] == [name.format(1), name.format(2)]
    assert open_checkpoint(tmp_path / name.format(2), allow_torch_load=True).tensors["w"].shape == (2, 2)
    with pytest.raises(ValueError, match="is a pickle, which can run code"):
        open_checkpoint(tmp_path / name.format(2))


def test_safetensors_of_another_name(tmp_path):
    save_file({"w": torch.ones(2, 3)}, tmp_path / "step-1.bin")
    assert open_checkpoint(tmp_path / "step-1.bin").kind == "safetensors"
    (tmp_path / "step-1.th").write_text("notes")
    with pytest.raises(ValueError, match="by its first bytes it is none of these"):
        open_checkpoint(tmp_path / "step-1.th")


ONE_RUN = [None, 0.945, 0.974, 0.987, 0.995, 0.998, 0.9996, 0.9999]  # a real series of adapters, steps 100 to 750
SEVERAL = [None, 0.985, 0.42, 0.994, 0.66, 0.992, 0.994, 0.997, 0.999, 1.0]  # real adapters of three fine-tunes


def jumped(cosines, steps=None, **options):
    steps = list(range(1, len(cosines) + 1)) if steps is None else steps
    return [after for _, after, _ in jumps(steps, [1.0] * len(cosines), cosines, **options)]


def test_unrelated_fine_tunes_from_one_base_are_no_run():
    assert jumped(ONE_RUN, [100, 200, 300, 400, 500, 600, 700, 750]) == []
    assert jumped(SEVERAL) == [3, 5]


@pytest.mark.parametrize(
    ("cosines", "steps", "start", "found"),
    [
        ([None, 0.3, 0.9, 0.9, 0.9], [10, 100, 110, 120, 130], 0, []),  # a long gap may turn far
        ([None, 0.9, 0.9, 0.9, 0.3], [100, 110, 120, 130, 140], 0, [140]),  # a short one may not
        ([None, 0.8, 0.8, 0.8, 0.8], [100, 110, 120, 130, 140], 0, []),  # it wanders about its goal
        ([None, 0.3, 0.9, 0.9, 0.9], [1010, 1100, 1110, 1120, 1130], 1000, []),  # counted from the base
        ([None, 0.3], [1, 2], 0, []),
        ([None, 0.1], [1, 2], 0, [2]),
        ([None, 0.1], [0, 2], 0, []),
        ([None, 0.1, None, 0.1], [1, 2, 3, 4], 0, [2, 4]),
    ],
)
def test_a_neighbour_is_judged_by_its_gap_and_by_the_others(cosines, steps, start, found):
    assert jumped(cosines, steps, start=start) == found
