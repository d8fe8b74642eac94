"""What the server does."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedloom.flower import strategy as fedloom_strategy
from quickstart.task import Net, load_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with all nodes, testing after every round."""
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    nodes, rounds = context.run_config["nodes"], context.run_config["num-server-rounds"]
    strategy = fedloom_strategy("feddd", Net(), torch.zeros(1, 1, 8, 8), clients=nodes, budget=0.4)
    result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    if context.run_config["results"]:
        tables = {"test": result.evaluate_metrics_serverapp, "train": result.train_metrics_clientapp}
        rows = {name: [dict(row) for row in table.values()] for name, table in tables.items()}
        Path(context.run_config["results"]).write_text(json.dumps(rows))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on images that no node has."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, *load_data()[1])
    return MetricRecord({"loss": loss, "accuracy": accuracy})
