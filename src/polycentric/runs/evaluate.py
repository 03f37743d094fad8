"""Evaluation stands beside the round: receive, perhaps learn a little more, mix nothing.

A client's model is always `down @ centers` together with what it keeps; its score is on its own examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..data import Split
from ..errors import require
from ..learn import Train
from ..learn.cpu.quick_dense import quick_dense_layers
from ..method import Exchange, Method, State
from ..round import Answer, opened, receive
from ..simulate.clients import Simulation, block_of, piece_of
from ..simulate.processes import Piece
from ..simulate.shared_memory import Parcel
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks, take, to_device_of, write
from ..tasks.metric import Metric
from ..tasks.scores import Integers, Mark, Reals, Scores, mean_by_client
from ..tasks.task import Task

Ask = Callable[[Exchange, State, Cohort], Iterable[Answer]]
CHUNK = 4096  # examples of one model at once, where they are small
SMALL = 4096  # numbers of such an example; of larger ones fewer are looked at together
TENTHS = 10  # of a histogram
RECTANGLE = 1 << 14  # examples of a block of models at once


def evaluate(method: Method, state: State, clients: Simulation, split: Split, fine_tune: Train | None = None) -> Scores:
    """Every client's score on its part of `split`, before or after some local training of its own.

    Where parts of the model could answer alone (a general and a private one behind a gate), how well each would do
    stands beside it.
    """
    state = assign_newcomers(method, state, clients)
    scores = scored(clients, split, _predictions(method, state, clients, split, fine_tune))
    for part in clients.task.answers:
        alone = scored(clients, split, _predictions(method, state, clients, split, fine_tune, part))
        scores = scores.beside(part, alone)
    return scores


def histograms(method: Method, state: State, clients: Simulation, split: Split) -> dict[str, float]:
    """The share of all examples in every tenth of [0, 1], for parts that give each a number there, such as a gate.

    `gate_share_0` is the share of examples with a(x) in [0, 0.1), `gate_share_9` that with a(x) in [0.9, 1].
    """
    found: dict[str, float] = {}
    if not clients.task.shares or not len(split) or clients.federation.absent:
        return found
    state = assign_newcomers(method, state, clients)
    for part in clients.task.shares:
        counts = torch.zeros(TENTHS, dtype=torch.float64)
        for _, outputs in _predictions(method, state, clients, split, None, part):
            tenth = (outputs.flatten() * TENTHS).long().clamp(0, TENTHS - 1)
            counts += torch.bincount(tenth, minlength=TENTHS).cpu().double()
        clients.ranks.add(counts)
        found |= {f"{part}_share_{k}": n / len(split) for k, n in enumerate(counts.tolist())}
    return found


def scored(clients: Simulation, split: Split, predictions: Iterable[tuple[Tensor, Tensor]]) -> Scores:
    """Every client's score on its part of `split` from (positions in the split, outputs there), each example once."""
    federation, task, device = clients.federation, clients.task, split.x.device
    metrics, gathers = task.metrics, _per_client(clients)
    goal, n, target = task.goal, len(split), tuple(split.y.shape[1:])
    losses = torch.zeros(n, dtype=torch.float64, device=device)
    noted = torch.zeros(n, *goal.room(task.n_outputs, target), dtype=torch.float64, device=device)
    marks = torch.zeros(len(metrics), n, dtype=torch.float64, device=device)
    outputs_of = torch.zeros((n, *outputs_shape(clients)) if any(gathers) else 0, dtype=torch.float64, device=device)
    for index, outputs in predictions:  # this rank's share
        targets = task.targets(split.y[index])
        losses[index] = task.loss(outputs, targets).double()
        noted[index] = goal.noted(outputs)
        for at, (metric, per_client) in enumerate(zip(metrics, gathers, strict=True)):
            if not per_client:
                marks[at, index] = metric(outputs, targets)
        if any(gathers):
            outputs_of[index] = outputs.double()
    found = [part.cpu() for part in (losses, noted, marks, outputs_of)]  # a GPU is waited for once
    clients.ranks.add(*found[: 2 if not metrics else 4])
    losses, noted, marks, outputs_of = found
    y, owner = split.y.cpu().numpy(), split.owner.cpu().numpy()
    scores = goal.score(noted.numpy(), y, losses.numpy(), owner, federation.n_clients, federation.classes)
    if not metrics:
        return scores
    own = {}
    for metric, per_client, values in zip(metrics, gathers, marks, strict=True):
        each = mean_by_client(values.numpy(), owner, scores.count)
        if per_client:
            each = _of_each_client(metric, outputs_of.to(task.dtype), task.targets(split.y.cpu()), split, scores.count)
        own[metric.name] = Mark(each, metric.lower_is_better)
    return replace(scores, marks={**scores.marks, **own})


