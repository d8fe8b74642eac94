"""What a node does."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedloom.flower import masked
from quickstart.task import Net, load_partition, test as test_fn, train as train_fn

torch.set_num_threads(1)
app = ClientApp(mods=[masked("feddd", Net(), torch.zeros(1, 1, 8, 8))])


@app.train()
def train(msg: Message, context: Context):
    """Train the model on the node's own digits."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    part, config = context.node_config["partition-id"], context.run_config
    x, y = load_partition(part, config["nodes"])
    seed = 1000 * msg.content["config"]["server-round"] + part
    loss = train_fn(model, x, y, config["local-epochs"], config["lr"], config["batch-size"], seed)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the model on the node's own digits."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_partition(context.node_config["partition-id"], context.run_config["nodes"])
    loss, accuracy = test_fn(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
