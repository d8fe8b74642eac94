"""A tiny fleet to test on, and every method of the project: one line in `METHODS` gives a method all its tests.

Numbers come from `fedloom.chance`, so that a world is the same on every machine and under every version of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Sgd
from fedloom.core.types import Examples, Fleet, Reply, Setting, State, Task
from fedloom.core.work import Work
from fedloom.engine.client import initial_state
from fedloom.engine.clients import Clients
from fedloom.engine.cuda.graphs import Graphs
from fedloom.engine.gradient.fastest import Chosen, fastest_gradient
from fedloom.engine.local import Local, local_engine
from fedloom.engine.loop import Loop
from fedloom.engine.protocol import Engine
from fedloom.engine.storage.shards import Shards
from fedloom.goals import classes
from fedloom.layout import Layout, flatten, layout_of
from fedloom.method import Memory, Method
from fedloom.methods.adaptivefl import adaptivefl
from fedloom.methods.apfl import apfl
from fedloom.methods.depthfl import depthfl
from fedloom.methods.ditto import ditto
from fedloom.methods.fedadagrad import fedadagrad
from fedloom.methods.fedadam import fedadam
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fedavg_ft import fedavg_ft
from fedloom.methods.fedavgm import fedavgm
from fedloom.methods.fedbabu import fedbabu
from fedloom.methods.fedbn import fedbn
from fedloom.methods.fedcs import fedcs
from fedloom.methods.feddc import DriftCorrection, feddc
from fedloom.methods.feddd import feddd
from fedloom.methods.feddst import feddst
from fedloom.methods.feddyn import feddyn
from fedloom.methods.federated_dropout import federated_dropout
from fedloom.methods.fedexp import fedexp
from fedloom.methods.fedmef import fedmef
from fedloom.methods.fedmp import fedmp
from fedloom.methods.fednova import fednova
from fedloom.methods.fedper import fedper
from fedloom.methods.fedprox import fedprox
from fedloom.methods.fedrep import fedrep
from fedloom.methods.fedrolex import fedrolex
from fedloom.methods.fedrts import fedrts
from fedloom.methods.fedselect import fedselect
from fedloom.methods.fedselect_neurons import fedselect_neurons
from fedloom.methods.fedspu import fedspu
from fedloom.methods.fedtiny import fedtiny
from fedloom.methods.fedumf import fedumf
from fedloom.methods.fedvarp import fedvarp
from fedloom.methods.fedyogi import fedyogi
from fedloom.methods.fiarse import fiarse
from fedloom.methods.fjord import fjord
from fedloom.methods.hermes import hermes
from fedloom.methods.heterofl import heterofl
from fedloom.methods.ist import ist
from fedloom.methods.lg_fedavg import lg_fedavg
from fedloom.methods.local_training import local_training
from fedloom.methods.loom import loom
from fedloom.methods.mifa import mifa
from fedloom.methods.oap import oap
from fedloom.methods.oap_largest import oap_largest
from fedloom.methods.oort import oort
from fedloom.methods.pfedme import pfedme
from fedloom.methods.power_of_choice import power_of_choice
from fedloom.methods.prunefl import prunefl
from fedloom.methods.prunefl_fixed import prunefl_fixed
from fedloom.methods.ra_fed import ra_fed
from fedloom.methods.ram_fed import ram_fed
from fedloom.methods.safa import safa
from fedloom.methods.safari import safari
from fedloom.methods.scaffold import ControlVariates, scaffold
from fedloom.methods.splitfl import splitfl
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.norm import Norm
from fedloom.parts.admit.weight import Weight
from fedloom.parts.aggregate.krum import Krum
from fedloom.parts.aggregate.ranked_mean import Median, TrimmedMean
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.fuse_missed import FuseMissed
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.select.everyone import SomeSend
from fedloom.parts.select.still_running import StillRunning
from fedloom.parts.select.unheard_first import UnheardFirst
from fedloom.parts.select.uniform import Uniform
from fedloom.round import play_round
from fedloom.world.fleets import make_devices
from pieces import CLASSES, NETWORKS, WORDS, Scattered

SIZES = (1, 30, 7, 12, 3, 1, 18, 5, 25, 2, 9, 16)  # single examples, short batches, 1 to 5 batches
ROUNDS, SEED = 3, 7


# ---- methods: a new one is one line here


def small(method: Method, **changes: Any) -> Method:
    """The method on the tiny fleet: two thirds of it a round, several batches for most clients."""
    if method.select == Uniform():
        changes = {"select": Uniform(8), **changes}
    return replace(method, **{"optimiser": Sgd(rate=0.1), "work": Work(epochs=1, batch=6), **changes})


def scattered_parts(local: Any, **changes: Any) -> Method:
    """A method that sends every client a random half of the numbers."""
    return small(Method(mask=Scattered(), local=local), **changes)


_HEAVY = Sgd(rate=0.05, momentum=0.9, weight_decay=0.01, clip=1.0, decay=0.9)
_ADAM = Adam(rate=0.01, eps=1e-3)  # a larger eps: with the usual one, noise around a zero gradient takes whole steps

METHODS: list[tuple[str, Callable[[], Method]]] = [
    ("fedavg", lambda: small(fedavg())),
    ("fedavg-decay", lambda: small(fedavg(), optimiser=Sgd(rate=0.1, weight_decay=0.01, decay=0.9))),
    ("fedavg-heavy", lambda: small(fedavg(), optimiser=_HEAVY)),
    ("fedavg-adam", lambda: small(fedavg(), optimiser=_ADAM)),
    ("fedavg-kept-velocity", lambda: small(fedavg(), optimiser=replace(_HEAVY, fresh=False))),
    ("fedavg-kept-adam", lambda: small(fedavg(), optimiser=replace(_ADAM, fresh=False))),
    ("fedavg-steps", lambda: small(fedavg(), work=Work(steps=4, batch=6))),
    ("fedavg-epochs", lambda: small(fedavg(), work=Work(epochs=3, batch=10))),
    ("fedavg-full-batch", lambda: small(fedavg(), work=Work(epochs=2, batch=0))),
    ("fedavg-median", lambda: small(fedavg(), aggregate=Median())),
    ("fedavg-krum", lambda: small(fedavg(), aggregate=Krum(), admit=Several((Finite(), Weight(), Norm(1.0))))),
    ("fjord-trimmed-mean", lambda: small(fjord(), aggregate=TrimmedMean(0.3))),
    ("scattered-krum", lambda: scattered_parts(SubModel(), aggregate=Krum(0.3))),
    ("fedprox", lambda: small(fedprox(mu=0.1))),
    ("fedavgm", lambda: small(fedavgm())),
    ("fedadagrad", lambda: small(fedadagrad())),
    ("fedadam", lambda: small(fedadam(correct="flower"))),
    ("fedyogi", lambda: small(fedyogi())),
    ("fednova", lambda: small(fednova())),
    ("fednova-momentum", lambda: small(fednova(0.9), optimiser=Sgd(rate=0.05, momentum=0.9))),
    ("fednova-prox", lambda: small(fednova(mu=0.1))),
    ("fedexp", lambda: small(fedexp(1e-6))),
    ("fedcs", lambda: small(fedcs())),
    ("fedcs-deadline", lambda: small(fedcs(deadline=4000.0))),
    ("oort", lambda: small(oort())),
    ("oort-sampling", lambda: small(oort(sampling=True))),
    ("power-of-choice", lambda: small(power_of_choice())),
    ("scaffold", lambda: small(scaffold())),
    ("scaffold-heavy", lambda: small(scaffold(), optimiser=_HEAVY)),
    ("feddyn", lambda: small(feddyn(alpha=0.05))),
    ("feddc", lambda: small(feddc(alpha=0.05))),
    ("feddd", lambda: small(feddd())),
    ("feddd-random", lambda: small(feddd(select_by="random", outputs=False, every=2))),
    ("feddd-models", lambda: small(feddd(models=(0.4, 0.7, 1.0)))),
    ("chain", lambda: small(scaffold(), local=Chain((Prox(0.1), ControlVariates())))),
    ("scattered", lambda: scattered_parts(SubModel())),
    ("scattered-heavy", lambda: scattered_parts(SubModel(), optimiser=replace(_HEAVY, fresh=False))),
    ("scattered-feddc", lambda: scattered_parts(Chain((SubModel(), DriftCorrection(0.05))))),
    ("keep-own", lambda: scattered_parts(KeepOwn())),
    ("keep-own-frozen", lambda: scattered_parts(KeepOwn(freeze=True))),
    ("fjord", lambda: small(fjord())),
    ("local-training", lambda: small(local_training())),
    ("fedavg-ft", lambda: small(fedavg_ft(2))),
    ("fedavg-ft-head", lambda: small(fedavg_ft(2, "head"))),
    ("fedper", lambda: small(fedper())),
    ("fedper-heavy", lambda: small(fedper(), optimiser=replace(_HEAVY, fresh=False))),
    ("lg-fedavg", lambda: small(lg_fedavg("last:1"))),
    ("fedrep", lambda: small(fedrep(head_epochs=2, body_epochs=1), work=Work(epochs=3, batch=6))),
    (
        "fedrep-heavy",
        lambda: small(fedrep(head_epochs=1, body_epochs=1), optimiser=_HEAVY, work=Work(epochs=2, batch=6)),
    ),
    ("fedrep-adam", lambda: small(fedrep(head_epochs=1, body_epochs=1), optimiser=_ADAM, work=Work(steps=5, batch=6))),
    ("fedbabu", lambda: small(fedbabu())),
    ("fedbn", lambda: small(fedbn(everyone=False))),
    ("ditto", lambda: small(ditto(0.5))),
    ("ditto-heavy", lambda: small(ditto(0.5), optimiser=_HEAVY)),
    ("apfl", lambda: small(apfl())),
    ("apfl-official", lambda: small(apfl(0.3, "official"))),
    ("pfedme", lambda: small(pfedme(repeat=2), work=Work(steps=3, batch=6, repeat=2))),
    ("pfedme-beta", lambda: small(pfedme(repeat=2, beta=1.5), work=Work(steps=3, batch=6, repeat=2))),
    ("fjord-fedavgm", lambda: small(fjord(), aggregate=fedavgm(0.7, nesterov=True).aggregate)),
    ("fjord-fednova", lambda: small(fjord(), aggregate=fednova().aggregate)),
    ("fjord-fedexp", lambda: small(fjord(), aggregate=fedexp(1e-6, by_cohort=True).aggregate)),
    ("scattered-fedyogi", lambda: scattered_parts(SubModel(), aggregate=fedyogi(correct="keras").aggregate)),
    ("fjord-feddc", lambda: small(fjord(), local=Chain((SubModel(), DriftCorrection(0.05))))),
    ("fedrolex", lambda: small(fedrolex())),
    ("federated-dropout", lambda: small(federated_dropout())),
    ("federated-dropout-heavy", lambda: small(federated_dropout(), optimiser=replace(_HEAVY, fresh=False))),
    ("depthfl", lambda: small(depthfl(ramp=2))),
    ("fiarse", lambda: small(fiarse())),
    ("fiarse-layer", lambda: small(fiarse((0.5, 0.25), "layer", count="changed"), optimiser=_HEAVY)),
    ("adaptivefl", lambda: small(adaptivefl(), select=replace(adaptivefl().select, count=8))),
    ("heterofl", lambda: small(heterofl())),
    ("hermes", lambda: small(hermes())),
    ("fedmp", lambda: small(fedmp())),
    ("prunefl", lambda: small(prunefl(every=2, remove=0.6))),
    ("fedtiny", lambda: small(fedtiny(0.5, alpha=0.5, every=1))),
    ("fedtiny-blocks", lambda: small(fedtiny(0.4, "er", every=1, blocks=2, growth="random"), optimiser=_HEAVY)),
    ("fedmef", lambda: small(fedmef(0.5, 0.1, alpha=0.5, every=1))),
    ("fedrts", lambda: small(fedrts(0.5, alpha=0.5, every=1))),
    ("feddst", lambda: small(feddst(0.5, alpha=0.5, every=1))),
    ("prunefl-fixed", lambda: small(prunefl_fixed())),
    ("fedselect", lambda: small(fedselect(every=1), work=Work(epochs=2, batch=6))),
    ("fedselect-neurons", lambda: small(fedselect_neurons())),
    ("ist", lambda: small(ist(parts=None))),
    ("ist-two-parts", lambda: small(ist())),
    ("oap", lambda: small(oap())),
    ("oap-erasing", lambda: small(oap((5, 6), erase=True))),
    ("oap-largest", lambda: small(oap_largest())),
    ("splitfl", lambda: small(splitfl())),
    ("ra-fed", lambda: small(ra_fed("MIX"))),
    ("ra-fed-dealt", lambda: small(ra_fed("S", coverage=1, deal="turns"))),
    ("ra-fed-period", lambda: small(ra_fed(mode="element", period=2, redraw=True))),
    ("ram-fed", lambda: small(ram_fed("S"))),
    ("ram-fed-element", lambda: small(ram_fed("MIX", mode="element", period=3), optimiser=_HEAVY)),
    ("mifa", lambda: small(mifa(), select=UnheardFirst(8))),
    ("fedvarp", lambda: small(fedvarp())),
    ("fedspu", lambda: small(fedspu())),
    ("fedspu-heavy", lambda: small(fedspu(), optimiser=replace(_HEAVY, fresh=False))),
    ("fedspu-stopping", lambda: small(fedspu(early_stopping=True), select=StillRunning(8))),
    ("fedumf", lambda: small(fedumf(), select=SomeSend(4))),
    ("fedumf-heavy", lambda: small(fedumf(alpha=0.5), select=SomeSend(4), optimiser=_HEAVY)),
    ("fedumf-feddc", lambda: small(fedumf(base="feddc", drift=0.05), select=SomeSend(4))),
    ("fedumf-fused", lambda: small(fedumf(base="feddc", drift=0.05, reference="fused"), select=SomeSend(4))),
    ("fedumf-fjord", lambda: small(fjord(), select=SomeSend(4), local=FuseMissed(inner=SubModel()))),
    # half is kept: a channel without any weight, behind a norm layer, sits on the kink of ReLU
    ("safari", lambda: small(safari(sparsity=0.5, scope="global"))),
    ("safari-by-layer", lambda: small(safari(sparsity=0.5))),
    (
        "safari-adam",
        lambda: small(safari("snip", 0.5, scope="global", distance="relative", mask_aware=True), optimiser=_ADAM),
    ),
    (
        "safari-first",
        lambda: small(safari("rand", 0.5, "first-round", scope="global", smoothing=0.5), optimiser=_HEAVY),
    ),
    ("safari-bare", lambda: small(safari("grasp", 0.5, scope="global", compensate=False))),
    ("safa", lambda: small(safa(0.5, lag=1))),
    ("safa-plain", lambda: small(safa(0.7, lag=0, compensate=False))),
    ("loom", lambda: small(loom())),
    ("loom-fuse", lambda: small(loom(fuse=0.5), select=SomeSend(4))),
]

every_method = pytest.mark.parametrize("method", [pytest.param(make(), id=name) for name, make in METHODS])
every_network = pytest.mark.parametrize("network", NETWORKS)


# ---- the world


class World(NamedTuple):
    """A fleet, its data and a network before the first round."""

    setting: Setting
    data: Examples
    shards: Shards
    model: Tensor  # [P]

    def local(
        self, method: Method, chunk: int | None = None, sliced: bool = True, graphs: Graphs | None = None
    ) -> Local:
        """The cohort as matrices."""
        return local_engine(self.clients(method), chunk, sliced=sliced, chosen=_gradient(self), graphs=graphs)

    def loop(self, method: Method) -> Loop:
        """One client after another."""
        return Loop(self.clients(method))

    def clients(self, method: Method) -> Clients:
        """The clients; what they hold back to try their models on is here what they train on."""
        return Clients(method, self.setting, self.data, self.shards, (self.data, self.shards))


@cache
def _gradient(world: World) -> Chosen:
    """What `local_engine` would choose, traced and checked once for all engines of a world."""
    return fastest_gradient(world.setting, world.data)


@cache
def world(network: str = "mlp", dtype: torch.dtype = torch.float32) -> World:
    """A seeded world around one of `NETWORKS`; made once, and nothing in it changes."""
    chance, total = Chance(SEED, 0), sum(SIZES)
    pixels = chance.uniform("pixels", torch.arange(total)[:, None, None, None], torch.arange(36).view(1, 6, 6))
    words = chance.uniform("words", torch.arange(total)[:, None], torch.arange(7))
    x = (words * WORDS).long() if network == "text" else (pixels.to(dtype) * 4 - 2)
    y = (chance.uniform("classes", torch.arange(total)) * CLASSES).long()
    return world_of(NETWORKS[network](), Examples(x, y), torch.arange(total).split(list(SIZES)), dtype)


def world_of(module: nn.Module, data: Examples, clients: Iterable[Tensor], dtype: torch.dtype = torch.float32) -> World:
    """A world of your own; the module's weights are drawn by hashing."""
    module, shards = hashed(module).to(dtype), Shards(list(clients), torch.device("cpu"))
    layout: Layout = layout_of(module)
    setting = Setting(fleet_of(data, shards), module, layout, classes(), data.x[:2])
    return World(setting, data, shards, flatten(module, layout))


