"""All methods by name, one file per paper, and the parts that only one method needs."""

from collections.abc import Callable

from fedloom.method import Method
from fedloom.methods.adaptivefl import adaptivefl
from fedloom.methods.depthfl import depthfl
from fedloom.methods.fedasync import fedasync
from fedloom.methods.fedat import CrossTier, fedat
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedbuff import fedbuff
from fedloom.methods.fedcs import fedcs
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.feddd import feddd
from fedloom.methods.feddst import feddst
from fedloom.methods.feddyn import DynamicRegulariser, feddyn
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedmef import fedmef
from fedloom.methods.fedmp import fedmp
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fedrts import fedrts
from fedloom.methods.fedselect import GrowOwn, fedselect
from fedloom.methods.fedselect_neurons import GlobalPart, fedselect_neurons
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fedtiny import fedtiny
from fedloom.methods.fedumf import fedumf
from fedloom.methods.fedvarp import fedvarp
from fedloom.methods.fiarse import ChangedMean, Thresholded, fiarse
from fedloom.methods.fjord import fjord
from fedloom.methods.hermes import hermes
from fedloom.methods.heterofl import Rescale, heterofl
from fedloom.methods.ist import Evenly, ist
from fedloom.methods.loom import loom
from fedloom.methods.mifa import mifa
from fedloom.methods.oap import Quarters, oap
from fedloom.methods.oap_largest import Erasing, oap_largest
from fedloom.methods.oort import oort
from fedloom.methods.power_of_choice import power_of_choice
from fedloom.methods.prunefl import prunefl
from fedloom.methods.prunefl_fixed import prunefl_fixed
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
    "adaptivefl": adaptivefl,
    "fjord": fjord,
    "fedrolex": fedrolex,
    "fiarse": fiarse,
    "depthfl": depthfl,
    "heterofl": heterofl,
    "hermes": hermes,
    "fedmp": fedmp,
    "prunefl": prunefl,
    "fedtiny": fedtiny,
    "fedmef": fedmef,
    "fedrts": fedrts,
    "feddst": feddst,
    "prunefl-fixed": prunefl_fixed,
    "fedselect-neurons": fedselect_neurons,
    "fedselect": fedselect,
    "ist": ist,
    "oap": oap,
    "oap-largest": oap_largest,
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
    "loom": loom,
}

__all__ = [
    "METHODS",
    "CachedMean",
    "ChangedMean",
    "Complete",
    "ControlVariates",
    "CrossTier",
    "DriftCorrection",
    "DynamicRegulariser",
    "Erasing",
    "Evenly",
    "FirstComers",
    "GlobalPart",
    "GrowOwn",
    "Quarters",
    "Refresh",
    "Rescale",
    "Thresholded",
    "adaptivefl",
    "depthfl",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedcs",
    "feddc",
    "feddd",
    "feddst",
    "feddyn",
    "federated_dropout",
    "fedmef",
    "fedmp",
    "fedprox",
    "fedrolex",
    "fedrts",
    "fedselect",
    "fedselect_neurons",
    "fedspu",
    "fedtiny",
    "fedumf",
    "fedvarp",
    "fiarse",
    "fjord",
    "hermes",
    "heterofl",
    "ist",
    "loom",
    "mifa",
    "oap",
    "oap_largest",
    "oort",
    "power_of_choice",
    "prunefl",
    "prunefl_fixed",
    "ra_fed",
    "ram_fed",
    "safa",
    "safari",
    "scaffold",
    "splitfl",
]
