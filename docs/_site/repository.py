"""Pages that show files of the repository outside `docs/`, for links to such files.

In a repository browser such a link, `../src/fedloom/round.py`, works as it is; in the site the file is rendered:
Markdown as text, everything else as highlighted code. Links between files that are shown work too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_it import MarkdownIt
from sphinx.application import Sphinx

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
FOLDER = "repository"  # of the site
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", "": "make", ".csv": "text"}
SCHEME = "repository"
MARKDOWN_LINK = re.compile(r"\]\((\.\./[^)#\s]+)\)")
LINK = re.compile(r'(href|src)="([^":#]+)(#[^"]*)?"')


def page_of(file: Path) -> str:
    """The name of the page that shows a file."""
    return f"{FOLDER}/{file.relative_to(ROOT).as_posix()}"


def _mark(app: Sphinx, page: str, source: list[str]) -> None:
    """Before a page is parsed: give links to such files their own scheme."""
    base = Path(app.env.doc2path(page)).parent

    def marked(match: re.Match[str]) -> str:
        file = Path(os.path.normpath(base / match[1]))
        ours = file.is_file() and file.is_relative_to(ROOT) and not file.is_relative_to(DOCS)
        return f"]({SCHEME}:{file.relative_to(ROOT).as_posix()})" if ours else match[0]

    source[0] = MARKDOWN_LINK.sub(marked, source[0])


def _turn(app: Sphinx, tree: nodes.document, page: str) -> None:
    """When a page is written: point such links to the file's page."""
    for node in tree.findall(nodes.reference):
        if node.get("refuri", "").startswith(f"{SCHEME}:"):
            file = ROOT / node["refuri"].removeprefix(f"{SCHEME}:")
            _shown(app).add(file)
            node["refuri"] = app.builder.get_relative_uri(page, page_of(file))


def _shown(app: Sphinx) -> set[Path]:
    """The files that are linked to."""
    if not hasattr(app, "fedloom_shown"):
        app.fedloom_shown = set()  # type: ignore[attr-defined]
    found: set[Path] = app.fedloom_shown  # type: ignore[attr-defined]
    return found


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that is linked to, directly or from such a file."""
    waiting, seen = set(_shown(app)), set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        body, more = _body(app, file)
        waiting |= more - seen
        name = file.relative_to(ROOT).as_posix()
        yield page_of(file), {"title": name, "body": body, "parents": [], "toc": "", "display_toc": False}, "page.html"


def _body(app: Sphinx, file: Path) -> tuple[str, set[Path]]:
    """A file as HTML, and the files that it links to."""
    name = file.relative_to(ROOT).as_posix()
    if file.suffix != ".md":
        language = LANGUAGES.get(file.suffix, "text")
        code = app.builder.highlighter.highlight_block(file.read_text(), language)  # type: ignore[attr-defined]
        return f"<h1><code>{escape(name)}</code></h1>{code}", set()
    found: set[Path] = set()

    def turned(match: re.Match[str]) -> str:
        path, rest = Path(os.path.normpath(file.parent / match[2])), match[3] or ""
        if path.is_relative_to(DOCS) and path.suffix == ".md":
            page = path.relative_to(DOCS).with_suffix("").as_posix()
        elif path.is_file() and path.is_relative_to(ROOT) and match[1] == "href":
            found.add(path)
            page = page_of(path)
        else:
            return 'title="in the repository"' if match[1] == "href" else match[0]
        return f'href="{app.builder.get_relative_uri(page_of(file), page)}{rest}"'

    html = MarkdownIt("commonmark").enable("table").render(file.read_text())
    html = html.replace("<table>", '<div class="table-wrapper docutils container"><table class="docutils">')
    html = html.replace("</table>", "</table></div>").replace("<code>", '<code class="docutils literal notranslate">')
    return LINK.sub(turned, html), found


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers that run when pages are read and written."""
    app.connect("source-read", _mark)
    app.connect("doctree-resolved", _turn)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
