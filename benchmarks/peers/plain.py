"""FedAvg written by hand: nn.Module, torch.optim.SGD, one client after another."""

import torch
import torch.nn.functional as F
from work import BATCH, CLIENTS, RATE, SAMPLES, Clock, accuracy, asked, data, network

work, clock = asked(), Clock()
images, labels = (torch.from_numpy(array) for array in data())
module = network(work.network)
for _ in range(work.rounds):
    start = {name: value.clone() for name, value in module.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for client in torch.randperm(CLIENTS)[: work.per_round].tolist():
        module.load_state_dict(start)
        optimiser, steps = torch.optim.SGD(module.parameters(), lr=RATE), 0
        for rows in (client * SAMPLES + torch.randperm(SAMPLES)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(images[rows]), labels[rows]).backward()
            optimiser.step()
            steps += 1
        for name, value in module.state_dict().items():
            total[name] += value / work.per_round
    module.load_state_dict(total)
    clock.tick()
clock.report(accuracy(module), steps)
