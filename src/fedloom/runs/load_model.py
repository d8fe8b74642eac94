"""`load_model`, the trained network of a finished run."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from fedloom.data.dataset import Dataset
from fedloom.data.load import load
from fedloom.errors import BadModel
from fedloom.runs.folder import experiment_in
from fedloom.runs.inputs import network_of


def load_model(folder: str | Path, data: Dataset | None = None) -> nn.Module:
    """Load the trained network of the run in `folder`, in evaluation mode.

    The network is built as in the run: a network of your own is found at its path, from the same working directory.
    Give the `data` that `run` was given in place of the experiment's, if any: the network's size depends on them.
    """
    experiment, file = experiment_in(Path(folder)), Path(folder) / "model.safetensors"
    if not file.is_file():
        raise BadModel(f"there is no '{file}': the run has not finished a round yet, or was kept elsewhere.")
    dataset = data or load(experiment.data.name, **experiment.data.settings)
    network, saved = network_of(experiment, dataset, experiment.build_goal().outputs(dataset)), load_file(file)
    own = {name: value.shape for name, value in network.state_dict().items() if value.is_floating_point()}
    if own != {name: value.shape for name, value in saved.items()}:
        raise BadModel(
            f"the weights in '{file}' are not those of model '{experiment.model.name}'. If `run` was given a network "
            "in its place, load them into that: network.load_state_dict(load_file(file), strict=False)."
        )
    network.load_state_dict(saved, strict=False)  # the batch counters of norm layers are not saved
    return network.eval()