def answered(method: Method, state: State, clients: Simulation, split: Split) -> Tensor:
    """What the goal notes of every example of a split under its client's model, on the host: answers, boxes."""
    state, goal = assign_newcomers(method, state, clients), clients.task.goal
    found = torch.zeros(len(split), *goal.room(clients.task.n_outputs, tuple(split.y.shape[1:])), dtype=torch.float64)
    for index, outputs in _predictions(method, state, clients, split, None):
        found[index.cpu()] = goal.noted(outputs).cpu()
    clients.ranks.add(found)
    return found


def example_losses(method: Method, state: State, clients: Simulation, split: Split) -> Tensor:
    """The loss of every example of a split under the model that its client uses, (examples,) float64, on the host."""
    state, task = assign_newcomers(method, state, clients), clients.task
    found = torch.zeros(len(split), dtype=torch.float64)
    for index, outputs in _predictions(method, state, clients, split, None):
        found[index.cpu()] = _precise(task, outputs, split.y[index]).cpu()
    clients.ranks.add(found)
    return found


def at_once(chunk: int, x: Tensor) -> int:
    """How many examples such as x to look at together, where it would be `chunk` of small ones."""
    return max(1, chunk * SMALL // max(SMALL, math.prod(x.shape[1:])))


def in_chunks(split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples and targets, some at a time."""
    n = at_once(CHUNK, split.x)
    return zip(torch.split(split.x, n), torch.split(split.y, n), strict=True)


@torch.no_grad()
def best_losses(clients: Simulation, split: Split, models: Tensor) -> Tensor:
    """The loss of every example under the model that fits it best, whoever uses which, (examples,), on the host."""
    found = torch.full((len(split),), torch.inf, dtype=torch.float64)
    for row in models:
        each = []
        for x, y in in_chunks(split):
            each.append(_precise(clients.task, clients.task.predict({"model": row}, clients.task.inputs(x)), y))
        found = torch.minimum(found, torch.cat(each).cpu())
    return found


def _precise(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Losses in float64: in float32 those near zero are all the same. The user's own loss has its own type."""
    targets = task.targets(y)
    if task.loss != task.goal.loss:
        return task.loss(outputs, targets).double()
    return task.loss(outputs.double(), targets.double() if targets.is_floating_point() else targets)


def _few(clients: Simulation) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a few training examples, two at least."""
    task, train = clients.task, clients.federation.train
    x, y = train.x[:3].to(task.device), train.y[:3].to(task.device)
    if len(x) == 1:
        x, y = torch.cat([x, x]), torch.cat([y, y])
    return task.predict({name: row[0] for name, row in task.start().items()}, task.inputs(x)).detach(), y


def outputs_shape(clients: Simulation) -> tuple[int, ...]:
    """The shape of one example's outputs."""
    return tuple(_few(clients)[0].shape[1:])


def _per_client(clients: Simulation) -> list[bool]:
    """Which metrics are made of all of a client's examples together."""
    task = clients.task
    if not task.metrics:
        return []
    outputs, y = _few(clients)
    return [not metric.per_example(outputs, task.targets(y)) for metric in task.metrics]


def _of_each_client(metric: Metric, outputs: Tensor, targets: Tensor, split: Split, count: Integers) -> Reals:
    each = np.full(len(count), np.nan)
    for k in count.nonzero()[0]:
        first = int(split.first[k])
        mine = slice(first, first + int(split.sizes[k]))
        each[k] = float(metric(outputs[mine], targets[mine]))
    return each


def assign_newcomers(method: Method, state: State, clients: Simulation) -> State:
    """The state in which everybody has found a place, also those who are held out of training."""
    greets = any(exchange.topology.greets for exchange in method.at(state.round))
    _refuse_absent(clients, greets and bool((clients.federation.train.sizes > 0).any()))
    return greeted(method, state, all_clients(clients, state), clients.answers)


def greeted(method: Method, state: State, everyone: Cohort, ask: Ask) -> State:
    """The state in which everybody has found a place.

    An exchange that sends nothing to be mixed only finds out something about its clients: here it is done for all who
    have training examples, and forgotten again.
    """
    for exchange in method.at(state.round):
        if exchange.topology.greets:
            cohort = exchange.select(state.memory, everyone[everyone.sizes > 0])
            place, answers = exchange.topology.place, ask(exchange, state, cohort)
            notes = [(a.block.index, place(state.memory, a.block, state.centers, a.sent)) for a in answers]
            state = replace(state, memory=write(state.memory, notes))
    return state


@torch.no_grad()
def _predictions(
    method: Method, state: State, clients: Simulation, split: Split, fine_tune: Train | None, part: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """(positions in the split, outputs of the model or a part of it there), every example of this rank's share once."""
    exchange = method.in_use(state.round)
    everyone = all_clients(clients, state)[split.sizes > 0]
    down = exchange.topology.down(state.memory, everyone, "model")
    personal = exchange.unpack or fine_tune is not None or len(clients.task.names) > 1
    predicting, pieces = Predicting(clients, exchange, split, fine_tune, part), []
    if down.form == "gather" and not personal:
        # Clients of one center share a model: one pass over all their examples, no stack.
        centers = torch.full((clients.federation.n_clients,), -1)
        centers[everyone.index] = down.links.sender
        center_of = centers[split.owner.cpu()]
        for center in torch.unique(down.links.sender).tolist():
            chunks = torch.split((center_of == center).nonzero()[:, 0], at_once(CHUNK, split.x))
            pieces += [partial(Piece, {"center": center}, {"chunk": {"index": index}}) for index in chunks]
    else:
        by_size = torch.argsort(split.sizes[everyone.index], descending=True, stable=True)
        for block in everyone[by_size].blocks(clients.block_size):
            pieces.append(partial(lambda block: piece_of(block, kept=take(state.kept, block.index)), block))
    yield from clients.each((exchange, split, fine_tune, part), predicting, state, clients.ranks.mine(pieces))


@dataclass(frozen=True, eq=False)
class Predicting:
    """What a process does that predicts for another: the examples of a center, or of a block of clients."""

    clients: Simulation
    exchange: Exchange
    split: Split
    fine_tune: Train | None
    part: str

    @torch.no_grad()
    def stream(self, state: State, piece: Piece) -> Iterator[tuple[Tensor, Tensor]]:
        """(positions, outputs), some at a time."""
        clients, split = self.clients, self.split
        if "center" in piece.words:
            row = {"model": state.centers["model"][piece.words["center"]]}
            index = to_device_of(split.x, piece.tensors["chunk"]["index"])
            with quick_dense_layers(split.x.device):
                outputs = clients.task.inside(self.part).predict(row, clients.task.inputs(split.x[index]))
            yield index, outputs
            return
        block = block_of(piece)
        rows = held(self.exchange, state, clients, block, piece.tensors["kept"])
        yield from _rectangles(tuned(rows, clients, block, self.fine_tune), clients, split, block, self.part)

    def __call__(self, state: State, piece: Piece) -> Parcel:
        """All of them."""
        index, outputs = zip(*self.stream(state, piece), strict=True)
        return {"found": {"index": torch.cat(index), "outputs": torch.cat(outputs)}}


def tuned(rows: Stacks, clients: Simulation, block: Cohort, fine_tune: Train | None) -> Stacks:
    """What clients have after some training of their own; those without training examples, as they were."""
    trainable = block.sizes > 0
    if fine_tune is None or not bool(trainable.any()):
        return rows
    rows = rows | {"start": rows["model"]}
    learned = clients.run(fine_tune, take(rows, trainable), block[trainable])
    here = (to_device_of(rows["model"], trainable),)
    return rows | {n: rows[n].index_put(here, new) for n, new in learned.items()}


@torch.no_grad()
def scored_rows(rows: Stacks, clients: Simulation, split: Split, block: Cohort) -> Scores:
    """The scores of what a block of clients has, on their own examples; of others there are none."""
    scores = scored(clients, split, _rectangles(rows, clients, split, block, ""))
    for part in clients.task.answers:
        scores = scores.beside(part, scored(clients, split, _rectangles(rows, clients, split, block, part)))
    return scores


def held(exchange: Exchange, state: State, clients: Simulation, block: Cohort, kept: Stacks | None = None) -> Stacks:
    """What clients have before they learn; `kept`: what they keep, where the state does not say it."""
    _refuse_absent(clients, bool(exchange.unpack))
    kept = take(state.kept, block.index) if kept is None else kept
    kept = {name: rows.to(clients.task.device) for name, rows in kept.items()}
    return opened(exchange, kept | receive(exchange, state, block), clients.run, block)


def _refuse_absent(clients: Simulation, chosen: bool) -> None:
    good = not (chosen and clients.federation.absent)
    require(
        good,
        "the model of a client is chosen by its examples, which the run's folder does not hold: say center=0 (--center "
        "0), or open the run in Python with federation=...",
    )


def _rectangles(
    rows: Stacks, clients: Simulation, split: Split, block: Cohort, part: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of clients in falling order of their examples; those who have no more leave from the end."""
    rows = {name: rows[name] for name in clients.task.names}
    sizes, first, begin = split.sizes[block.index], split.first[block.index], 0
    while n := int((sizes > begin).sum()):
        place = torch.arange(begin, min(begin + max(1, at_once(RECTANGLE, split.x) // n), int(sizes.max())))
        valid = place < sizes[:n, None]
        index = to_device_of(split.x, torch.where(valid, first[:n, None] + place, 0))
        active = {name: row[:n] for name, row in rows.items()}
        outputs = clients.run.outputs(active, clients.task.inputs(split.x[index]), part)
        real = to_device_of(split.x, valid.flatten().nonzero()[:, 0])
        yield index.flatten()[real], outputs.flatten(0, 1)[real]
        begin += len(place)


def all_clients(clients: Simulation, state: State) -> Cohort:
    """Everybody, with or without training data, held out or not."""
    sizes = clients.federation.train.sizes
    effort = torch.ones(len(sizes), dtype=torch.float64)
    return Cohort(torch.arange(len(sizes)), sizes, effort, len(sizes), clients.seed, state.round)
