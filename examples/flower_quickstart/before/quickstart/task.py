"""The network, the data and how one node trains and tests."""

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        """Scores of the ten digits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


@cache
def load_data():
    """All images and digits, in a fixed order; the last fifth is for testing."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y, split = x[order], y[order], len(y) * 4 // 5
    return (x[:split], y[:split]), (x[split:], y[split:])


def load_partition(partition, count):
    """One node's part of the training images: every `count`-th."""
    (x, y), _ = load_data()
    return x[partition::count], y[partition::count]


def train(net, x, y, epochs, lr, batch_size, seed):
    """SGD with momentum; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    net.train()
    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=generator).split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net, x, y):
    """Loss and accuracy."""
    net.eval()
    with torch.no_grad():
        scores = net(x)
    return F.cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()