def fleet_of(data: Examples, shards: Shards) -> Fleet:
    """How many examples everyone has, and of which classes."""
    labels = [data.y[own].bincount(minlength=CLASSES) for own in shards.examples.split(shards.sizes)]
    devices = make_devices("table4", len(shards.sizes), SEED)
    return Fleet(torch.tensor(shards.sizes), torch.stack(labels), devices)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example [B]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def hashed(module: nn.Module) -> nn.Module:
    """The module with weights that no version of torch can change; norm layers keep their ones and zeros."""
    for name, weights in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if "Norm" not in type(owner).__name__:
            drawn = Chance(SEED, 0).uniform(name, torch.arange(weights.numel())).view_as(weights) * 2 - 1
            weights.data = drawn.to(weights.dtype) * (weights[0].numel() ** -0.5 if weights.dim() > 1 else 0.1)
    return module


# ---- runs


class Run(NamedTuple):
    """What some rounds left behind."""

    model: Tensor  # [P] after the last round
    memory: Memory
    models: list[Tensor]  # after every round
    tasks: list[Task]
    replies: list[Reply]  # as the server read them


def play(world: World, method: Method, engine: Engine, rounds: int = ROUNDS, seed: int = SEED) -> Run:
    """Some rounds from the start."""
    model, memory = world.model, method.init(world.setting, world.model)
    models, tasks, replies = [], [], []
    for number in range(1, rounds + 1):
        model, memory, task, reply = play_round(method, memory, model, world.setting, engine, Chance(seed, number))
        models.append(model)
        tasks.append(task)
        replies.append(reply)
    return Run(model, memory, models, tasks, replies)


