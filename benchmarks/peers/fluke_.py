"""fluke: its FedAVG from Python, with its fast loader and models in memory."""

import torch
import without_operators  # noqa: F401 before fluke
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from work import BATCH, CLASSES, CLIENTS, RATE, SAMPLES, Clock, accuracy, asked, data, network

work, clock, steps = asked(), Clock(), 0
images, labels = (torch.from_numpy(array) for array in data())


class Ticks(FederationObserver):
    """An observer that is called after each round."""

    def end_round(self, round):
        clock.tick()


class Loss(torch.nn.CrossEntropyLoss):
    """Cross entropy that counts its calls."""

    def forward(self, output, target):
        global steps
        steps += 1
        return super().forward(output, target)


FlukeENV().set_seed(0)
FlukeENV().set_device("cpu")
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
loaders = [
    FastDataLoader(x, y, num_labels=CLASSES, batch_size=BATCH, shuffle=True)
    for x, y in zip(images.split(SAMPLES), labels.split(SAMPLES))
]
container = DummyDataContainer(loaders, [None] * CLIENTS, None, CLASSES)
module = network(work.network)
settings = DDict(
    client=DDict(
        batch_size=BATCH,
        local_epochs=1,
        loss=Loss,
        optimizer=DDict(name="SGD", lr=RATE),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    ),
    server=DDict(weighted=True),
    model=module,
)
fedavg = FedAVG(CLIENTS, DataSplitter(container), settings)
fedavg.set_callbacks(Ticks())
fedavg.run(work.rounds, work.per_round / CLIENTS)
clock.report(accuracy(fedavg.server.model), steps / work.rounds / work.per_round)
