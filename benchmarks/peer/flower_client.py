"""What a client of Flower does: a module of its own, since Ray's actors import it by name."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from turns import Work

FOLDER = "PEER_WORK"  # the environment variable that tells an actor where the work lies
client = ClientApp()


@functools.cache
def held() -> tuple[Work, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The work, read once by an actor."""
    torch.set_num_threads(1)
    work = Work(Path(os.environ[FOLDER]))
    return work, work.module(), torch.as_tensor(work.x), torch.as_tensor(work.y)


@client.train()
def train(message: Message, context: Context) -> Message:
    work, module, x, y = held()
    mine = int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
    for inputs, targets in zip(x[mine].split(work.batch), y[mine].split(work.batch), strict=True):
        optimizer.zero_grad()
        cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(x[mine])})}
    return Message(content=RecordDict(content), reply_to=message)
