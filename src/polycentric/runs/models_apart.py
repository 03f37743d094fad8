"""Models beside each other: what centers would score whoever uses them, and how far apart models and gradients are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Split
from ..learn import Gradient
from ..method import Method, State
from ..simulate.clients import Simulation
from ..stacks.all_rows import each, inner_products, pieces
from ..tasks.classification import score_classes
from ..tasks.scores import Scores
from .evaluate import all_clients, held, in_chunks

FEW = 1000  # centers whose inner products are all computed
MOST = 1 << 22  # products of two centers' numbers at once


def optimistic(method: Method, state: State, clients: Simulation, split: Split) -> tuple[Scores, Scores] | None:
    """Scores that LOOK AT THE TEST LABELS to choose a model: never a result, only a measure of somebody's optimism.

        for every client   a_i  =  max_k  accuracy of center k on client i's examples of `split`
        for all at once    a_i  =  accuracy of center k*,   k* = argmax_k  sum_i n_i a_i(k) / sum_i n_i

    A published program reports its many centers under the second rule. Beside the score under every client's own
    center, `optimistic` says how much of a difference between methods such a choice makes. Nothing may be chosen,
    tuned or stopped by it. With one center all three are the same. None where clients share no whole models:
    each is its own center, or keeps a part for itself.
    """
    exchange = method.in_use(state.round)
    own = exchange.topology.at_home or len(clients.task.names) > 1  # a second name is a client's own, kept or not
    if own or clients.task.goal.votes != "class" or not len(split):
        return None
    centers, n = state.centers["model"], clients.federation.n_clients
    owner, labels = split.owner.cpu(), split.y.cpu()
    losses, predicted = map(torch.stack, zip(*(_outcome(clients, split, row) for row in centers), strict=True))
    right = (predicted == labels).double()
    every = torch.arange(len(split))
    by_client = torch.zeros(len(centers), n, dtype=torch.float64).index_add_(1, owner, right)  # ties: the lowest number

    def chosen(center: Tensor) -> Scores:
        picked, lost = predicted[center, every].numpy(), losses[center, every].numpy()
        return score_classes(picked, labels.numpy(), lost, owner.numpy(), n, len(clients.federation.classes))

    return chosen(by_client.argmax(0)[owner]), chosen(right.mean(1).argmax().expand(len(split)))


def dissimilarity(method: Method, state: State, clients: Simulation) -> float | None:
    """How unlike the clients' gradients are at the models in use: 1/m sum_k |grad F_k - grad F|^2.

    grad F = sum_k p_k grad F_k with p_k by data size. Zero for identical clients; FedProx's measure of heterogeneity.
    None where clients share no parameters.
    """
    if not clients.task.layouts["model"].width:
        return None
    exchange, everyone = method.in_use(state.round), clients.everyone(state.round)
    everyone = everyone[~clients.attackers[everyone.index]]
    share = everyone.weights / everyone.weights.sum()
    squares, plain, mean = 0.0, torch.zeros(1), torch.zeros(1)
    place = torch.full((clients.federation.n_clients,), -1)
    place[everyone.index] = torch.arange(len(everyone))
    for block in everyone.blocks(clients.block_size):
        rows = held(exchange, state, clients, block)
        gradients = clients.run(Gradient(), rows, block)["gradient"].double().cpu()
        squares += float(gradients.square().sum())
        plain = plain + gradients.sum(0)
        mean = mean + share[place[block.index]] @ gradients
    m = len(everyone)
    return max(0.0, (squares - 2 * float(plain @ mean)) / m + float(mean @ mean))


def consensus(method: Method, state: State, clients: Simulation) -> float | None:
    """How far apart the models of those who train are, |(I - J) W|_F; None where centers do not live at clients.

    In float64, some columns at a time.
    """
    if not method.in_use(state.round).topology.at_home:
        return None
    rows, who = state.centers["model"], clients.everyone(state.round).index.to(state.centers["model"].device)

    def apart(piece: slice) -> Tensor:
        part = rows[who, piece].double()
        return (part - part.mean(0)).square().sum()

    squares = torch.zeros((), dtype=torch.float64, device=rows.device)
    for found in each(apart, pieces(rows), rows):
        squares += found
    return float(squares.sqrt())


def average(method: Method, state: State, clients: Simulation, split: Split) -> dict[str, float]:
    """The plain mean of all centers as one model, scored on everybody's examples; empty where it would mean nothing.

    It means something where several centers work towards one model (`topology.averages`) and all of it travels. An edge
    that has heard nobody in all rounds is left out: its model is the one it began with.
    """
    if not _one_model(method, state, clients) or not len(split):
        return {}
    rows = state.centers["model"]
    learned = method.in_use(state.round).topology.learned(state.memory)
    if learned is not None and bool(learned.any()):
        rows = rows[learned.to(rows.device)]
    loss, predicted = _outcome(clients, split, rows.mean(0, dtype=torch.float64).to(rows.dtype))
    found = {"average_loss": float(loss.mean())}
    right = clients.task.goal.right(predicted, split.y.cpu())
    return found if right is None else found | {"average_accuracy": float(right.mean())}


class EdgeScores(NamedTuple):
    """How well every center's own model does."""

    everywhere: Tensor  # (centers,) accuracy on everybody's examples
    at_home: Tensor  # (centers,) accuracy on the examples of the clients that hear it; NaN where nobody has any


