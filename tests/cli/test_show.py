"""`rankrise show` and `rankrise plot`: what any run has learned, and the mistakes that people make."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.lab.figures.runs import network_run
from tests.runs.test_open_run import planted

import rankrise as rr
from rankrise.cli import main
from rankrise.store import create_run, rows, scalar_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    planted(root / "runs" / "mine")
    planted(root / "runs" / "cut", steps=range(1, 8), seal=False)
    planted(root / "empty", steps=())
    return root


@pytest.fixture
def rankrise(monkeypatch, capsys, folder):
    monkeypatch.chdir(folder)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def tracked(out):
    """A run of the tracker with the spectra of whole matrices."""
    torch.manual_seed(0)
    model = torch.nn.MultiheadAttention(8, 2, bias=False)
    with rr.RankTracker(model, out=out, every=1, spectra=1, matrices=True) as tracker:
        with torch.no_grad():
            model.in_proj_weight[:8] += torch.outer(torch.randn(8), torch.randn(8))
            model.out_proj.weight += torch.randn(8, 8)
        tracker.step(1, loss=0.5)
    return out


def test_a_run_in_the_terminal(rankrise):
    done = rankrise("show", "runs/mine")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "runs/mine: finished, 2 layers × 3 heads, steps 1 to 40, loss 1"
    assert "    1       kq         2.00               1  ▁▁▁▁▁▁▁▁▁▁▁▁████████████  20" in lines
    heads = lines[next(n for n, line in enumerate(lines) if line.startswith("The heads that learned most")) + 2 :]
    assert heads[0].split() == ["0", "2", "1.71", "×", "2", "2", "1.00", "1.00"]
    assert (
        "No LoRA ranks: The run in runs/mine must have spectra of the matrices q, k, v, o; it has none." in done.stdout
    )
    assert lines[-2:] == ["The loss drops at step 20.", "one note"]


def test_lora_ranks_of_a_tracked_run(rankrise, tmp_path):
    done = rankrise("show", tracked(tmp_path / "tracked"))
    text = done.stdout.split("LoRA ranks that keep 90% of the squared change of each matrix:\n")[1]
    ranks = dict(zip(*(line.split() for line in text.splitlines()[:2]), strict=True))
    assert (ranks["layer"], ranks["q"], ranks["k"], ranks["v"]) == ("0", "1", "1", "1")  # one fused module of rank one
    assert 1 < int(ranks["o"]) <= 8


def test_several_runs_one_after_the_other_and_side_by_side(rankrise):
    done = rankrise("show", "runs/mine", "runs/cut")
    assert "runs/cut: stopped, 2 layers × 3 heads, steps 1 to 7, loss 2" in done.stdout
    assert "stable rank of kq, mean over layers: mine: 1.50; cut: 1.00" in done.stdout
    assert done.stderr == "To draw them over each other: rankrise plot training_curves runs/mine runs/cut\n"


def test_a_folder_of_runs_is_a_list(rankrise):
    done = rankrise("show", "runs")
    assert done.stdout.splitlines() == [
        "runs/cut  stopped, 2 layers × 3 heads, steps 1 to 7, loss 2",
        "runs/mine  finished, 2 layers × 3 heads, steps 1 to 40, loss 1",
        "",
        "2 runs. To see one: rankrise show runs/cut",
    ]


def test_a_name_that_a_shell_would_read_is_quoted(rankrise, tmp_path):
    planted(tmp_path / "my runs" / "b; ls")
    planted(tmp_path / "my runs" / "c")
    done = rankrise("show", tmp_path / "my runs")
    assert done.stdout.endswith(f"To see one: rankrise show '{tmp_path}/my runs/b; ls'\n")


def test_json_holds_everything_as_finite_numbers_or_null(rankrise, tmp_path):
    nan = planted(tmp_path / "nan", diverges_at=40)
    done = rankrise("show", "runs/mine", nan, "--json")
    mine, broken = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (mine["state"], mine["last_step"], mine["is_broken"], mine["advice"]) == ("finished", 40, False, None)
    assert [row["rank"] for row in mine["rows"]] == [1, 2, 1, 1]
    assert (mine["heads"][0]["layer"], mine["heads"][0]["head"]) == (0, 2)
    assert {stage["kind"] for stage in mine["stages"]} == {"loss", "rank"}
    assert broken["is_broken"]
    assert broken["rows"][1]["curve"][-2:] == [2.0, None]


def test_a_run_that_diverged_says_so_without_a_warning(rankrise, tmp_path):
    done = rankrise("show", planted(tmp_path / "nan", diverges_at=40))
    assert "The last loss or ranks are not finite: the training diverged." in done.stdout
    assert done.stderr == ""
    spec = {"layers": [{"index": 0, "name": "a", "num_heads": 1, "head_dim": 1, "views": {}}]}
    run = create_run(tmp_path / "never", spec=spec, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1, "loss", float("nan"))]))
    for name in ("stable_rank", "frobenius_norm"):
        run.append(rows(1, name, np.full((1, 1), np.nan), circuit="kq", layers=(0,), heads=True))
    run.seal()
    done = rankrise("show", tmp_path / "never")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the training diverged" in done.stdout


def test_an_empty_run_and_one_without_attention(rankrise, tmp_path):
    done = rankrise("show", "empty")
    assert done.stdout.splitlines() == [
        f"{rr.open_run('empty').source}: finished, 2 layers × 3 heads, nothing recorded yet",
        "",
        "Nothing has been recorded yet: the tracker writes its first rows when it first measures.",
        "one note",
    ]
    run = create_run(tmp_path / "plain", spec={}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1, "loss", 0.5)]))
    run.seal()
    done = rankrise("show", tmp_path / "plain")
    assert "no attention tracked, steps 1 to 1, loss 0.5" in done.stdout
    assert "No LoRA ranks: LoRA ranks are advised for attention, and no attention was tracked." in done.stdout


def test_the_page_holds_every_figure_and_escapes_names(rankrise, tmp_path):
    evil = planted(tmp_path / "<img src=x onerror=alert(1)>")
    done = rankrise("show", "runs/mine", evil, "--html", tmp_path / "page.html")
    assert done.stderr.splitlines()[-1] == f"wrote {tmp_path / 'page.html'}"
    page = (tmp_path / "page.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert page.lstrip().startswith("<!doctype html>")
    for words in ("Side by side", "Look for plateaus of the rank", "Look which heads differ from those beside them."):
        assert words in page
    assert "<code>spectrum_over_training</code>: runs/mine has no `spectrum` of kq" in page
    assert "http://" not in page.split("<script")[0]


def test_the_page_without_plotly_is_static(rankrise, tmp_path, monkeypatch):
    monkeypatch.setattr("rankrise.view._run_page.plotly_script", lambda: None)
    rankrise("show", "runs/cut", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert page.count("<svg") == 3


def test_pictures_of_runs_of_one_name_are_numbered(rankrise, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr("rankrise.cli._show.save", lambda figure, path: saved.append(path) or path)
    rankrise("show", "runs/mine", planted(tmp_path / "mine"), "--png", "pictures")
    names = [path.name for path in saved]
    assert {"training_curves-mine.png", "training_curves-mine-2.png"} < set(names)
    assert len(names) == len(set(names)) == 6


def test_plot_of_one_run_and_of_several(rankrise, tmp_path):
    done = rankrise("plot", "training_curves", "runs/mine", "--out", tmp_path, "--format", "png,csv", "--layer", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("training_curves-mine: Look for plateaus of the rank")
    assert (tmp_path / "training_curves-mine.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "training_curves-mine.csv").read_text()
    assert "layer 1" in table
    assert "layer 0" not in table
    done = rankrise("plot", "training_curves", "runs", "--out", tmp_path, "--format", "csv")
    assert done.stderr == f"wrote {tmp_path / 'training_curves-compared.csv'}\n"
    table = (tmp_path / "training_curves-compared.csv").read_text()
    assert ",cut,line," in table
    assert ",mine,line," in table


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["show", "nowhere"], 1, "nowhere does not exist."),
        (["show", "rnus"], 1, "rnus does not exist. Did you mean 'runs'?"),
        (["show", "."], 0, ""),
        (["show", "nothing"], 1, "with a MANIFEST.json; nothing holds none. Record one: rankrise.RankTracker(model"),
        (["show", "runs/mine/metrics.parquet"], 1, "is a file; the run that it belongs to is runs/mine."),
        (["show", "runs/mine", "--html", "nowhere/page.html"], 2, "The folder of nowhere/page.html must exist."),
        (["show"], 2, "Missing argument"),
        (["plot", "training_curve", "runs/mine"], 2, "Did you mean 'training_curves'?"),
        (["plot", "runs/mine", "training_curves"], 2, "The figure comes before the runs."),
        (["plot", "training_curves", "runs/mine", "--out", "a/b.png"], 2, "a/b.png has the name of a file."),
        (["show", "runs/mine", "--png", "b.png"], 2, "Name the folder that the files go to."),
        (["plot", "training_curves", "nothing"], 1, "nothing holds none."),
        (["plot", "training_curves", "runs/mine", "--layer", "7"], 1, "has no layer 7; it has 0-1."),
        (["plot", "stable_rank_by_head", "runs/mine", "--layer", "1"], 2, "stable_rank_by_head shows all layers."),
        (["plot", "stable_rank_by_head", "runs/mine", "runs/cut"], 1, "shows one run; got 2."),
        (["plot", "spectrum_over_training", "runs/mine"], 1, "runs/mine has no `spectrum` of kq"),
        (["plot", "components_by_scale", "runs/mine"], 1, "compares runs of several initial scales; got one run."),
        (["plot", "training_curves", "runs/mine", "--format", "gif"], 2, "`--format` must be of"),
        (
            ["report", "--runs", "runs"],
            1,
            "`rankrise show runs/cut` shows one, `rankrise plot training_curves runs/cut`",
        ),
        (["figure", "stable_rank_by_head", "--runs", "runs"], 1, "`rankrise show runs/cut` shows one"),
        (["figure", "training_curves", "--runs", "runs"], 2, "`rankrise plot training_curves RUN` draws"),
    ],
)
def test_mistakes(rankrise, folder, args, code, message):
    (folder / "nothing").mkdir(exist_ok=True)
    done = rankrise(*args)
    assert done.returncode == code
    said = " ".join(done.stderr.replace("│", " ").split())
    assert message in said
    assert "Traceback" not in done.stderr


def test_a_damaged_run_is_refused_alone_and_named_in_a_list(rankrise, tmp_path):
    for name in ("whole", "damaged"):
        planted(tmp_path / name)
    (tmp_path / "damaged" / "metrics.parquet").write_bytes(b"PAR1")
    done = rankrise("show", tmp_path / "damaged")
    assert (done.returncode, done.stdout) == (1, "")
    assert "metrics.parquet" in done.stderr
    done = rankrise("show", tmp_path)
    assert f"{tmp_path / 'damaged'}  damaged: " in done.stdout
    assert f"{tmp_path / 'whole'}  finished, 2 layers" in done.stdout


def test_a_run_of_an_experiment_is_shown_too(rankrise, tmp_path):
    ranks = {step: [[1.0, 1.2], [1.5 + step, 1.7]] for step in (0, 10, 20)}
    network_run(tmp_path, "mine", ranks=ranks)
    done = rankrise("show", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    assert "steps 0 to 20" in done.stdout
