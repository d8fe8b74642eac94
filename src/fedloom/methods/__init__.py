"""All methods by name, one file per paper, and the parts that only one method needs."""

from collections.abc import Callable

from fedloom.method import Method
from fedloom.methods.fedasync import fedasync
from fedloom.methods.fedat import CrossTier, fedat
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedbuff import fedbuff
from fedloom.methods.fedcs import fedcs
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.feddd import feddd
from fedloom.methods.feddyn import DynamicRegulariser, feddyn
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedit import fedit
from fedloom.methods.fedmp import fedmp
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fedselect import GlobalPart, fedselect
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fedumf import fedumf
from fedloom.methods.fedvarp import fedvarp
from fedloom.methods.ffa_lora import ExactMean, ffa_lora
from fedloom.methods.fjord import fjord
from fedloom.methods.flexlora import flexlora
from fedloom.methods.hermes import hermes
from fedloom.methods.heterofl import Rescale, heterofl
from fedloom.methods.hetlora import hetlora
from fedloom.methods.ist import Evenly, ist
from fedloom.methods.loom import loom
from fedloom.methods.mifa import mifa
from fedloom.methods.oap import Erasing, oap
from fedloom.methods.oort import oort
from fedloom.methods.power_of_choice import power_of_choice
from fedloom.methods.prunefl import prunefl
from fedloom.methods.ra_fed import ra_fed
from fedloom.methods.ram_fed import ram_fed
from fedloom.methods.safa import CachedMean, Complete, FirstComers, Refresh, safa
from fedloom.methods.safari import safari
from fedloom.methods.scaffold import ControlVariates, scaffold
from fedloom.methods.splitfl import splitfl

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "feddc": feddc,
    "feddd": feddd,
    "fedcs": fedcs,
    "oort": oort,
    "power-of-choice": power_of_choice,
    "federated-dropout": federated_dropout,
    "fjord": fjord,
    "fedrolex": fedrolex,
    "heterofl": heterofl,
    "hermes": hermes,
    "fedmp": fedmp,
    "prunefl": prunefl,
    "fedselect": fedselect,
    "ist": ist,
    "oap": oap,
    "splitfl": splitfl,
    "ra-fed": ra_fed,
    "ram-fed": ram_fed,
    "mifa": mifa,
    "fedvarp": fedvarp,
    "fedspu": fedspu,
    "fedumf": fedumf,
    "safari": safari,
    "safa": safa,
    "fedasync": fedasync,
    "fedbuff": fedbuff,
    "fedat": fedat,
    "fedit": fedit,
    "ffa-lora": ffa_lora,
    "hetlora": hetlora,
    "flexlora": flexlora,
    "loom": loom,
}

__all__ = [
    "METHODS",
    "CachedMean",
    "Complete",
    "ControlVariates",
    "CrossTier",
    "DriftCorrection",
    "DynamicRegulariser",
    "Erasing",
    "Evenly",
    "ExactMean",
    "FirstComers",
    "GlobalPart",
    "Refresh",
    "Rescale",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedcs",
    "feddc",
    "feddd",
    "feddyn",
    "federated_dropout",
    "fedit",
    "fedmp",
    "fedprox",
    "fedrolex",
    "fedselect",
    "fedspu",
    "fedumf",
    "fedvarp",
    "ffa_lora",
    "fjord",
    "flexlora",
    "hermes",
    "heterofl",
    "hetlora",
    "ist",
    "loom",
    "mifa",
    "oap",
    "oort",
    "power_of_choice",
    "prunefl",
    "ra_fed",
    "ram_fed",
    "safa",
    "safari",
    "scaffold",
    "splitfl",
]
