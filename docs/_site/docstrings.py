"""Conversion of docstrings, which are prose with backticks and lists, to reStructuredText for Sphinx."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

CODE = re.compile(r"`+(.+?)`+")
SPECIAL = re.compile(r"([\\*|_<>])")
SECTIONS = ("Args:", "Returns:", "Raises:")


def prose(text: str) -> str:
    """Turn backticks into literals, and escape everything else that has a meaning."""
    pieces, end = [], 0
    for code in CODE.finditer(text):
        pieces += [SPECIAL.sub(r"\\\1", text[end : code.start()]), f"``{code[1].strip()}``\\ "]
        end = code.end()
    return "".join([*pieces, SPECIAL.sub(r"\\\1", text[end:])])


def _kinds(lines: list[str]) -> Iterator[tuple[tuple[int, str], str]]:
    """Each line with the number and the kind of its block."""
    number, kind = 0, ""
    for line in lines:
        if not line.strip():
            kind = "section" if kind == "section" else ""
        elif line in SECTIONS:
            number, kind = number + 1, "section"
        elif line.startswith("- "):
            number, kind = number + 1, "item"
        elif line.startswith("    ") and kind in ("", "literal"):
            number, kind = number + (kind == ""), "literal"
        elif not (kind == "section" and line.startswith(" ")) and not (kind == "item" and line.startswith("  ")):
            number, kind = number + (kind != "text"), "text"
        if line.strip():
            yield (number, kind), line


def restructured(lines: list[str]) -> list[str]:
    """A docstring's lines: paragraphs, lists, indented blocks as they stand, and sections for napoleon."""
    found: list[str] = []
    for (_, kind), block in groupby(_kinds(lines), key=lambda pair: pair[0]):
        own = [line for _, line in block]
        if kind == "section":
            found += [prose(line) for line in own]
        elif kind == "literal":
            found += ["::", "", *own]
        else:
            found.append(prose(" ".join(line.strip() for line in own)))
        found.append("")
    return found


def _process(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring in place."""
    lines[:] = restructured(lines)


def _sign(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None] | None:
    """Shorten the signature of a validated class, whose fields are listed among the settings."""
    return ("(**values)", None) if what == "class" and issubclass(thing, BaseModel) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers, before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _sign)
    return {"parallel_read_safe": True}
