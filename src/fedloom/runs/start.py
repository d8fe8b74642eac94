"""Initial weights from a file: of an earlier run's folder, or in any file of safetensors with the network's names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import Layout, load, tensors_of
from fedloom.reading.tensors import read_tensors

MODEL = "model.safetensors"


def begin_with(source: str | Path, layout: Layout, *modules: nn.Module) -> None:
    """Write the weights of `source` into modules that share a layout; what does not fit is refused by its name."""
    file = _file(Path(source).expanduser())
    saved, wanted, first = read_tensors(file), tensors_of(modules[0]), dict(layout.aliases)
    found = {first.get(name, name): value for name, value in saved.items()}
    for name in layout.names:
        if name not in found:
            raise BadModel(f"'{file}' has no tensor for '{name}' of the network; it has {_some(saved)}.")
        _check(file, name, found[name], wanted[name])
    for name, value in found.items():
        if name not in wanted:
            raise BadModel(f"'{file}' has a tensor '{name}', which the network lacks; it has {_some(wanted)}.")
        if name not in layout.names and value.is_floating_point():  # whole numbers count batches
            _check(file, name, value, wanted[name])
            if not torch.equal(value.to(wanted[name].device), wanted[name]):
                raise BadModel(
                    f"tensor '{name}' in '{file}' differs from the network's, where it is frozen; build the network "
                    "from what it was built from then, or leave the tensor out of the file."
                )
    for module in modules:
        load(module, layout, layout.join({name: found[name].to(wanted[name]) for name in layout.names}, 0))


def names_in(source: str | Path) -> set[str]:
    """The names of the tensors in a run's folder or file."""
    return set(read_tensors(_file(Path(source).expanduser())))


def _file(path: Path) -> Path:
    """The file with the weights."""
    if path.is_dir():
        if not (path / MODEL).is_file():
            raise BadModel(
                f"start is '{path}', and there is no {MODEL} in it: the folder is none of a run, or the run has not "
                "ended or stopped yet; resume it first."
            )
        return path / MODEL
    if not path.is_file():
        raise BadModel(f"start is '{path}', which does not exist; expected the folder of a run or a .safetensors file.")
    return path


def _check(file: Path, name: str, found: Tensor, wanted: Tensor) -> None:
    """Refuse a tensor of another shape or type, or with numbers that are none."""
    if found.shape != wanted.shape:
        raise BadModel(
            f"tensor '{name}' in '{file}' has shape {list(found.shape)}, and the network's has {list(wanted.shape)}; "
            "expected the same network, on data with as many inputs and classes."
        )
    if found.dtype != wanted.dtype:
        raise BadModel(
            f"tensor '{name}' in '{file}' is {found.dtype}, and the network's is {wanted.dtype}; convert it first."
        )
    if not bool(found.isfinite().all()):
        raise BadModel(f"tensor '{name}' in '{file}' has numbers that are infinite or NaN; the model has diverged.")


def _some(names: dict[str, Tensor]) -> str:
    """The first names of a file."""
    listed = list(names)
    return (", ".join(listed[:8]) or "none") + (" ..." if len(listed) > 8 else "")
