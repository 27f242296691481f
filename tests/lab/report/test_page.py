"""The report and the demo as files: self-contained, escaped, static without plotly; the committed demo up to date."""

import html
import json
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.figures.runs import network_run, toy_runs
from tests.lab.figures.test_networks import INITIAL, NAME, RANKS, SPECTRA, scale_runs
from tools.write_demo import main

from rankrise.lab.figures import build_figure, figure_ids
from rankrise.lab.report import _report, demo_data, write_demo, write_report
from rankrise.view import Axis, FigureData, Panel, Trace
from rankrise.view._json import figure_json, short
from rankrise.view._notation import to_html
from rankrise.view._page import policy

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "docs" / "demo" / "index.html"
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}",
    "<!--<script>",
    "' onmouseover='window.hacked=1",
]


class Tags(HTMLParser):
    """What a browser would see: tags with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def verdict(name="low-rank", result="holds", *, of="", about="", **changes):
    claim = SimpleNamespace(
        id=name,
        of=of,
        about=about or of,
        statement=f"statement of {name}",
        reference="[v2] Fig 7",
        circuit="kq",
        layers="all",
        aggregate="mean over heads",
        threshold="< 0.5",
        topic="2",
        in_words="the rank is {value:.0%} of that of the start",
    )
    values = {
        "apart": "",
        "value": 0.25,
        "interval": "0.2 to 0.3",
        "n": "3 seeds × 8 heads",
        "reason": "as measured",
        "runs": (name,),
    }
    return SimpleNamespace(claim=claim, verdict=result, **(values | changes))


def figure(name="a", title="t"):
    trace = Trace((0.0, 1.0), (0.0, 1.0), label=title, group=title)
    return FigureData("a", title, title, (Panel(title, Axis(title), Axis(title), (trace,)),), 1, 1, (title,), name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    network = {NAME: [network_run(out, NAME, ranks=RANKS, spectra=SPECTRA, initial=INITIAL)]}
    return toy_runs(out) | network | scale_runs(out)


@pytest.fixture
def without_plotly(monkeypatch):
    monkeypatch.setattr(_report, "plotly_script", lambda: None)


def test_report_says_what_was_run_and_what_came_out(tmp_path, runs):
    verdicts = [verdict(), verdict("b", "fails", interval=""), verdict("c", "not tested", value=None)]
    verdicts.append(verdict("d", "fails", value=0.75, interval="0.4 to 1.1 ?"))
    page = write_report(tmp_path, [figure()], verdicts, runs, {"python": "3.12", "packages": {"torch": "2.13"}})
    text = page.read_text()
    assert "claims: 1 hold, 2 fail, 1 not tested" in text
    assert "✓ holds" in text
    assert "0.25 [0.2 to 0.3]<" in text
    assert "0.75 [0.4 to 1.1 ?]<" in text
    assert "torch 2.13" in text
    assert "<strong>The learned change has low rank:</strong> 1 of 3 claims hold." in text
    assert "The rank is 25% of that of the start (3 seeds × 8 heads)." in text
    assert "statement of b" in text[text.index("what fails") : text.index("what fails") + 200]
    assert "and networks on CIFAR-10." in text
    assert "10 epochs of CIFAR-10 (1,000 samples) with Adam." in text
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["a-a.csv", "a-a.png", "a-a.svg"]


def test_report_begins_with_what_came_out_and_ends_with_what_was_not_tested(tmp_path, runs):
    names = ("toy_scales", "stable_rank_by_scale", "stable_rank_over_training", "stable_rank_by_head")
    figures = [build_figure(i, runs, **({} if i.startswith("toy") else {"experiment": NAME})) for i in names]
    page = write_report(tmp_path, figures, [verdict(), verdict("c", "not tested", value=None)], runs, {}).read_text()
    order = [
        'id="outcome"',
        'id="figure-toy_scales"',
        f'id="figure-stable_rank_over_training-{NAME}"',
        f'id="figure-stable_rank_by_scale-{NAME}"',
        'id="figures"',
        f'id="figure-stable_rank_by_head-{NAME}"',
        'id="claims"',
        'id="runs"',
        'id="environment"',
        'id="not-tested"',
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    for place, found in enumerate(figures):  # the script finds the numbers of a figure by its place
        card = page[page.index(f'id="figure-{found.name}"') :]
        assert f'data-figure="{place}"' in card[: card.index("</figure>")]
        assert found.look_at.split(" ")[0] == "Look"
        assert to_html(found.look_at) in card
    assert '<details class="group" open>' not in page


def test_report_links_to_runs_without_naming_the_machine(tmp_path, runs):
    text = write_report(tmp_path, [], [], {NAME: runs[NAME]}, {}).read_text()
    links = [attrs["href"] for tag, attrs in Tags(text).found if tag == "a" and NAME in attrs["href"]]
    assert len(links) == 1
    assert links[0].startswith("./../")
    assert (tmp_path / links[0]).is_dir()


def test_report_asks_nothing_of_any_server(tmp_path):
    found = Tags(write_report(tmp_path, [figure()], [verdict()], {}, {}).read_text()).found
    for tag, attrs in found:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attrs
        assert not any(name.startswith("on") for name in attrs)
    content = next(attrs["content"] for tag, attrs in found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in content
    assert "script-src 'sha256-" in content
    assert "unsafe-eval" not in content


def test_policy_lists_the_scripts_that_are_there():
    known = "bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI="  # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert f"script-src 'sha256-{known}';" in policy(["alert(1)"])


def test_report_is_the_same_every_time(tmp_path):
    first, second = (write_report(tmp_path / n, [figure()], [verdict()], {}, {}).read_bytes() for n in "ab")
    assert first == second


@pytest.mark.usefixtures("without_plotly")
def test_without_plotly_the_report_is_static_and_says_so(tmp_path, runs):
    figures = [build_figure(i, runs, **({} if i.startswith("toy") else {"experiment": NAME})) for i in figure_ids()[:2]]
    text = write_report(tmp_path, figures, [], runs, {}).read_text()
    assert "These figures are static: plotly is not installed here" in text
    tags = [tag for tag, _ in Tags(text).found]
    assert tags.count("svg") == 2
    assert "script" not in tags


SVG_PARTS = {"path", "g", "use", "defs", "clippath", "rect", "svg", "style", "metadata", "image"}


def shape_of(text):
    """Elements and the names of their attributes; those of a picture depend on the length of its labels."""
    tags = [(tag, sorted(attrs)) for tag, attrs in Tags(text).found]
    return [tag for tag in tags if tag[0] not in SVG_PARTS and ":" not in tag[0]]


def hostile_report(tmp_path, word):
    folder = network_run(tmp_path / "runs", "vit", ranks=RANKS, data=word)
    verdicts = [verdict(word, of=word, n=word, reason=word), verdict(word, "fails", of=word)]
    page = write_report(tmp_path / "report", [figure(word, word)], verdicts, {word: [folder]}, {word: word}, title=word)
    return page.read_text()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_inject_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(_report, "plotly_script", lambda: "void 0")
    monkeypatch.setattr(_report, "save_figure", lambda figure, folder: (folder.mkdir(parents=True), None, None))
    plain, hostile = (hostile_report(tmp_path / where, word) for where, word in (("a", "plain"), ("b", name)))
    assert shape_of(plain) == shape_of(hostile)  # whatever the names are
    assert html.escape(name, quote=False).replace('"', "&#34;").replace("'", "&#39;") in hostile


@pytest.mark.usefixtures("without_plotly")
def test_names_inject_nothing_into_a_static_report(tmp_path):
    plain, hostile = (
        hostile_report(tmp_path / where, word) for where, word in (("a", "plain"), ("b", " ".join(HOSTILE)))
    )
    assert shape_of(plain) == shape_of(hostile)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=40))
def test_data_in_the_page_is_the_data(name, tmp_path):
    trace = Trace((0.0,), (1.0,), label=name, group=name, level=0.5)
    panel = Panel(name, Axis(name), Axis(name), (trace,))
    data = {"toy": figure_json(FigureData("toy_scales", name, "", (panel,), 1, 1, ()))}
    record = data["toy"] | {"run": name, "sources": [name]}
    page = write_demo(tmp_path / "demo.html", {"toy": record, "film": record, "environment": [[name, name]]})
    assert inside(page)["toy"]["panels"][0]["traces"][0]["label"] == name
    assert [tag for tag, _ in Tags(page.read_text()).found].count("script") == 2


def test_numbers_are_short_and_not_lost():
    assert [short(v) for v in (0.1 + 0.2, 3.0, None, float("inf"), -1e-32)] == [0.3, 3, None, None, -1e-32]


def inside(page):
    """The numbers in a demo page."""
    return json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])


def test_demo_is_made_of_real_runs(runs, tmp_path):
    data = demo_data(runs, experiment=NAME)
    assert data["toy"]["levels"] == ["α = 10⁻²", "α = 10⁻⁸"]
    assert data["film"]["levels"] == ["0.5", "10"]
    assert data["environment"][0][0] == "rankrise"
    assert inside(write_demo(tmp_path / "demo.html", data)) == json.loads(json.dumps(data))


def test_committed_demo_is_that_of_the_committed_results(tmp_path):
    """Six α of the toy at the paper's size, and the paper's network on CIFAR-10. `make demo` writes it again."""
    main([str(tmp_path / "index.html"), "--runs", str(ROOT / "results" / "runs")])
    assert (tmp_path / "index.html").read_text() == DEMO.read_text(), "run `make demo`"
    assert DEMO.stat().st_size <= 1.5e6
    data = inside(DEMO)
    assert data["toy"]["levels"] == [f"α = 10{power}" for power in ("⁻¹", "⁻²", "⁻⁴", "⁻⁸", "⁻¹⁶", "⁻³²")]
    assert data["toy"]["run"].endswith("dimension 50 from a random teacher head, seed 0.")
    assert "500 epochs of CIFAR-10" in data["film"]["run"]


def test_claims_stand_with_what_was_run(tmp_path, runs):
    verdicts = [
        verdict(f"low@{NAME}", of=NAME),
        verdict("stage@toy-flow", "fails", of="toy-flow", about="the toy"),
        verdict("rank@gpt2", "not tested", value=None),
    ]
    text = write_report(tmp_path, [], verdicts, runs, {}).read_text()
    assert f'<strong>{NAME}</strong> <span class="soft">1 hold</span>' in text
    assert '<strong>the toy</strong> <span class="soft">1 fail</span>' in text
    assert "rank@gpt2</code> statement of rank@gpt2: as measured" in text
    assert text.index("10 epochs of CIFAR-10") < text.index("statement of low@")
