"""The client of flower_.py, in a separate file so that Ray's workers import it and keep what it loads."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from work import BATCH, RATE, SAMPLES, data, network

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one epoch from the model in the message."""
    client = int(context.node_config["partition-id"])
    images, labels = (torch.from_numpy(array) for array in data())
    module = network(message.content["config"]["network"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser, steps = torch.optim.SGD(module.parameters(), lr=RATE), 0
    for rows in (client * SAMPLES + torch.randperm(SAMPLES)).split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(module(images[rows]), labels[rows]).backward()
        optimiser.step()
        steps += 1
    metrics = MetricRecord({"num-examples": SAMPLES, "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
