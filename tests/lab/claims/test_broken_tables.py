"""Tables with numbers that are not finite, or with rows missing or doubled, test nothing: in every kind of claim."""

import numpy as np
import pyarrow as pa
import pytest
from tests.lab.claims import planted
from tests.lab.claims.test_both_directions import CASES, kind_of, verdict_of

from rankrise.runs import RunData
from rankrise.store import load_run

MAY_MISS = {"activation_time"}  # a coordinate that never became active has none
ONE_OF_A_KIND = {kind_of(claim): (claim, good) for claim, good, _ in CASES}


def spoil(blocks, quantity, value):
    """The middle row of a quantity, in each circuit, gets another value, or is left out (None), or is there twice.

    With "layer" all rows of the first of several layers are left out.
    """
    table = pa.Table.from_batches(blocks)
    names, circuits = (table[name].to_numpy() for name in ("quantity", "circuit"))
    found = [np.flatnonzero((names == quantity) & (circuits == circuit)) for circuit in ("", "kq", "vo", "ntk")]
    places = [rows[len(rows) // 2] for rows in found if len(rows)]
    if value == "layer":
        layers = table["layer"].to_numpy()
        several = any(len(np.unique(layers[rows])) > 1 for rows in found if len(rows))
        return table.filter(~((names == quantity) & (layers == 0) & several)).to_batches()
    if not places:
        return table.to_batches()
    if value == "twice":
        return pa.concat_tables([table, table.take(places)]).to_batches()
    if value is None:
        return table.filter(~np.isin(np.arange(len(table)), places)).to_batches()
    values = table["value"].to_numpy().copy()
    values[places] = value
    return table.set_column(6, table.schema.field(6), pa.array(values)).to_batches()


@pytest.mark.parametrize("value", [np.nan, None, "twice"], ids=["nan", "missing", "twice"])
@pytest.mark.parametrize("kind", ONE_OF_A_KIND)
def test_broken_tables_are_not_tested(kind, value, tmp_path, monkeypatch):
    """Where the claim reads the quantity it is not tested, else its value is what it was."""
    claim, build = ONE_OF_A_KIND[kind]
    folders = build(tmp_path)
    whole = verdict_of(claim, folders)
    tables = {folder: load_run(folder) for members in folders.values() for folder in members}
    recorded = {quantity for table in tables.values() for quantity in table["quantity"].unique().to_pylist()}
    broken = set()
    for quantity in sorted(recorded - (set() if value is np.nan else MAY_MISS)):
        spoiled = {f: pa.Table.from_batches(spoil(t.to_batches(), quantity, value)) for f, t in tables.items()}
        monkeypatch.setattr(RunData, "table", property(lambda run, spoiled=spoiled: spoiled[run.folder]))
        found = verdict_of(claim, folders)
        assert found.verdict == "not tested" or found.value == whole.value, quantity
        if found.verdict == "not tested":
            broken.add(quantity)
            assert found.reason.endswith(".")
            assert found.value is None
    assert broken - {"time"} or (kind == "times-as-in-the-flow" and value is not np.nan)


@pytest.mark.parametrize("quantity", ["stable_rank", "initial_spectrum"])
@pytest.mark.parametrize("claim", ["lower-than-init-kq@vit-cifar10", "vo-above-kq@vit-cifar10"])
def test_a_missing_layer_is_named(claim, quantity, tmp_path, monkeypatch):
    seal = planted.seal
    monkeypatch.setattr(planted, "seal", lambda *args: seal(*args[:-1], spoil(args[-1], quantity, "layer")))
    found = verdict_of(claim, {"vit-cifar10": [planted.network(tmp_path, "vit-cifar10")]})
    if quantity == "initial_spectrum" and claim.startswith("vo"):
        assert found.verdict == "holds"  # does not read it
    else:
        assert found.verdict == "not tested"
        assert "of 1 of 2 layers: run it again." in found.reason


def test_a_table_that_cannot_be_read_is_said_without_its_path(tmp_path):
    folder = planted.network(tmp_path, "vit-cifar10")
    (folder / "metrics.parquet").write_bytes(b"PAR1")
    found = verdict_of("rises-kq@vit-cifar10", {"vit-cifar10": [folder]})
    assert found.verdict == "not tested"
    assert found.reason == "A run of vit-cifar10 cannot be read: move it away, and run it again."


def test_nan_is_named(tmp_path):
    losses = np.linspace(1, 0, 401)
    losses[200:] = np.nan  # left out by `curve_rows`
    for activations in ((0.5, 0.9), (0.1, 0.2)):
        found = verdict_of(
            "one-after-another@toy-flow-1e-32",
            {"toy-flow-1e-32": [planted.toy(tmp_path, "toy-flow-1e-32", losses=losses, activations=activations)]},
        )
        assert found.verdict == "not tested"
        assert "`time` and `loss` at different steps" in found.reason
        tmp_path = tmp_path / "again"
