"""Tables of plain text: aligned by what a terminal shows, and cells are text whatever they hold."""

from rankrise._tables import table


def test_columns_are_aligned():
    rows = [{"name": "a", "value": 1.5}, {"name": "longer", "value": 12}]
    assert table(rows, left=("name",)) == "name    value\na         1.5\nlonger     12"


def test_cells_are_no_markup():
    assert table([{"[bold]": "[red]x[/red] :smile:"}]).split() == ["[bold]", "[red]x[/red]", ":smile:"]


def test_wide_characters_take_two_columns():
    assert table([{"a": "漢字", "b": 1}, {"a": "abcd", "b": 2}], left=("a",)).splitlines()[1:] == ["漢字  1", "abcd  2"]


def test_long_cells_are_not_cut():
    assert table([{"a": "x" * 5000}]).endswith("x" * 5000)


def test_no_rows_are_no_table():
    assert table([]) == ""
