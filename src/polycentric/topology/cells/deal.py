"""Data dealt by cells: edges that see classes of their own, and clients that see some of them."""

import re
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ...data.dealing import Partition, check_count, check_labels, enough, only_classes, shared_out
from ...data.federation import Federation, Pool
from ...data.partition import Iid
from ...errors import require
from ...language import register
from ...stacks import draw
from .coverage import Geometry, covered
from .shapes import Attached, Overlap
from .tables import geometry


@dataclass(frozen=True)
class InCells:
    """Partition for cells of edges, IID or not: FedMes's three settings a, b and c.

        a   clients alike, cells alike: IID
        b   clients unlike, cells alike: every client draws `per_client` classes out of all
        c   clients unlike, cells unlike: the classes are split into L nearly equal groups, one a cell; a client draws
            from the group of its cell, one in an overlap from the groups of all its cells (`mixed`) or of one of them

    Classes are drawn so that all of them are drawn about equally often, and a class's examples are shared out evenly
    over those who drew it. The known group of a client is the region it is in. Where clients move, their cells are
    those of the first round.

    Arguments:
        clients: how many; None: as many as the cells were written for, else 90.
        setting: a, b or c.
        cells: who is covered by whom; the method must be given the same.
        per_client: classes of each, in b and c.
        two_per_cell: in c, a cell's group is two classes, and classes of no cell are left out of training and test.
        mixed: in c, whoever is in an overlap draws from the groups of all its cells; if not, from the group of the
            one cell a hierarchy would attach it to, so that data are alike in every geometry with equal cells.

    Reference: Han et al., FedMes, IEEE JSAC 2021; it does not say how overlaps are filled, so that is our rule.
    """

    clients: int | None = None
    setting: Literal["a", "b", "c"] = "c"
    cells: Geometry = Overlap(20, 10)
    per_client: int = 2
    two_per_cell: bool = False
    mixed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", geometry(self.cells))
        if self.clients is not None:
            check_count("InCells.clients", self.clients)
        check_count("InCells.per_client", self.per_client)
        require(self.setting in ("a", "b", "c"), f"InCells.setting must be a, b or c, got {self.setting!r}")
        require(
            self.setting == "c" or not self.two_per_cell,
            f"InCells.two_per_cell is about the classes of a cell; in setting {self.setting} it has all: use setting=c",
        )
        require(
            self.setting == "c" or self.mixed,
            f"InCells.mixed is about the classes in overlaps; in setting {self.setting} they have all: use setting=c",
        )

    def __call__(self, pool: Pool, seed: int) -> Pool:
        """The pool, dealt."""
        n = self.clients or self.cells.default_n_clients or 90
        enough(pool, n)
        cells = covered(self.cells, n, seed)
        if self.setting == "a":
            dealt = Iid(n)(pool, seed)
        else:
            check_labels("InCells", pool)
            home = cells if self.mixed else covered(Attached(self.cells), n, seed)
            may = self._groups(len(pool.classes))[home.edge]  # (links, classes): what an edge's clients may draw
            allowed = torch.zeros(n, len(pool.classes), dtype=torch.int64).index_add(0, home.client, may.long()) > 0
            share = self._drawn(allowed, seed).T.double()
            nobody = share.sum(1, keepdim=True) == 0  # too few clients for all classes: those who may, share it
            share = torch.where(nobody, allowed.T.double(), share)
            pool = only_classes(pool, allowed.any(0))
            share = torch.where(share.sum(1, keepdim=True) == 0, 1.0, share)
            dealt = shared_out(pool, n, pool.y, share / share.sum(1, keepdim=True), seed)
        assert dealt.client is not None
        names = tuple(f"cell {name}" for name in cells.regions.names())
        return replace(dealt, group=cells.regions.of[dealt.client], group_names=names)

    def _groups(self, n_classes: int) -> Tensor:
        """(edges, classes): which classes a cell's clients may draw."""
        n_edges, every = self.cells.n_edges, torch.arange(n_classes)
        if self.setting == "b":
            return torch.ones(n_edges, n_classes, dtype=torch.bool)
        edge = torch.arange(n_edges)[:, None]
        if self.two_per_cell:
            return ((2 * edge) % n_classes == every) | ((2 * edge + 1) % n_classes == every)
        if n_edges > n_classes:
            return edge % n_classes == every
        sizes = torch.full((n_edges,), n_classes // n_edges)
        sizes[: n_classes % n_edges] += 1
        return torch.repeat_interleave(torch.arange(n_edges), sizes) == edge

    def _drawn(self, allowed: Tensor, seed: int) -> Tensor:
        """(clients, classes): every client in turn, by lot, takes the classes taken least so far, ties by lot."""
        n, n_classes = allowed.shape
        lots = draw.uniform(seed, "in cells", torch.arange(n)[:, None], torch.arange(n_classes)).numpy()
        taken, out, may = np.zeros(n_classes), np.zeros((n, n_classes), dtype=bool), allowed.numpy()
        for k in draw.bits(seed, "in cells", torch.arange(n)).argsort().tolist():
            order = np.argsort(np.where(may[k], taken + lots[k], np.inf), kind="stable")
            mine = order[: min(self.per_client, int(may[k].sum()))]
            out[k, mine] = True
            taken[mine] += 1
        return torch.from_numpy(out)


def _in_cells(
    setting: Literal["a", "b", "c"] = "c",
    cells: Geometry = Overlap(20, 10),
    per_client: int = 2,
    two_per_cell: bool = False,
    mixed: bool = True,
    u: int | None = None,
    v: int | None = None,
    w: int | None = None,
    clients: int | None = None,
) -> InCells:
    """`cells(setting=c, u=20, v=10)`, or `cells(setting=c, cells=ring(edges=4))`."""
    sizes = {name: size for name, size in (("u", u), ("v", v), ("w", w)) if size is not None}
    if sizes:
        require(cells == Overlap(20, 10), "partition cells takes cells=... or u, v, w, not both")
        cells = Overlap(**sizes)
    return InCells(clients, setting, cells, per_client, two_per_cell, mixed)


def compare_cells(own: Geometry | None, federation: Federation, seed: int) -> None:
    """Say so where data were dealt for other cells than the method's, or for the same map drawn by another seed."""
    names = federation.group_names
    in_cells = bool(names) and all(re.fullmatch(r"cell \d+(\+\d+)*", name) for name in names)
    if own is None or federation.group is None or not in_cells:
        return
    apart = federation.n_clients
    for cells in {own, own.of if isinstance(own, Attached) else own}:
        regions = covered(cells, federation.n_clients, seed).regions
        known = {f"cell {name}": number for number, name in enumerate(regions.names())}
        dealt = torch.tensor([known.get(name, -1) for name in names])[federation.group.cpu()]
        apart = min(apart, int(((dealt != regions.of) & (federation.train.sizes.cpu() > 0)).sum()))
    if apart:
        warnings.warn(
            f"the data are partitioned for other cells than the method's: {apart} of {federation.n_clients} clients "
            'are in other cells; to give both the same, write --partition "cells(setting=c, cells=...)" and --set '
            '"cells=...", with the same seed for a map',
            stacklevel=3,
        )


register(Partition, "cells", _in_cells, short="setting")
