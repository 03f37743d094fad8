"""A partition deals a pool of examples to clients; how unlike the clients become is its whole point.

    Natural()            whoever made an example owns it; Natural(by="device5") where there are several kinds of owners
    Iid(100)             equal sizes, labels at random
    Dirichlet(100, 0.5)  every class is shared out in its own random proportions; small alpha, unlike clients
    Shards(100, 2)       sorted by label and cut: a client sees about two classes
    Classes(100, 2)      two classes a client, sizes of all magnitudes
    Quantity(100, 1.5)   sizes by a power law, labels at random
    Rotations(4, 40)     alike clients, but a quarter of them each see their images turned: four true groups
    InCells(90, "c")     cells of edges that see classes of their own, and clients that see two of them
    Turned(deal, 2)      any other partition, and then half of the clients see their images upside down
    Sampled(deal, 10000) any other partition, of so many examples

A partition takes a `Pool` and a seed and gives the pool back with a client for every example. Training and test
examples are dealt by the same rule in the same proportions, so a client's test labels follow its training labels.
Every draw is a function of its key (see `draw`): the same seed deals the same cards on every machine.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import UsageError, require, unknown
from ..language import part_of, register
from ..stacks import draw
from .dealing import (
    Partition,
    check_count,
    check_labels,
    check_real,
    crossed,
    enough,
    for_training,
    hashed,
    shared_out,
    sizes_of,
    some_of,
    some_of_each,
)
from .federation import Pool

_ATTEMPTS = 1_000


@dataclass(frozen=True)
class Natural:
    """Every example stays with the client that made it.

    Arguments:
        clients: keep that many clients, chosen by the seed; None keeps all.
        by: where there are several kinds of natural clients, which: natural=device5. Empty: those the data name first.
    """

    clients: int | None = None
    by: str = ""

    def __post_init__(self) -> None:
        if self.clients is not None:
            check_count("Natural.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool as it is, or the part of it that belongs to the chosen clients."""
        if pool.client is None:
            raise UsageError(
                f"data '{pool.name}' have no natural clients; choose a partition such as iid or dirichlet=0.5"
            )
        if self.by:
            several = bool(pool.divisions)
            require(several, f"data '{pool.name}' have one kind of natural clients, not '{self.by}': write natural")
            if self.by not in pool.divisions:
                raise unknown(f"kind of client of '{pool.name}'", self.by, pool.divisions)
            client, clients = pool.divisions[self.by]
            return Natural(self.clients)(replace(pool, client=client, clients=clients), seed)
        there = len(pool.clients)
        if self.clients is None or self.clients == there:
            return pool
        if self.clients > there:
            warnings.warn(
                f"data '{pool.name}' have only {there} natural clients, not {self.clients}: all are kept", stacklevel=2
            )
            return pool
        # By name, so that a client's luck does not depend on who else is there.
        chosen = draw.bits(seed, "natural", hashed(pool.clients)).argsort(stable=True)
        chosen = chosen[: self.clients].sort().values
        new = torch.full((there,), -1).index_copy(0, chosen, torch.arange(self.clients))
        kept = new[pool.client] >= 0
        return replace(
            some_of(pool, kept), client=new[pool.client[kept]], clients=tuple(pool.clients[k] for k in chosen.tolist())
        )


@dataclass(frozen=True)
class Iid:
    """IID: equal sizes (to one example) and labels at random, so all clients are alike.

    Arguments:
        clients: how many.
    """

    clients: int = 100

    def __post_init__(self) -> None:
        check_count("Iid.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        enough(pool, self.clients)  # before anything is as long as they are many
        share = torch.full((1, self.clients), 1 / self.clients, dtype=torch.float64)
        return shared_out(pool, self.clients, torch.zeros(len(pool.y), dtype=torch.int64), share, seed)


@dataclass(frozen=True)
class Quantity:
    """Sizes follow a power law, n_k ~ rank^-skew with ranks at random; labels at random.

    Arguments:
        clients: how many; every one gets at least one training example.
        skew: 0 for equal sizes; at 1.5 the largest of 100 clients has some 40 % of all examples.
    """

    clients: int = 100
    skew: float = 1.5

    def __post_init__(self) -> None:
        check_count("Quantity.clients", self.clients)
        check_real("Quantity.skew", self.skew, 0, 10)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        n = int(enough(pool, self.clients).sum())
        rank = 1 + draw.bits(seed, "quantity", torch.arange(self.clients)).argsort().argsort()
        share = rank.double() ** -self.skew
        share = (1 + max(n - self.clients, 0) * share / share.sum()) / max(n, self.clients)
        stratum = torch.zeros(len(pool.y), dtype=torch.int64)
        return shared_out(pool, self.clients, stratum, share[None], seed)


@dataclass(frozen=True)
class Skewed:
    """Natural clients, some of which have lost most of their training examples; test examples stay as they are.

        n_k  ->  n_k u_k,     log u_k uniform on [-log ratio, 0],     at least two

    Arguments:
        clients: keep that many clients, chosen by the seed; None keeps all.
        ratio: how many times fewer examples the poorest client keeps.
    """

    clients: int | None = None
    ratio: float = 100.0

    def __post_init__(self) -> None:
        check_real("Skewed.ratio", self.ratio, 1, 1e6)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool without the examples that were lost."""
        pool = Natural(self.clients)(pool, seed)
        training = for_training(pool)
        share = self.ratio ** -draw.uniform(seed, "skewed", hashed(pool.clients))
        kept = some_of_each(pool, training, lambda n: (share * n).round().long().clamp(min=2), seed, "skewed")
        return some_of(pool, ~training | kept)


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
        enough(pool, self.clients)
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
        enough(pool, self.clients)
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


def parse(text: str, clients: int | None = None, otherwise: int | None = None) -> Partition:
    """A partition from a text: natural, natural=device5, iid, dirichlet=0.5, shards=2, classes=2, quantity=1.5,
    skewed=100, rotations=4, cells=c, or with any of their settings, dirichlet(alpha=0.5, at_least=10); after a + what
    else is done, rotations=2 or sample=10000.

    Arguments:
        text: the words.
        clients: how many; a text that says another number is refused.
        otherwise: how many, where nobody says it.

    >>> parse("dirichlet=0.1", 20)
    Dirichlet(clients=20, alpha=0.1, at_least=1)
    >>> parse("iid+rotations=2", 10)
    Turned(deal=Iid(clients=10), k=2)
    """
    wanted = clients if clients is not None else otherwise
    made: Partition = part_of("partition", text, Partition, unless_said={} if wanted is None else {"clients": wanted})
    inner: object = made
    while hasattr(inner, "deal"):
        inner = inner.deal
    said = getattr(inner, "clients", None)
    good = clients is None or said == clients
    require(good, f"partition '{text}' is for {said} clients, but clients is {clients}; leave one of them out")
    return made


register(Partition, "dirichlet", Dirichlet, short="alpha")
register(Partition, "shards", Shards, short="per_client")
register(Partition, "classes", Classes, short="per_client")
register(Partition, "natural", Natural, short="by")
register(Partition, "iid", Iid)
register(Partition, "quantity", Quantity, short="skew")
register(Partition, "skewed", Skewed, short="ratio")
