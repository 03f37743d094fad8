"""A partition deals a pool of examples to clients; how unlike the clients become is its whole point.

    Natural()            whoever made an example owns it
    Iid(100)             equal sizes, labels at random
    Dirichlet(100, 0.5)  every class is shared out in its own random proportions; small alpha, unlike clients
    Shards(100, 2)       sorted by label and cut: a client sees about two classes
    Classes(100, 2)      two classes a client, sizes of all magnitudes
    Quantity(100, 1.5)   sizes by a power law, labels at random
    Rotations(4, 40)     alike clients, but a quarter of them each see their images turned: four true groups
    InCells(90, "c")     cells of edges that see classes of their own, and clients that see two of them
    Turned(deal, 2)      any other partition, and then half of the clients see their images upside down
    Sampled(deal, 10000) any other partition, of so many examples

A partition takes a `Pool` and a seed and gives the pool back with a client for every example. Training and
test examples are dealt by the same rule in the same proportions, so a client's test labels follow its
training labels.
Every draw is a function of its key (see `draw`): the same seed deals the same cards on every machine.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch

from ..errors import UsageError, require
from ..language import part_of, register
from ..stacks import draw
from .dealing import Partition, check_count, check_real, for_training, hashed, shared_out, some_of
from .federation import Pool


@dataclass(frozen=True)
class Natural:
    """Every example stays with the client that made it.

    Arguments:
        clients: keep that many clients, chosen by the seed; None keeps all.
    """

    clients: int | None = None

    def __post_init__(self) -> None:
        if self.clients is not None:
            check_count("Natural.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool as it is, or the part of it that belongs to the chosen clients."""
        if pool.client is None:
            raise UsageError(
                f"data '{pool.name}' have no natural clients; choose a partition such as iid or dirichlet=0.5"
            )
        there = len(pool.clients)
        if self.clients is None or self.clients == there:
            return pool
        if self.clients > there:
            warnings.warn(
                f"data '{pool.name}' have {there} natural clients, not {self.clients}: all are kept", stacklevel=2
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
    """Equal sizes (to one example) and labels at random: all clients are alike.

    Arguments:
        clients: how many.
    """

    clients: int = 100

    def __post_init__(self) -> None:
        check_count("Iid.clients", self.clients)

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        share = torch.full((1, self.clients), 1 / self.clients, dtype=torch.float64)
        return shared_out(pool, self.clients, torch.zeros_like(pool.y, dtype=torch.int64), share, seed)


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
        n = int(for_training(pool).sum())
        rank = 1 + draw.bits(seed, "quantity", torch.arange(self.clients)).argsort().argsort()
        share = rank.double() ** -self.skew
        share = (1 + max(n - self.clients, 0) * share / share.sum()) / max(n, self.clients)
        stratum = torch.zeros_like(pool.y, dtype=torch.int64)
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
        client, training = pool.client, for_training(pool)
        assert client is not None
        key = hashed(pool.clients)
        share = self.ratio ** -draw.uniform(seed, "skewed", key)
        size = torch.bincount(client[training], minlength=len(pool.clients))
        keep = (share * size).round().long().clamp(min=2)
        examples = training.nonzero()[:, 0]
        examples = examples[torch.argsort(client[examples], stable=True)]
        owner = client[examples]
        rank = torch.arange(len(examples)) - (size.cumsum(0) - size)[owner]
        order = draw.shuffled(owner, seed, "skewed", key[owner], rank)
        kept = ~training
        kept[examples[order[rank < keep[owner]]]] = True
        parts = ("x", "y", "client", "test", "common_test", "group", "protected")
        some = {name: value[kept] for name in parts if (value := getattr(pool, name)) is not None}
        return replace(pool, **some, extra={name: value[kept] for name, value in pool.extra.items()})


def parse(text: str, clients: int | None = None, otherwise: int | None = None) -> Partition:
    """A partition from a text: natural, iid, dirichlet=0.5, shards=2, classes=2, quantity=1.5, skewed=100, rotations=4,
    cells=c, or with any of their settings, dirichlet(alpha=0.5, at_least=10); after a + what else is done, rotations=2
    or sample=10000.

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
    require(
        clients is None or said == clients,
        f"partition '{text}' is for {said} clients, but clients is {clients}; leave one of them out",
    )
    return made


register(Partition, "natural", Natural)
register(Partition, "iid", Iid)
register(Partition, "quantity", Quantity, short="skew")
register(Partition, "skewed", Skewed, short="ratio")
