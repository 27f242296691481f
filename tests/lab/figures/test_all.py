"""Every figure that runs allow: which networks get which, and why others are missing."""

from tests.lab.figures.runs import network_run

from rankrise.lab.figures import build_figures

RANKS = {step: [[1.0, 1.2], [1.5, 1.7]] for step in (0, 10, 20)}
SPECTRA = {step: [[[4.0, 1.0]] * 2] * 2 for step in (10, 20)}
INITIAL = [[[2.0, 1.9]] * 2] * 2
OF_ONE = ("spectrum_over_training", "perturbation_vs_init", "stable_rank_over_training", "stable_rank_by_head")


def runs(out, *names):
    found = {}
    for name in names:
        factor = float(name.partition("-scale-")[2] or 1)
        found[name] = [network_run(out, name, ranks=RANKS, spectra=SPECTRA, initial=INITIAL, init_scale=factor)]
    return found


def drawn(gallery):
    return {(figure.id, figure.experiment) for figure in gallery.figures}


def test_a_network_with_its_family(tmp_path):
    found = runs(tmp_path, "vit-cifar10", "vit-cifar10-scale-1", "vit-cifar10-scale-0.1")
    gallery = build_figures(found)
    scales = {(name, "vit-cifar10") for name in ("components_by_scale", "stable_rank_by_scale")}
    own = {("stable_rank_over_training", "vit-cifar10-scale-1")}  # of other runs than vit-cifar10
    assert drawn(gallery) == {(name, "vit-cifar10") for name in OF_ONE} | scales | own
    shared = build_figures(found | {"vit-cifar10-scale-1": found["vit-cifar10"]})
    assert drawn(shared) == {(name, "vit-cifar10") for name in OF_ONE} | scales
    assert set(gallery.missing) == {"toy_stages", "toy_scales", "toy_robustness", "matrix_stages", "adam_phases"}


def test_a_family_without_its_network_is_shown_by_scale_one(tmp_path):
    gallery = build_figures(runs(tmp_path, "vit-cifar10-scale-1", "vit-cifar10-scale-0.1"))
    assert ("stable_rank_over_training", "vit-cifar10-scale-1") in drawn(gallery)
    assert ("stable_rank_over_training", "vit-cifar10-scale-0.1") not in drawn(gallery)
    assert ("stable_rank_by_scale", "vit-cifar10") in drawn(gallery)


def test_one_scale_alone_is_said_to_be_too_few(tmp_path):
    gallery = build_figures(runs(tmp_path, "vit-cifar10-scale-1"))
    assert "needs two scales or more" in gallery.missing["stable_rank_by_scale vit-cifar10"]


def test_what_cannot_be_read_does_not_stop_the_others(tmp_path):
    found = runs(tmp_path, "vit-cifar10", "vit-cifar100", "gpt2-wikitext2")
    (found["vit-cifar100"][0] / "metrics.parquet").write_bytes(b"PAR1")
    (found["gpt2-wikitext2"][0] / "spec.json").unlink()
    gallery = build_figures(found)
    assert drawn(gallery) == {(name, "vit-cifar10") for name in OF_ONE}
    for name in OF_ONE:
        assert "metrics.parquet must be as the manifest says" in gallery.missing[f"{name} vit-cifar100"]
    assert "must hold spec.json; it is missing" in gallery.missing["gpt2-wikitext2"]


def test_a_network_without_spectra_has_the_figures_of_its_ranks(tmp_path):
    gallery = build_figures({"mine": [network_run(tmp_path, "mine", ranks=RANKS)]})
    assert drawn(gallery) == {(name, "mine") for name in ("stable_rank_over_training", "stable_rank_by_head")}
    assert "has no `spectrum` of kq" in gallery.missing["spectrum_over_training mine"]


def test_variants_come_behind(tmp_path):
    gallery = build_figures(runs(tmp_path, "vit-digits-relu", "vit-digits", "gpt2-wikitext2"))
    order = list(dict.fromkeys(figure.experiment for figure in gallery.figures))
    assert order == ["vit-digits", "gpt2-wikitext2", "vit-digits-relu"]
    assert [f.id for f in gallery.figures if f.experiment == "vit-digits-relu"] == ["stable_rank_over_training"]