def edge_scores(method: Method, state: State, clients: Simulation, split: Split) -> EdgeScores | None:
    """Every center's model on all examples and on those of its own cell; None where it would mean nothing."""
    if not _one_model(method, state, clients) or not len(split) or clients.task.goal.votes != "class":
        return None
    down = method.in_use(state.round).topology.down(state.memory, all_clients(clients, state), "model")
    receiver, sender, _ = down.links
    owner, everywhere, at_home = split.owner.cpu(), [], []
    for center, row in enumerate(state.centers["model"]):
        right = _outcome(clients, split, row)[1] == split.y.cpu()
        mine = torch.zeros(clients.federation.n_clients, dtype=torch.bool)
        mine[receiver[sender == center]] = True
        everywhere.append(right.double().mean())
        at_home.append(right[mine[owner]].double().mean())
    return EdgeScores(torch.stack(everywhere), torch.stack(at_home))


def disagreement(method: Method, state: State, clients: Simulation) -> float:
    """How far the clients' models are apart: Q = 1/m sum_k |w_k - mean of w|^2, with W = down @ centers.

    With B = down^T down / m, which has an entry where two centers share a client, and d the mean row of `down`:

        Q = sum_ij B_ij <c_i, c_j> - |sum_i d_i c_i|^2

    about the mean of the centers c, in float64, from all their inner products where they are few, and only from those
    that B asks for where they are many. No client's model is formed.
    """
    from scipy.sparse import coo_array

    everyone = all_clients(clients, state)
    down = method.in_use(state.round).topology.down(state.memory, everyone, "model")
    receiver, sender, weight = down.links
    weight = weight / down.total[receiver]
    table = coo_array((weight.numpy(), (receiver.numpy(), sender.numpy())), shape=down.shape).tocsr()
    both, mean = (table.T @ table / len(everyone)).tocoo(), table.sum(0) / len(everyone)
    rows = state.centers[down.of or "model"]
    if len(rows) <= FEW:
        gram, apart = inner_products(rows).cpu().numpy(), both.toarray() - mean[:, None] * mean
        return max(0.0, float((gram * apart).sum()))
    i, j, weight, mean = (torch.as_tensor(part, device=rows.device) for part in (*both.coords, both.data, mean))
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, max(1, MOST // len(i)), 1):
        about = part.double() - part.mean(0, dtype=torch.float64)
        total += weight @ (about[i] * about[j]).sum(1) - (mean @ about).square().sum()
    return max(0.0, float(total))


def _one_model(method: Method, state: State, clients: Simulation) -> bool:
    exchange = method.in_use(state.round)
    if clients.federation.absent:
        return False
    whole = not exchange.unpack and not state.kept.keys() & set(clients.task.names)
    return exchange.topology.averages and len(state.centers["model"]) > 1 and whole


@torch.no_grad()
def _outcome(clients: Simulation, split: Split, row: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, prediction) of one model on every example of a split, on the host."""
    losses, predicted, goal = [], [], clients.task.goal
    for x, y in in_chunks(split):
        outputs = clients.task.predict({"model": row}, clients.task.inputs(x))
        losses.append(clients.task.loss(outputs, clients.task.targets(y)).double())
        predicted.append(goal.answers(outputs))
    return torch.cat(losses).cpu(), torch.cat(predicted).cpu()