@cache
def played(network: str, method: Method, rounds: int = ROUNDS) -> Run:
    """The run of a method as it comes, under the `Local` engine; played once and shared by many tests."""
    here = world(network)
    return play(here, method, here.local(method), rounds)


class Changed:
    """An engine whose replies are changed on the way to the server."""

    def __init__(self, engine: Engine, change: Callable[[Reply, Chance], Reply]) -> None:
        self.engine, self.change = engine, change

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, then change."""
        return self.change(self.engine.train(ids, task, chance), chance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def engine_of(train: Callable[[Tensor, Task, Chance], Reply]) -> Engine:
    """An engine that can do nothing but train."""
    return cast(Engine, SimpleNamespace(train=train))


def changed(engine: Engine, change: Callable[[Reply, Chance], Reply]) -> Engine:
    """An engine whose replies are changed on the way to the server."""
    return Changed(engine, change)


def reply_rows(reply: Reply, at: Tensor) -> Reply:
    """Some rows of a reply, or all of them in another order."""
    pick = {name: {key: value[at] for key, value in getattr(reply, name).items()} for name in ("extras", "report")}
    mask = None if reply.mask is None else reply.mask[at]
    return Reply(reply.ids[at], reply.params[at], mask, pick["extras"], pick["report"], reply.arrived[at])


def states_of(engine: Local | Loop, ids: list[int], model: Tensor) -> State:
    """What clients remember now [C, ...]."""
    own = engine.clients
    return own.states.get(ids, initial_state(own.method, own.setting, model))


def everything(run: Run) -> State:
    """The model and all the server remembers, by name."""
    return {"model": run.model, **{f"{slot}.{k}": v for slot, own in run.memory.items() for k, v in own.items()}}


def assert_close(ours: State, theirs: State, tolerance: float) -> None:
    """Equal names, and no number further apart than `tolerance` (absolute)."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=1e-6, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_identical(ours: State, theirs: State) -> None:
    """Equal names and equal bits."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
