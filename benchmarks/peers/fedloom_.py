"""fedloom: `run` as a user calls it, with its ledger and prices; the only evaluation is that of the last round."""

import numpy as np
from work import BATCH, CLASSES, CLIENTS, RATE, Clock, accuracy, asked, data

from fedloom import Dataset, Experiment, run

work, clock = asked(), Clock()
images, labels = data()
owners = np.repeat(np.arange(CLIENTS), len(labels) // CLIENTS)
few = slice(0, 100)  # evaluated once, at the end
dataset = Dataset("peers", images, labels, images[few], labels[few], owners, None, CLASSES, 0)
experiment = Experiment(
    partition="own",
    model=work.network,
    training={"rate": RATE, "epochs": 1, "batch": BATCH},
    clients=CLIENTS,
    per_round=work.per_round,
    rounds=work.rounds,
    evaluate_every=work.rounds,
    device="cpu",
)
result = run(experiment, data=dataset, watch=lambda row: clock.tick())
steps = result.rounds[-1]["examples_trained"] // work.per_round // BATCH
clock.report(accuracy(result.model), steps, losses=[row["training_loss"] for row in result.rounds])
