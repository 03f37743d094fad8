"""What a client of Flower does in a whole job: a module of its own, since Ray's actors import it by name."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Job, folder
from torch.nn.functional import cross_entropy

client = ClientApp()


@functools.cache
def held() -> tuple[Job, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The job, read once by an actor, which has a core of its own."""
    torch.set_num_threads(1)
    job = Job(folder())
    return job, job.module(), torch.as_tensor(job.x), torch.as_tensor(job.y)


@client.train()
def train(message: Message, context: Context) -> Message:
    job, module, all_x, all_y = held()
    mine = job.of(int(context.node_config["partition-id"]))
    x, y = all_x[mine], all_y[mine]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=job.lr)
    for index in torch.randperm(len(y)).split(job.batch):
        optimizer.zero_grad()
        cross_entropy(module(x[index]), y[index]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
