"""Files in the `checkpoint` folder of a run over Flower."""

RUN_FILE = "network.json"  # the run's name, and how often it was started
STATE_FILE = "state.json"  # whether it goes on, and why not
NODES_FILE = "nodes.json"  # whose key hosts which clients, where that has changed since the run was started
