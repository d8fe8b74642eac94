"""pfl-research: SimulatedBackend and FederatedAveraging on PyTorch; ranks by its PFL_WORKER_ADDRESSES."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from work import BATCH, CLIENTS, RATE, SAMPLES, Clock, accuracy, asked, data, network

work, clock, steps = asked(), Clock(), 0
np.random.seed(0)  # noqa: NPY002 pfl samples users from it, and must on all ranks alike
images, labels = (torch.from_numpy(array) for array in data())


class Network(torch.nn.Module):
    """A network with the `loss` that pfl calls."""

    def __init__(self):
        super().__init__()
        self.inner = network(work.network)

    def loss(self, x, y):
        global steps
        steps += 1
        return F.cross_entropy(self.inner(x), y)

    def metrics(self, x, y):
        return {}


class Ticks(TrainingProcessCallback):
    """A callback after each round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.tick()
        return False, Metrics()


users = [  # pfl's own examples do not shuffle, and neither does this: a client's batches are slices
    Dataset([x, y], user_id=str(number))
    for number, (x, y) in enumerate(zip(images.split(SAMPLES), labels.split(SAMPLES)))
]
module = Network()
model = PyTorchModel(module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0))
dataset = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=10**9,
        train_cohort_size=work.per_round,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=dataset, val_data=dataset),
    model=model,
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
    callbacks=[Ticks()],
    send_metrics_to_platform=False,  # which prints them
)
ranks = len(os.environ.get("PFL_WORKER_ADDRESSES", "one").split(","))
if os.environ.get("PFL_WORKER_RANK", "0") == "0":
    clock.report(accuracy(module.inner), round(steps * ranks / work.rounds / work.per_round, 2))
