"""`load_model`, the trained network of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from fedloom.data.sources import as_dataset
from fedloom.errors import BadModel
from fedloom.layout import layout_of, load as load_into
from fedloom.reading.tensors import read_tensors
from fedloom.runs.adapter import with_adapter
from fedloom.runs.base import hash_of_base
from fedloom.runs.dealing import dataset_of
from fedloom.runs.folder import base_in, experiment_in
from fedloom.runs.inputs import network_of


def load_model(folder: str | Path, data: Any = None) -> nn.Module:
    """Load the trained network of the run in `folder`, in evaluation mode.

    The network is built as in the run: a network of your own is found at its path, from the same working directory, and
    what it holds besides the run's trained numbers (frozen parameters, constants) must be what the run had. Give the
    `data` that `run` was given in place of the experiment's, if any: the network's size depends on them.
    """
    experiment, file = experiment_in(Path(folder)), Path(folder) / "model.safetensors"
    if not file.is_file():
        raise BadModel(f"there is no '{file}': the run has not finished a round yet, or was kept elsewhere.")
    goal = experiment.build_goal()
    dataset = dataset_of(experiment, goal, None if data is None else as_dataset(data))
    network = with_adapter(experiment, network_of(experiment, dataset, goal.outputs(dataset)))
    saved = read_tensors(file)
    try:
        layout = layout_of(network, frozenset(saved))
        fits = dict(zip(layout.names, layout.shapes)) == {name: tuple(value.shape) for name, value in saved.items()}
    except BadModel:  # nothing in it is trained
        fits = False
    if not fits:
        raise BadModel(
            f"the weights in '{file}' are not those of model '{experiment.model.name}'. If `run` was given a network "
            "in its place, load them into that: network.load_state_dict(load_file(file), strict=False)."
        )
    if hash_of_base(network, layout) != base_in(Path(folder)):
        raise BadModel(
            f"the frozen parts of model '{experiment.model.name}' are not those of the run in '{folder}', which does "
            "not save them; give the model the files that it was built from then."
        )
    return load_into(network, layout, layout.join(saved, 0)).eval()
