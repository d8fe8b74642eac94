"""The methods by name: one paper, one file."""

from collections.abc import Callable

from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.feddc import feddc
from fedloom.methods.feddyn import feddyn
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fjord import fjord
from fedloom.methods.scaffold import scaffold

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "feddc": feddc,
    "federated-dropout": federated_dropout,
    "fjord": fjord,
    "fedrolex": fedrolex,
}
