"""`export_model`: a device's network as a file for ONNX, torch.export or ExecuTorch, compared before it is written."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedloom.errors import BadExperiment, BadModel
from fedloom.files import replace_file, writing
from fedloom.method import Method
from fedloom.runs.device_model import DeviceModel, device_model

TOLERANCE = 1e-5  # of the largest answer, and at least this
TRIED = 16  # examples that a written network is tried with

Run = Callable[[Tensor], list[Tensor]]


class Exported(NamedTuple):
    """A network that was written, and how it was checked."""

    file: Path
    form: str  # in words
    runtime: str  # that ran it
    bytes: int
    parameters: int
    whole: int  # parameters of the whole network
    input: tuple[int, ...]  # shape, batch first
    examples: int  # that it was tried with
    difference: float  # the largest from PyTorch's answers, relative to the largest answer
    round: int
    notes: tuple[str, ...]


class Form(NamedTuple):
    """A form of files: what it needs, and how it is written and run."""

    name: str
    runtime: str
    needs: tuple[str, ...]
    install: str
    write: Callable[[nn.Module, Tensor], bytes]
    start: Callable[[bytes], Run]


def export_model(
    run: str | Path,
    out: str | Path,
    share: float | None = None,
    client: int | None = None,
    *,
    batch: int = 1,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Any = None,
) -> Exported:
    """Write the network that a device of a run holds, after trying the file's contents against PyTorch.

    Args:
        run: a run folder.
        out: the file; its ending says the form: `.onnx`, `.pt2` (torch.export) or `.pte` (ExecuTorch).
        share: the fraction of every layer's neurons that the device can afford; see `device_model`.
        client: the client's number; see `device_model`.
        batch: examples in one call of the exported network.
        method: what `run` was given in place of the experiment's, if anything.
        model: likewise.
        data: likewise.

    Nothing is written if the answers differ by more than 1e-5 of the largest, on examples of the test set.
    """
    file = Path(out)
    form = form_of(file)
    if batch < 1:
        raise BadExperiment(f"batch is {batch}; expected 1 or more examples in a call.")
    made = device_model(run, share, client, method=method, model=model, data=data)
    return write_network(made, file, form, batch)


def form_of(file: Path) -> Form:
    """The form that a file's ending stands for; refused if what it needs is not installed."""
    form = FORMS.get(file.suffix.lower())
    if form is None:
        raise BadExperiment(f"out is '{file}'; expected a file that ends in {', '.join(FORMS)}.")
    missing = [name for name in form.needs if find_spec(name) is None]
    if missing:
        raise BadExperiment(
            f"{file.suffix} files need {' and '.join(missing)}, not installed here; {form.install} installs what is "
            "missing."
        )
    return form


def write_network(made: DeviceModel, file: Path, form: Form, batch: int = 1) -> Exported:
    """Write a device's network in one form, if it gives PyTorch's answers on examples of the test set."""
    examples = made.examples[: max(TRIED // batch, 1) * batch].cpu()
    if len(examples) % batch:
        raise BadExperiment(f"batch is {batch}, and the test set has {len(made.examples)} examples to try it with.")
    batches = list(examples.split(batch))
    with torch.no_grad(), quiet():
        try:
            contents = form.write(made.network, batches[0])
        except Exception as problem:
            raise BadModel(_refusal(form, problem)) from problem
        answers = form.start(contents)
        difference = max(_difference(made.network(x), answers(x)) for x in batches)
    if not difference <= TOLERANCE:
        raise BadModel(
            f"the network written for {form.name} differs from PyTorch's by {difference:.1e} of the largest answer in "
            f"{form.runtime}; expected at most {TOLERANCE:.0e}. Nothing was written."
        )
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, [contents])
    return Exported(
        file, form.name, form.runtime, len(contents), made.parameters, made.whole, tuple(batches[0].shape),
        len(examples), difference, made.round, made.notes,
    )  # fmt: skip


def _refusal(form: Form, problem: Exception) -> str:
    """Why a network cannot be written in a form."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    why = f"{type(problem).__name__}: {(lines or ['no reason given'])[0]}"
    return (
        f"this network cannot be written for {form.name}, whose exporter stopped ({why}); "
        f"try another of {', '.join(FORMS)}."
    )


def _difference(expected: Any, found: list[Tensor]) -> float:
    """The largest difference of answers, relative to the largest; infinite where shapes differ or numbers are NaN."""
    wanted = [x for x in tree_leaves(expected) if isinstance(x, Tensor)]
    if [x.shape for x in wanted] != [x.shape for x in found]:
        return float("inf")
    worst = 0.0
    for ours, theirs in zip(wanted, found):
        if ours.numel():
            gap = (ours.double() - theirs.double()).abs().max() / ours.double().abs().max().clamp(min=1)
            worst = max(worst, float(gap.nan_to_num(nan=torch.inf)))
    return worst


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' own warnings and log lines."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "executorch", "torch._dynamo")
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _write_onnx(network: nn.Module, x: Tensor) -> bytes:
    """The network as ONNX."""
    program = torch.onnx.export(
        network, (x,), dynamo=True, verbose=False, input_names=["input"], output_names=["output"]
    )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def _start_onnx(contents: bytes) -> Run:
    """onnxruntime on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(answer) for answer in session.run(None, {name: x.numpy()})]


def _write_program(network: nn.Module, x: Tensor) -> bytes:
    """The network as a program of torch.export."""
    torch.export.save(torch.export.export(network, (x,)), file := io.BytesIO())
    return file.getvalue()


def _start_program(contents: bytes) -> Run:
    """The program's module, loaded again."""
    module = torch.export.load(io.BytesIO(contents)).module()
    return lambda x: [y for y in tree_leaves(module(x)) if isinstance(y, Tensor)]


def _write_executorch(network: nn.Module, x: Tensor) -> bytes:
    """The network for ExecuTorch, with its portable kernels."""
    from executorch.exir import to_edge_transform_and_lower

    return bytes(to_edge_transform_and_lower(torch.export.export(network, (x,))).to_executorch().buffer)


def _start_executorch(contents: bytes) -> Run:
    """ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(contents).load_method("forward")
    return lambda x: [y.clone() for y in method.execute([x.contiguous()])]


FORMS = {
    ".onnx": Form(
        "ONNX", "onnxruntime", ("onnx", "onnxscript", "onnxruntime"), "pip install 'fedloom[device]'", _write_onnx,
        _start_onnx,
    ),
    ".pt2": Form("torch.export", "torch.export's module", (), "", _write_program, _start_program),
    ".pte": Form(
        "ExecuTorch", "the ExecuTorch runtime", ("executorch",), "pip install executorch", _write_executorch,
        _start_executorch,
    ),
}  # fmt: skip
