"""What a representation tells of a protected attribute: the judge of a model that was trained to hide it.

    h    the representation at every client, by its own model
    z    the attribute; a fresh classifier learns z from h on training examples, and is judged on test examples

The co-trained adversary is no judge: the model has learned to mislead that one. There are two fresh ones, logistic
regression and a net with one hidden layer; an AUC of 0.5 says that a judge of this kind finds nothing, and no more.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data import Split
from ..method import Method, State
from ..simulate.clients import Simulation
from ..stacks.draw import seeded, uniform
from ..tasks.classification import area_under_roc
from .evaluate import CHUNK, all_clients, assign_newcomers, held

EXAMPLES = 4000  # of each split, drawn by the seed
HIDDEN = 32
STEPS = 300  # of the net, all examples at once
RATE, RIDGE = 0.01, 1e-3


def probed(method: Method, state: State, clients: Simulation) -> dict[str, float]:
    """AUC of both judges; empty where there is no second model, or one of the splits has only one value."""
    data = clients.federation
    if not clients.task.auxiliary or data.absent:
        return {}
    (h, z), (new, there) = (_represented(method, state, clients, split) for split in (data.train, data.test))
    if len(torch.unique(z)) < 2 or len(torch.unique(there)) < 2:
        return {}
    mean, spread = h.mean(0), h.std(0).clamp(min=1e-6)
    h, new = ((part - mean) / spread for part in (h, new))
    found = {}
    for name, hidden in (("probe_auc", 0), ("probe_net_auc", HIDDEN)):
        said = _learned(h, z, new, hidden, data.n_protected, clients.seed)
        each = [area_under_roc(said[:, v].numpy(), (there == v).numpy()) for v in torch.unique(there).tolist()]
        found[name] = statistics.fmean(each)
    return found


def _represented(method: Method, state: State, clients: Simulation, split: Split) -> tuple[Tensor, Tensor]:
    """(h, z) of examples of clients that train and do not attack, on the host in float64."""
    trains = (clients.federation.train.sizes > 0) & ~clients.held_out_mask & ~clients.attackers
    every = trains[split.owner.cpu()].nonzero()[:, 0]
    drawn = every[uniform(clients.seed, "probe", every).argsort()[:EXAMPLES]].sort().values
    owner, exchange = split.owner.cpu()[drawn], method.in_use(state.round)
    state, parts, order = assign_newcomers(method, state, clients), list[Tensor](), list[Tensor]()
    for block in all_clients(clients, state)[torch.unique(owner)].blocks(clients.block_size):
        rows = held(exchange, state, clients, block)
        for k, client in enumerate(block.index.tolist()):
            mine = drawn[owner == client]
            row = {name: rows[name][k] for name in clients.task.names}
            with torch.no_grad():
                for index in torch.split(mine.to(split.x.device), CHUNK):
                    parts.append(clients.task.representation(row, clients.task.inputs(split.x[index])).double().cpu())
            order.append(mine)
    assert split.protected is not None
    return torch.cat(parts), split.protected.cpu()[torch.cat(order)]


def _learned(h: Tensor, z: Tensor, new: Tensor, hidden: int, n_values: int, seed: int) -> Tensor:
    """What a fresh judge says of new examples, (examples, values)."""
    with seeded(torch.device("cpu"), seed, "probe"), torch.enable_grad():
        layers = [nn.Linear(h.shape[1], hidden), nn.ReLU()] if hidden else []
        judge = nn.Sequential(*layers, nn.Linear(hidden or h.shape[1], n_values)).double()
        if not hidden:  # convex: it begins at zero, and its end does not depend on that
            for weight in judge.parameters():
                nn.init.zeros_(weight)
        by_adam = torch.optim.Adam(judge.parameters(), RATE, weight_decay=RIDGE)
        for _ in range(STEPS):
            by_adam.zero_grad()
            cross_entropy(judge(h), z).backward()  # type: ignore[no-untyped-call]
            by_adam.step()
    with torch.no_grad():
        found: Tensor = judge(new).log_softmax(-1)
    return found
