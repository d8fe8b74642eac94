"""The page in a real browser: drawn, switched, on a phone, printed, and safe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedloom.report.page import write_report
from report.browser import Tab, browser

pytest.importorskip("plotly", reason="plotly is not installed, which draws the page")

CHARTS = ["accuracy", "classes", "shares", "losses", "fairness", "coverage", "similarity", "time"]
CHARTS += ["timeline", "busy", "work", "speeds", "wall"]
EVIL = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def page(folders, _plain, tmp_path_factory) -> Path:
    """A report of runs, one of which has a hostile name and a hostile setting."""
    folder = tmp_path_factory.mktemp("page")
    evil = Path(shutil.copytree(_plain, folder / EVIL.replace("/", "\N{DIVISION SLASH}")))
    about = json.loads((evil / "experiment.json").read_text())
    about["experiment"]["method"]["name"] = f"</script>{EVIL}"
    about["versions"] = {EVIL: EVIL}
    (evil / "experiment.json").write_text(json.dumps(about))
    write_report([*folders, evil], folder / "report.html", [0.1], title=f"Report {EVIL}")
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def drawn(tab: Tab) -> dict[str, int]:
    """Charts by name and how many drawings plotly has in each."""
    script = "[...document.querySelectorAll('.chart')].map(c => [c.id.slice(6), "
    return dict(tab.get(script + "c.querySelectorAll('.main-svg').length && c.data.length])"))


def test_it_is_small(page):
    assert page.stat().st_size < 6e6


def test_everything_is_drawn_and_nothing_complains(page, tab):
    tab.open(page)
    assert list(drawn(tab)) == CHARTS
    assert all(count > 0 for count in drawn(tab).values())
    marks = "'path.js-line, .bars path, .hm image'"
    marks = f"[...document.querySelectorAll('.chart')].map(c => c.querySelectorAll({marks}).length)"
    assert all(tab.get(marks)), tab.get(marks)
    assert tab.problems == []


def test_names_are_only_shown(page, tab):
    tab.open(page)
    assert tab.get("document.title").startswith("Report <script>")
    assert tab.get("document.querySelectorAll('main img, header img').length") == 0
    assert tab.get("document.querySelectorAll('script').length") == 3
    assert "<img" in tab.get("document.getElementById('experiments').textContent")
    assert tab.problems == []


def test_axes_are_switched(page, tab):
    tab.open(page)
    chart = "document.getElementById('chart-accuracy')"
    titles = {}
    for key in ("rounds", "time", "bytes", "energy", "wall"):
        tab.get(f"document.querySelector('#controls-accuracy button[data-key={key}]').click()")
        x = tab.get(f"{chart}.data.find(t => t.name === 'feddd').x")
        titles[key] = (tab.get(f"{chart}.querySelector('.xtitle').textContent"), x[-1])
        assert len(x) == 4
        assert tab.get(f"document.querySelector('#controls-accuracy button[data-key={key}]').ariaPressed") == "true"
    assert len(set(titles.values())) == 5
    assert titles["rounds"] == ("rounds", 4)
    tab.get("document.querySelector('#controls-accuracy button[data-key=loss]').click()")
    assert tab.get(f"{chart}.querySelector('.ytitle').textContent") == "test loss"
    assert tab.problems == []


def test_runs_are_switched(page, tab):
    tab.open(page)
    chart, seen = "document.getElementById('chart-shares')", []
    for place in range(3):
        tab.get(f"(() => {{ const s = document.querySelector('#controls-shares select'); s.value = '{place}'; "
                "s.dispatchEvent(new Event('change')) })()")  # fmt: skip
        seen.append(json.dumps(tab.get(f"{chart}.data[0].z")))
    assert len(set(seen)) == 3


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling(page, tab, dark):
    tab.open(page, width=390, height=844, dark=dark)
    assert tab.get("innerWidth") == 390
    assert tab.get("document.scrollingElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('.main-svg')].filter(s => s.getBoundingClientRect().right > 391).length"
    assert tab.get(wide) == 0
    assert tab.problems == []


def test_dark_is_dark(page, tab):
    shades = []
    for dark in (False, True):
        tab.open(page, dark=dark)
        shades.append(tab.get("getComputedStyle(document.body).backgroundColor"))
        assert tab.get("document.querySelector('#chart-accuracy .xtick text').style.fill")
    assert shades == ["rgb(255, 255, 255)", "rgb(18, 23, 28)"]


def test_it_prints(page, tab, tmp_path):
    tab.open(page, dark=True)
    tab.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert tab.get("document.documentElement.dataset.print") is None  # as it was
    assert tab.problems == []


def test_the_experiment_is_copied(page, tab):
    tab.open(page)
    tab.get("navigator.clipboard.writeText = async (text) => { window.took = text }")  # a page without focus has none
    tab.get("document.querySelector('details').open = true")
    tab.get("document.querySelector('.copy').click()")
    command = tab.wait("window.took")
    assert command.startswith("fedloom run fedavg ")
    assert command == tab.get("document.querySelector('details pre').textContent")


def test_without_a_clipboard_the_experiment_is_marked(page, tab):
    tab.open(page)
    tab.get("navigator.clipboard.writeText = async () => { throw new Error('not allowed') }")
    tab.get("document.querySelector('details').open = true")
    tab.get("document.querySelectorAll('.copy')[1].click()")
    marked = tab.wait("getSelection().toString()")
    assert json.loads(marked)["method"]["name"] == "fedavg"
    assert tab.problems == []
