"""Federated learning on weak, uneven, unreliable fleets."""

from importlib.metadata import version as _version

from fedloom.accel.fast_import import uncollected as _uncollected

with _uncollected():
    from fedloom.adapters import lora
    from fedloom.chance import Chance
    from fedloom.cli.progress_bar import ProgressBar
    from fedloom.core.goal import Goal, Targets
    from fedloom.core.metric import FromTorchmetrics, Mean, Sums, Whole
    from fedloom.core.rule import LocalRule
    from fedloom.core.types import Cohort, Fleet, Reply, Setting, Task
    from fedloom.data.augment.mixing import Seeded
    from fedloom.data.dataset import Dataset
    from fedloom.data.from_columns import from_frame
    from fedloom.data.from_hub import from_hub
    from fedloom.data.from_images import from_images
    from fedloom.data.from_torch import from_clients, from_torch
    from fedloom.data.load import load as load_data
    from fedloom.data.prepare import from_arrays
    from fedloom.data.sources import as_dataset
    from fedloom.errors import BadData, BadExperiment, BadModel, FedloomError, RunStopped
    from fedloom.layout import Layout, flatten, layout_of, load as load_vector
    from fedloom.method import Method
    from fedloom.models.reader import Reader
    from fedloom.neurons.extract import extract, scatter
    from fedloom.neurons.map import NeuronMap
    from fedloom.neurons.rules import neuron_rule
    from fedloom.neurons.trace import neuron_map
    from fedloom.parts.local.chain import Chain
    from fedloom.report.results import load_result
    from fedloom.round import play_round
    from fedloom.runs.checkpoint.saver import Checkpoints
    from fedloom.runs.device_model import DeviceModel, device_model
    from fedloom.runs.experiment import Experiment
    from fedloom.runs.export import export_model
    from fedloom.runs.load_model import load_model
    from fedloom.runs.play import resume, run
    from fedloom.runs.result import Result
    from fedloom.runs.watch import Callback
    from fedloom.studies.compare import compare
    from fedloom.studies.space import Range
    from fedloom.studies.sweep import sweep

__version__ = _version("fedloom")

__all__ = [
    "BadData",
    "BadExperiment",
    "BadModel",
    "Callback",
    "Chain",
    "Chance",
    "Checkpoints",
    "Cohort",
    "Dataset",
    "DeviceModel",
    "Experiment",
    "FedloomError",
    "Fleet",
    "FromTorchmetrics",
    "Goal",
    "Layout",
    "LocalRule",
    "Mean",
    "Method",
    "NeuronMap",
    "ProgressBar",
    "Range",
    "Reader",
    "Reply",
    "Result",
    "RunStopped",
    "Seeded",
    "Setting",
    "Sums",
    "Targets",
    "Task",
    "Whole",
    "as_dataset",
    "compare",
    "device_model",
    "export_model",
    "extract",
    "flatten",
    "from_arrays",
    "from_clients",
    "from_frame",
    "from_hub",
    "from_images",
    "from_torch",
    "layout_of",
    "load_data",
    "load_model",
    "load_result",
    "load_vector",
    "lora",
    "neuron_map",
    "neuron_rule",
    "play_round",
    "resume",
    "run",
    "scatter",
    "sweep",
]
