"""All methods by name, one file per paper, and the parts that only one method needs."""

from collections.abc import Callable

from fedloom.method import Method
from fedloom.methods.adaptivefl import adaptivefl
from fedloom.methods.apfl import Mixed, apfl
from fedloom.methods.depthfl import depthfl
from fedloom.methods.ditto import Beside, Pulled, ditto
from fedloom.methods.fedadagrad import fedadagrad
from fedloom.methods.fedadam import fedadam
from fedloom.methods.fedasync import fedasync
from fedloom.methods.fedat import CrossTier, fedat
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedavg_ft import fedavg_ft
from fedloom.methods.fedavgm import fedavgm
from fedloom.methods.fedbabu import fedbabu
from fedloom.methods.fedbn import fedbn
from fedloom.methods.fedbuff import fedbuff
from fedloom.methods.fedcs import fedcs
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.feddd import feddd
from fedloom.methods.feddst import feddst
from fedloom.methods.feddyn import DynamicRegulariser, feddyn
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedexp import Extrapolated, fedexp
from fedloom.methods.fedit import fedit
from fedloom.methods.fedmef import fedmef
from fedloom.methods.fedmp import fedmp
from fedloom.methods.fednova import NormalisedMean, fednova
from fedloom.methods.fedper import fedper
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrep import fedrep
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fedrts import fedrts
from fedloom.methods.fedselect import GrowOwn, fedselect
from fedloom.methods.fedselect_neurons import GlobalPart, fedselect_neurons
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fedtiny import fedtiny
from fedloom.methods.fedumf import fedumf
from fedloom.methods.fedvarp import fedvarp
from fedloom.methods.fedyogi import fedyogi
from fedloom.methods.ffa_lora import ExactMean, ffa_lora
from fedloom.methods.fiarse import Thresholded, fiarse
from fedloom.methods.fjord import fjord
from fedloom.methods.flexlora import flexlora
from fedloom.methods.hermes import hermes
from fedloom.methods.heterofl import Rescale, heterofl
from fedloom.methods.hetlora import hetlora
from fedloom.methods.ist import Evenly, ist
from fedloom.methods.lg_fedavg import lg_fedavg
from fedloom.methods.local_training import local_training
from fedloom.methods.loom import loom
from fedloom.methods.mifa import mifa
from fedloom.methods.oap import Quarters, oap
from fedloom.methods.oap_largest import Erasing, oap_largest
from fedloom.methods.oort import oort
from fedloom.methods.pfedme import Moreau, pfedme
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
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fednova": fednova,
    "fedexp": fedexp,
    "local-training": local_training,
    "fedavg-ft": fedavg_ft,
    "fedper": fedper,
    "lg-fedavg": lg_fedavg,
    "fedrep": fedrep,
    "fedbabu": fedbabu,
    "fedbn": fedbn,
    "ditto": ditto,
    "apfl": apfl,
    "pfedme": pfedme,
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
    "fedit": fedit,
    "ffa-lora": ffa_lora,
    "hetlora": hetlora,
    "flexlora": flexlora,
    "loom": loom,
}

__all__ = [
    "METHODS",
    "Beside",
    "CachedMean",
    "Complete",
    "ControlVariates",
    "CrossTier",
    "DriftCorrection",
    "DynamicRegulariser",
    "Erasing",
    "Evenly",
    "ExactMean",
    "Extrapolated",
    "FirstComers",
    "GlobalPart",
    "GrowOwn",
    "Mixed",
    "Moreau",
    "NormalisedMean",
    "Pulled",
    "Quarters",
    "Refresh",
    "Rescale",
    "Thresholded",
    "adaptivefl",
    "apfl",
    "depthfl",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedasync",
    "fedat",
    "fedavg",
    "fedavg_ft",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedbuff",
    "fedcs",
    "feddc",
    "feddd",
    "feddst",
    "feddyn",
    "federated_dropout",
    "fedexp",
    "fedit",
    "fedmef",
    "fedmp",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "fedrolex",
    "fedrts",
    "fedselect",
    "fedselect_neurons",
    "fedspu",
    "fedtiny",
    "fedumf",
    "fedvarp",
    "fedyogi",
    "ffa_lora",
    "fiarse",
    "fjord",
    "flexlora",
    "hermes",
    "heterofl",
    "hetlora",
    "ist",
    "lg_fedavg",
    "local_training",
    "loom",
    "mifa",
    "oap",
    "oap_largest",
    "oort",
    "pfedme",
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
