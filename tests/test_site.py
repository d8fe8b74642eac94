"""The documentation builds without a warning, leads nowhere in vain and leaves nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import fedloom
from fedloom.cli.catalogue import catalogue
from fedloom.cli.main import SETTINGS, Kind, app
from fedloom.cli.setting_rows import setting_rows
from fedloom.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def build(folder: Path) -> None:
    """`make docs`, into another folder."""
    line = re.search(
        r"^docs:.*\n\t(?:.*\s)?\$\(BIN\)/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert line is not None
    words = [word.replace("docs/_build", str(folder)) for word in line[1].split()]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr


def dead_links(site: Path) -> list[str]:
    """Links within the site to files or anchors that are not there."""
    text = {page: page.read_text() for page in site.rglob("*.html")}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', html)) for page, html in text.items()}
    dead = []
    for page, html in text.items():
        for link in map(unescape, re.findall(r'\b(?:href|src)="([^"]+)"', html)):
            if re.match(r"[a-z]+:", link) or page.name == "genindex.html":
                continue
            path, _, anchor = link.partition("#")
            target = page if not path else (page.parent / unquote(path.partition("?")[0])).resolve()
            if not target.exists() or (anchor and target in anchors and unquote(anchor) not in anchors[target]):
                dead.append(f"{page.relative_to(site)}: {link}")
    return dead


def test_the_site(tmp_path):
    build(tmp_path)
    site = tmp_path / "html"
    assert not dead_links(site.resolve())
    pages = {page.name: page.read_text() for page in site.glob("*.html")}
    for page in DOCS.glob("*.md"):
        assert f"{page.stem}.html" in pages["index.html"], f"{page.name} is not in the navigation"
    for name in fedloom.__all__:
        thing = getattr(fedloom, name)
        assert f'id="{thing.__module__}.{thing.__qualname__}"' in pages["reference-python.html"], name
    for row in catalogue("parts"):
        assert f'<span class="pre">{row.name.split()[-1]}</span>' in pages["reference-parts.html"], row.name
    for name, maker in METHODS.items():
        assert f'id="{maker.__module__}.{maker.__name__}"' in pages["reference-methods.html"], name
    for command in (*app.registered_commands, *app.registered_groups):
        assert f"fedloom {command.name}" in pages["reference-commands.html"], command.name
    for kind in Kind:
        rows = setting_rows(kind.value) if kind in SETTINGS else catalogue(kind.value)
        for row in rows if kind not in (Kind.parts, Kind.settings) else []:
            assert f'<span class="pre">{row.name}</span>' in pages["reference-settings.html"], row.name
    for name, html in pages.items():  # nothing is fetched from elsewhere
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]+"', html), name


def test_dead_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a> <a href="c.html">c</a> <a href="#me" id="me">me</a>')
    (tmp_path / "b.html").write_text('<p id="there">')
    assert dead_links(tmp_path) == ["a.html: b.html#here", "a.html: c.html"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("reference-*.md")), ids=lambda page: page.stem)
def test_reference_pages_are_whole_in_a_clone(page, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from _site.generated import in_clone

    assert page.read_text() == in_clone(page), "make reference"


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("Says `x * y` and a*b.", ["Says ``x * y``\\  and a\\*b.", ""]),
        ("Two:\n- one\n  more\n- two\nAfter.", ["Two:", "", "- one more", "", "- two", "", "After.", ""]),
        ("See:\n\n    v = |w|\n\nEnd_.", ["See:", "", "::", "", "    v = |w|", "", "End\\_.", ""]),
        ("Args:\n    a: one.\n    b: `two`.", ["Args:", "    a: one.", "    b: ``two``\\ .", ""]),
        ("Spread `over\nlines`.", ["Spread ``over lines``\\ .", ""]),
    ],
)
def test_docstrings_are_turned(text, turned, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from _site.docstrings import restructured

    assert restructured(text.split("\n")) == turned
