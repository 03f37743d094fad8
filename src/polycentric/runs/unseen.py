"""How a run's models serve a device that was never seen: what clients have of their own, it has not.

    average     one model: the mean of all trained clients' models, parameter by parameter
    ensemble    the mean of the outputs of their models
    vote        the answer that most of their models give; among several, the one with the largest mean output

Where clients share one whole model, all three are that model. Outputs are added up a block of models at a time, so
memory does not grow with the number of clients; where there are very many, some are drawn, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..data import Split
from ..errors import require
from ..simulate.clients import Simulation
from ..stacks.draw import uniform
from ..stacks.stack import Stacks
from .evaluate import CHUNK, all_clients, assign_newcomers, held, outputs_shape, scored
from .metrics import Scores, plain
from .serving import personal, rows_of_clients, untrained

if TYPE_CHECKING:
    from .loop import Run

WAYS = ("average", "ensemble", "vote")
MODELS = 100  # of clients that answer together
EXAMPLES = 20_000  # that they answer
AT_ONCE = 1 << 14  # answers of a block of models


@dataclass(frozen=True, eq=False)
class Unseen:
    """Scores of the three ways; of numbers to predict there is no vote."""

    scores: dict[str, Scores]
    note: str = ""  # what was drawn, where not all were asked

    def summary(self, run: Run) -> dict[str, Any]:
        """Over the clients whose scores count, for a JSON file."""
        found: dict[str, Any] = {way: told(run.now.counted(scores), way) for way, scores in self.scores.items()}
        return found | {"note": self.note or None}

    def row(self, run: Run) -> dict[str, float]:
        """The first two numbers of each, for a line of metrics."""
        out: dict[str, float] = {}
        for way, scores in self.scores.items():
            found = told(run.now.counted(scores), way)
            out |= {
                f"unseen_{way}_{what}": found[f"micro_{what}"]
                for what in ("accuracy", "loss")
                if f"micro_{what}" in found
            }
        return out


def told(scores: Scores, way: str) -> dict[str, Any]:
    """The numbers of one way; a vote has answers, and no loss."""
    found = plain(scores.summary())
    return {name: value for name, value in found.items() if way != "vote" or ("loss" not in name and name != "auc")}


def mean_of(run: Run, names: tuple[str, ...]) -> Stacks:
    """The mean of what trained clients have under some names, in float64."""
    who = trained(run)
    require(
        len(who) > 0, f"no client of this run of {run.method.name} was ever trained, so there is nothing to hand on"
    )
    total: Stacks = {}
    for _, rows in rows_of_clients(run, who):
        total = {name: total.get(name, torch.zeros((), dtype=torch.float64)) + rows[name].double() for name in names}
    return {name: (row / len(who)).to(run.clients.task.dtype) for name, row in total.items()}


def trained(run: Run) -> Tensor:
    """The numbers of clients whose models, or parts of them, were trained, and that do not attack."""
    return (~untrained(run) & ~run.clients.attackers & ~run.clients.held_out_mask).nonzero()[:, 0]


def unseen(run: Run, seen: Simulation, split: Split) -> Unseen:
    """Three ways to answer the examples of a split, for the clients of `seen`: the run's own, or others."""
    who, notes = trained(run), []
    if not len(who) or not len(split):
        return Unseen({})
    if len(split) > EXAMPLES:
        notes.append(f"{EXAMPLES:,} of {len(split):,} examples, drawn by the seed")
        some = uniform(run.clients.seed, "unseen examples", torch.arange(len(split))).argsort()[:EXAMPLES].sort().values
        here, owner = some.to(split.x.device), split.owner.cpu()[some]
        split = Split.gathered(split.x[here], split.y[here], owner, len(split.sizes))
    one = not personal(run) and len(run.state.centers["model"]) == 1
    if len(who) > MODELS and not one:
        notes.append(f"ensemble and vote of {MODELS} of {len(who):,} clients, drawn by the seed")
    asked = who[:1] if one else who[uniform(run.clients.seed, "unseen", who).argsort()[:MODELS].sort().values]
    mean, (outputs, votes) = mean_of(run, run.clients.task.names), _together(run, asked, split)
    task = run.clients.task
    answers = {"ensemble": outputs}
    if task.goal.votes:  # what most of them say; the mean output decides only where votes are even
        one_class = task.goal.votes == "class"
        close = outputs.softmax(-1) if one_class else outputs.tanh() / 2
        answers["vote"] = (votes if one_class else 2 * votes - len(asked)) + close / 2

    def of_mean() -> Iterator[tuple[Tensor, Tensor]]:
        with torch.no_grad():
            for index in _mine(seen, split):
                yield index, task.predict(mean, task.inputs(split.x[index]))

    def of(found: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for index in _mine(seen, split):
            yield index, found[index].to(task.dtype)

    scores = {"average": scored(seen, split, of_mean())}
    return Unseen(scores | {way: scored(seen, split, of(found)) for way, found in answers.items()}, "; ".join(notes))


def _mine(seen: Simulation, split: Split) -> Iterator[Tensor]:
    """This rank's share of a split."""
    every = torch.arange(len(split), device=split.x.device)
    return iter(seen.ranks.mine(list(torch.split(every, CHUNK))))


def _together(run: Run, who: Tensor, split: Split) -> tuple[Tensor, Tensor]:
    """The mean output of some clients' models for every example, and how many give each answer, (examples, outputs)."""
    task, clients = run.clients.task, run.clients
    wide, goal = outputs_shape(clients), task.goal
    total, votes = torch.zeros(2, len(split), *wide, dtype=torch.float64, device=split.x.device)
    exchange, state = run.now.exchange, assign_newcomers(run.method, run.state, clients)
    for block in all_clients(clients, state)[who].blocks(clients.block_size):
        rows = held(exchange, state, clients, block)
        rows = {name: rows[name] for name in task.names}
        for index in _pieces(len(split), max(1, AT_ONCE // len(block)), split.x.device):
            x = task.inputs(split.x[index])
            found = clients.run.outputs(rows, x.expand(len(block), *x.shape)).double()
            total[index] += found.sum(0)
            if goal.votes == "class":
                votes[index] += one_hot(found.argmax(-1), wide[0]).sum(0)
            elif goal.votes == "labels":
                votes[index] += (found > 0).sum(0)
    return total / len(who), votes


def _pieces(n: int, size: int, device: torch.device) -> Iterator[Tensor]:
    return iter(torch.split(torch.arange(n, device=device), size))
