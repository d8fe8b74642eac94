"""The code that pages show, and how it is run: a page's blocks in order, in one folder and one namespace.

A comment on the line before a block says what else is to be done with it; nobody sees it on the page:
`<!-- file: NAME -->` the block is that file's text; `<!-- not run: WHY -->`; `<!-- run with: MODULE -->` only where
that is installed; `<!-- run once there is: fedloom COMMAND -->`; `<!-- quick: OPTIONS -->` are added to its commands.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedloom.cli.main import app, main

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?(?P<fence>`{3,}|:{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.M | re.S,
)
LONG = re.compile(r"\brounds=\d\d+")  # in Python; two are as good
PLAIN = ("", "text")  # what is only read
QUICK = {
    "run": ["--rounds", "2"],
    "compare": ["--rounds", "2", "--seeds", "1"],
    "plan": ["--rounds", "2", "--seeds", "1", "--methods", "fedavg,feddd"],
    "sweep": ["--rounds", "2", "--seeds", "1"],
    "bench": ["--list"],  # it measures the machine first, which takes a quarter of a minute; tests/bench do that
    "reproduce": ["--list"],  # tests/recipes run some
    "trial": ["--help"],  # tests/flower start real processes
}


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    mark: str  # the comment before it
    text: str

    def meant(self, start: str) -> str | None:
        """What follows `start` in the mark; None: it is another mark."""
        return self.mark.removeprefix(start).strip() if self.mark.startswith(start) else None


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [Block(text.count("\n", 0, m.start()) + 1, m["language"].strip(), m["mark"] or "", m["text"]) for m in found]


def commands(text: str) -> list[list[str]]:
    """The commands of a block as a shell reads them, without comments."""
    lines = (shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def skipped(block: Block) -> bool:
    """Is it not to be run here?"""
    if (module := block.meant("run with:")) is not None:
        return find_spec(module) is None
    if (line := block.meant("run once there is:")) is not None:
        return line.split()[1] not in {command.name for command in (*app.registered_commands, *app.registered_groups)}
    return block.meant("not run:") is not None


def play(page: Path, monkeypatch: pytest.MonkeyPatch, quick: bool = True) -> int:
    """Run a page's blocks in the current folder; how many there were to run."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    done = 0
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if (name := block.meant("file:")) is not None:
            Path(name).write_text(block.text)
        elif block.language in PLAIN or block.language.startswith("{") or skipped(block):
            continue
        elif block.language == "python":
            code = LONG.sub("rounds=2", block.text) if quick else block.text
            exec(compile("\n" * block.line + code, str(page), "exec"), namespace)
        else:
            for words in commands(block.text):
                more = shlex.split(block.meant("quick:") or "")
                command(words, where, monkeypatch, more if quick else None)
        done += 1
    return done


def command(words: list[str], where: str, monkeypatch: pytest.MonkeyPatch, quick: list[str] | None) -> None:
    """Run one command line; `quick` options shorten it, None leaves it as it is."""
    if words[0] == "fedloom":
        words = words if quick is None else [*words, *QUICK.get(words[1], ()), *quick]
        words = [one for word in words for one in (sorted(glob(word)) if "*" in word else [word])]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, f"{where}: {shlex.join(words)} ended with {end.value.code}"
    elif words[0] == "python" and words[1].endswith(".py"):
        script = ROOT / words[1] if words[1].startswith("examples/") else Path(words[1])
        monkeypatch.setattr(sys, "argv", [*words[1:], *(quick or ())])
        runpy.run_path(str(script), run_name="__main__")
    else:
        raise AssertionError(
            f"{where}: {shlex.join(words)} is not run; say why before the block: <!-- not run: ... -->"
        )


def stand_ins(folder: Path) -> None:
    """Small invented data under the names and with the shapes of those that pages mention."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, shape, classes in (("mnist", (28, 28), 10), ("cifar10", (32, 32, 3), 10)):
        arrays = {}
        for part, count in (("train", 200), ("test", 50)):
            arrays[f"x_{part}"] = rng.integers(0, 256, (count, *shape), np.uint8)
            arrays[f"y_{part}"] = np.arange(count) % classes
        np.savez(folder / f"{name}.npz", **arrays)
