"""Which files are the steps of a series, and which neighbours do not belong together."""

import pytest

from rankrise.checkpoints import find_steps
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
