"""The notebook of the documentation: it runs, and what it shows is what its file has."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from documented import ROOT

pytest.importorskip("nbclient", reason="nbclient is not installed here")
pytest.importorskip("ipykernel", reason="ipykernel is not installed here")

FILE = ROOT / "docs" / "example-notebook.ipynb"
OURS = runpy.run_path(str(ROOT / "docs" / "_site" / "notebook.py"))


def outputs_of(notebook: Any) -> list[dict[str, Any]]:
    """What the cells show, without what they print."""
    return [one.get("data", {}) for cell in notebook["cells"] for one in cell.get("outputs", ())]


def test_the_file_was_executed_as_it_is_written() -> None:
    stored = json.loads(FILE.read_text())
    texts = ["".join(cell["source"]) for cell in stored["cells"]]
    assert texts == [text for _, text in OURS["CELLS"]], "run `python docs/_site/notebook.py`"
    assert any("image/png" in data for data in outputs_of(stored))
    assert sum("<table" in "".join(data.get("text/html", "")) for data in outputs_of(stored)) >= 5


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(tmp_path: Path) -> None:
    found = OURS["executed"](OURS["made"](), tmp_path)
    shown = outputs_of(found)
    assert any(len(data.get("image/png", "")) > 5000 for data in shown), "the picture"
    tables = ["".join(data["text/html"]) for data in shown if "text/html" in data]
    for words in ("fedprox on digits", "<svg", "conv1", "Uniform(count=10)", "personal_score"):
        assert any(words in table for table in tables), words
