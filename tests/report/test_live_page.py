"""The live page of a run: what it shows, what it does not do, and that it renews itself in a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedloom.errors import BadExperiment
from fedloom.report.live import read_progress
from fedloom.report.live_page import part, serve_live, whole
from fedloom.web import Web
from pages import get
from report.browser import Tab, browser

NASTY = '<script>alert(1)</script> & "more"'


@pytest.fixture
def running(plain) -> Path:
    """A run that is not over, whose log holds what a node may have said."""
    folder = Path(plain("run"))
    with (folder / "log.txt").open("a") as log:
        log.write(f"2026-01-01 00:00:00,000 WARNING node 3 failed in round 2: {NASTY}\n")
    return folder


@pytest.fixture
def page(running: Path) -> Iterator[Web]:
    web = serve_live(running).start()
    yield web
    web.close()


def plainly(html: str) -> str:
    """The words of a page."""
    return " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", html, flags=re.S).split())


def test_what_it_shows(running: Path) -> None:
    text = plainly(whole(running).body)
    assert "fedavg on digits" in text
    assert "rounds 4 of 4" in text
    assert f"accuracy {read_progress(running).rows[-1]['score']:.4f}" in text
    assert "goes on" in text
    (running / "checkpoint" / "lock").write_text(f"{2**30}\n")  # more than any process's number
    assert "does not go on: its process is not on this machine" in plainly(part(running).body)
    assert "<polyline" in whole(running).body
    (running / "log.txt").write_text("2026-01-01 00:00:00,000 INFO stopped: a full disk\n")
    assert "stopped: a full disk" in plainly(part(running).body)


def test_what_nodes_say_is_only_shown(running: Path) -> None:
    body = whole(running).body
    assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;more&quot;" in body
    assert body.count("<script>") == 1


def test_its_pages(page: Web, running: Path) -> None:
    found = get(page.port, "/")
    assert (found.status, found.kind) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in found.text
    assert get(page.port, "/live").text == part(running).body
    assert "plotly" in get(page.port, "/report").text
    (running / "experiment.json").unlink()
    assert get(page.port, "/live").status == 503


def test_a_run_without_rounds(running: Path) -> None:
    (running / "rounds.parquet").unlink()
    (running / "log.txt").unlink()
    text = plainly(whole(running).body)
    assert "rounds 0 of 4" in text
    assert "there is no log yet" in text


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match="is not a run folder"):
        serve_live(tmp_path)


def test_the_command(running: Path) -> None:
    """It says where the page is, serves it, and ends with Ctrl-C."""
    words = [sys.executable, "-u", "-m", "fedloom", "watch", str(running), "--web"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as command:
        try:
            assert command.stdout is not None
            said = command.stdout.readline()
            port = int(said.split("localhost:")[1].split("/")[0])
            assert "fedavg on digits" in get(port, "/").text
            command.send_signal(signal.SIGINT)
            assert command.wait(60) == 130
        finally:
            command.kill()


def heed_interrupts() -> None:
    """A process that runs in the background of a shell is deaf to Ctrl-C, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def test_it_renews_itself_in_a_browser(page: Web, running: Path, tab: Tab) -> None:
    """Nothing complains, and no script of a node's is run."""
    for area in ("Runtime", "Log", "Page"):
        tab.ask(f"{area}.enable")
    tab.ask("Page.navigate", url=f"http://127.0.0.1:{page.port}/")
    tab.wait("document.querySelectorAll('table tbody tr').length")
    with (running / "log.txt").open("a") as log:
        log.write("2026-01-01 00:00:00,000 INFO finished\n")
    tab.wait("document.querySelector('.now').textContent.includes('finished')")
    assert tab.problems == []
    page.close()
    tab.wait("document.getElementById('live').classList.contains('gone')")
