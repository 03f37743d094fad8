"""Clients that see different labels: Dirichlet proportions, shards, a few classes each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import UsageError, require
from ..language import register
from ..stacks import draw
from .dealing import Partition, check_count, check_labels, check_real, crossed, for_training, shared_out, sizes_of
from .federation import Pool

_ATTEMPTS = 1_000


@dataclass(frozen=True)
class Dirichlet:
    """Each class c is shared out over the clients in proportions p_c ~ Dirichlet(alpha, ..., alpha).

    Large alpha approaches equal clients; at 0.1 most clients see few classes, and sizes differ too.

    Arguments:
        clients: how many.
        alpha: concentration.
        at_least: draw again until every client has so many training examples (before any are held out).

    Reference: Yurochkin et al., Bayesian nonparametric federated learning of neural networks, ICML 2019.
    """

    clients: int = 100
    alpha: float = 0.5
    at_least: int = 1

    def __post_init__(self) -> None:
        check_count("Dirichlet.clients", self.clients)
        check_real("Dirichlet.alpha", self.alpha, 1e-6, 1e9)
        check_count("Dirichlet.at_least", self.at_least, least=0)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        check_labels("Dirichlet", pool)
        train = for_training(pool)
        require(
            int(train.sum()) >= self.clients * self.at_least,
            f"Dirichlet: {int(train.sum())} training examples of '{pool.name}' do not give "
            f"{self.clients} clients {self.at_least} each; ask for fewer clients",
        )
        for attempt in range(_ATTEMPTS):
            source = np.random.default_rng(draw.seed_of(seed, "dirichlet", attempt))
            share = source.dirichlet(np.full(self.clients, self.alpha), len(pool.classes))
            dealt = shared_out(pool, self.clients, pool.y, torch.from_numpy(share), seed)
            if int(sizes_of(dealt, train).min()) >= self.at_least:
                return dealt
        raise UsageError(
            f"Dirichlet(clients={self.clients}, alpha={self.alpha}, at_least={self.at_least}): no draw of "
            f"{_ATTEMPTS:,} gave every client {self.at_least} of {int(train.sum())} training examples; "
            "raise alpha, or lower clients or at_least"
        )


@dataclass(frozen=True)
class Shards:
    """Examples are sorted by label and cut into equal shards; every client gets a few at random.

    Arguments:
        clients: how many.
        per_client: shards of each, and so about as many classes.

    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017, section 3 (the pathological non-IID partition).
    """

    clients: int = 100
    per_client: int = 2

    def __post_init__(self) -> None:
        check_count("Shards.clients", self.clients)
        check_count("Shards.per_client", self.per_client)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        check_labels("Shards", pool)
        train = for_training(pool).nonzero()[:, 0]
        n_shards = self.clients * self.per_client
        require(
            len(train) >= n_shards,
            f"Shards: {len(train)} training examples of '{pool.name}' do not make {n_shards} shards; "
            "ask for fewer clients",
        )
        order = train[torch.argsort(draw.bits(seed, "shards", train))]
        order = order[torch.argsort(pool.y[order], stable=True)]
        shard = torch.arange(len(order)) * n_shards // len(order)
        owner = draw.bits(seed, "shard owners", torch.arange(n_shards)).argsort() // self.per_client
        client = torch.zeros(len(pool.y), dtype=torch.int64).index_copy(0, order, owner[shard])

        # A class's test examples go to its owners in proportion; where nobody trains on it, to all by size.
        counts = crossed(pool.y[train], client[train], len(pool.classes), self.clients).double()
        counts = torch.where(counts.sum(1, keepdim=True) > 0, counts, counts.sum(0))
        dealt = shared_out(pool, self.clients, pool.y, counts / counts.sum(1, keepdim=True), seed)
        assert dealt.client is not None
        return replace(dealt, client=torch.where(for_training(pool), client, dealt.client))


@dataclass(frozen=True)
class Classes:
    """Every client has a few classes, and sizes differ by orders of magnitude.

    Client i has the classes i, i + 1 + i // C, ... (mod C), so that all classes and most pairs occur; the examples of
    a class are shared out over its clients in proportion to lognormal(0, spread) draws.

    Arguments:
        clients: how many.
        per_client: classes of each.
        spread: standard deviation of the logarithm of the sizes; 0 makes them equal.

    Reference: Li et al., Federated optimization in heterogeneous networks, MLSys 2020 (its MNIST: 1,000 clients).
    """

    clients: int = 100
    per_client: int = 2
    spread: float = 2.0

    def __post_init__(self) -> None:
        check_count("Classes.clients", self.clients)
        check_count("Classes.per_client", self.per_client)
        check_real("Classes.spread", self.spread, 0.0, 10.0)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        check_labels("Classes", pool)
        n_classes, client = len(pool.classes), torch.arange(self.clients)
        require(
            self.per_client <= n_classes,
            f"Classes.per_client is {self.per_client}, but '{pool.name}' has {n_classes} classes; ask for fewer",
        )
        share = torch.zeros(n_classes, self.clients, dtype=torch.float64)
        for j in range(self.per_client):
            mine = (client + j * (1 + client // n_classes % max(n_classes - 1, 1))) % n_classes
            while bool((taken := share[mine, client] > 0).any()):  # a class counts once: take the next
                mine = torch.where(taken, (mine + 1) % n_classes, mine)
            share[mine, client] = (self.spread * draw.normal(seed, "classes", client, j)).exp()
        empty = share.sum(1, keepdim=True) == 0  # a class nobody has, where there are few clients: all share it
        share = torch.where(empty, 1.0, share)
        return shared_out(pool, self.clients, pool.y, share / share.sum(1, keepdim=True), seed)


register(Partition, "dirichlet", Dirichlet, short="alpha")
register(Partition, "shards", Shards, short="per_client")
register(Partition, "classes", Classes, short="per_client")
