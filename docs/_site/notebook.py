"""Write and execute the notebook of the documentation: `python docs/_site/notebook.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FILE = Path(__file__).parent.parent / "example-notebook.ipynb"
TEXT, CODE = new_markdown_cell, new_code_cell
CELLS: tuple[tuple[Any, str], ...] = (
    (
        TEXT,
        """# Federated learning in a notebook

Runs, methods and experiments show themselves as tables. Needs `pip install 'fedloom[notebook]'`.""",
    ),
    (
        CODE,
        """from fedloom import Experiment, ProgressBar, run

experiment = Experiment(method="fedprox", clients=20, rounds=15, training={"epochs": 1}, split=(0.8, 0, 0.2))
experiment""",
    ),
    (TEXT, "A callback shows a bar while the run goes on."),
    (
        CODE,
        """result = run(experiment, callbacks=[ProgressBar()])
result""",
    ),
    (TEXT, "The rounds are a pandas DataFrame, and columns can be drawn."),
    (CODE, 'result.frame()[["score", "personal_score", "loss", "bytes_up"]].tail(3)'),
    (CODE, 'result.plot("score", "personal_score")'),
    (TEXT, "What differs from FedAvg is a method's text; a table has all its parts."),
    (
        CODE,
        """method = experiment.build_method()
print(method)
method""",
    ),
    (TEXT, "Which neurons a network has that clients may leave out:"),
    (
        CODE,
        """import torch

from fedloom import neuron_map
from fedloom.models import build

neuron_map(build("cnn1", (1, 28, 28), 10, 0), torch.zeros(2, 1, 28, 28))""",
    ),
    (TEXT, "Settings are tried equally for several methods; the best is chosen on validation examples."),
    (
        CODE,
        """from fedloom import Range, sweep

space = {"rate": Range(0.02, 0.5), "mu": Range(0.01, 1.0)}
found = sweep(experiment, space, ["fedavg", "fedprox"], seeds=(0, 1), search="random", trials=4)
{name: (cell.settings, round(cell.test.mean, 3)) for name, cell in found.best.items()}""",
    ),
)


def made() -> Any:
    """The notebook, not executed."""
    cells = [kind(text) for kind, text in CELLS]
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"  # the same in every build
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with its outputs, run in a folder; an error in a cell is raised."""
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(made(), FILE.parent), FILE)
