"""Flower: its simulation engine on Ray, its FedAvg; PEERS_CPUS is a client's part of the two cores.

`run_simulation` is deprecated in favour of `flwr run`, which starts further processes around the same engine.
"""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import CLIENTS, Clock, accuracy, asked, network

work, clock = asked(), Clock()
server, results = ServerApp(), []


@server.main()
def main(grid, context):
    """Play all rounds; the evaluation hook only reads the clock."""
    strategy = FedAvg(
        fraction_train=work.per_round / CLIENTS,
        fraction_evaluate=0.0,
        min_evaluate_nodes=0,
        min_available_nodes=CLIENTS,
    )

    def hook(number, arrays):
        if number:
            clock.tick()

    arrays = ArrayRecord(network(work.network).state_dict())
    config = ConfigRecord({"network": work.network})
    results.append(strategy.start(grid, arrays, num_rounds=work.rounds, train_config=config, evaluate_fn=hook))


run_simulation(
    server,
    app,
    num_supernodes=CLIENTS,
    backend_config={
        "init_args": {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": int(os.environ.get("PEERS_CPUS", "1")), "num_gpus": 0.0},
    },
)
module = network(work.network)
module.load_state_dict(results[0].arrays.to_torch_state_dict())
clock.report(accuracy(module), results[0].train_metrics_clientapp[1]["steps"])
