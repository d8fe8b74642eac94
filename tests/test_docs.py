"""Code that the README and the documentation show runs as shown, only shorter."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from documented import PAGES, PLAIN, ROOT, Block, blocks_of, commands, play, skipped, stand_ins
from fedloom.data.load import load

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
RUN = [page for page in PAGES if any(block.language in ("python", "sh") for block in blocks_of(page))]
NETWORK = """
from torch import nn

class MyNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    """An empty place, with stand-ins for data that the repository does not have."""
    stand_ins(tmp_path / "data")
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")  # as for a script that lies there
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    for name, module in list(sys.modules.items()):  # pages may call different files alike
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def readers_own(page: Path) -> None:
    """What the README calls the reader's own, and does not show."""
    if page.name == "README.md":
        Path("my_net.py").write_text(NETWORK)
        method = next(block.text for block in blocks_of(page) if "def my_method" in block.text)
        Path("my_method.py").write_text(method)
        data = load("digits")
        np.savez("my_images.npz", **{name: getattr(data, name) for name in data._fields[1:5]})


@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(ROOT)) for page in RUN])
def test_a_page_runs(page, monkeypatch):
    readers_own(page)
    code = [block for block in blocks_of(page) if block.language in ("python", "sh")]
    assert play(page, monkeypatch) > 0 or all(map(skipped, code))


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(monkeypatch):
    play(ROOT / "docs" / "tutorial.md", monkeypatch, quick=False)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_run_or_say_why_not(page):
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        known = block.language in ("python", "sh", *PLAIN) or block.language.startswith("{") or block.meant("file:")
        assert known, f"{where}: ```{block.language} is not run; use python or sh, or text for what is only read"
        if block.language in PLAIN:
            assert not any(line.startswith(("fedloom ", "$ fedloom ")) for line in block.text.splitlines()), where
        if (why := block.meant("not run:")) is not None:
            assert len(why.split()) >= 2, f"{where}: why is it not run?"


def test_pages_that_must_show_something_do():
    for page in PAGES:
        if page.name.startswith(("tutorial", "how-to-", "example-", "explanation-")):
            assert page in RUN, f"{page.name} shows nothing that runs"


def test_a_block_that_fails_is_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        play(page, monkeypatch)
    page.write_text("```sh\nfedloom run nothing-like-it\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:1: fedloom run nothing-like-it"):
        play(page, monkeypatch)
    page.write_text("```sh\ntorchrun it\n```\n")
    with pytest.raises(AssertionError, match="say why"):
        play(page, monkeypatch)
    page.write_text("<!-- not run: needs two machines -->\n```sh\ntorchrun it\n```\n")
    assert play(page, monkeypatch) == 0


def test_marks_are_read():
    assert skipped(Block(1, "sh", "run with: no_such_module", ""))
    assert not skipped(Block(1, "sh", "run with: numpy", ""))
    assert skipped(Block(1, "sh", "run once there is: fedloom nonsense", ""))
    assert not skipped(Block(1, "sh", "run once there is: fedloom run", ""))
    assert commands("a 'b c' \\\n  d  # why\n\n# e\nf") == [["a", "b c", "d"], ["f"]]
