"""How many groups there are: found from what clients learn on two halves of their examples, and found again.

    a_i, b_i     updates of client i on either half of its examples, from one model; of length 1 by cosine
    c_i       =  (a_i + b_i) / 2
    r(K)      =  the best K groups of the c_i                               Lloyd's iteration, K = 1, 2, ...
    m_g^i     =  mean of the c_j with r_j = g, j != i                       what the others of a group want
    g_i       =  argmin_g |a_i - m_g^i|^2                                   where one half of client i belongs
    e_i(K)    =  |b_i - m_{g_i}^i|^2                                        how badly that foretells its other half
    K         =  the fewest groups whose mean e_i is within a standard error of the least; both halves taken in turn

The two halves of a client have in common what its population wants, and nothing else: what was chance in a_i, by which
g_i was chosen, is not in b_i. With too few groups the mean is of several populations; with too many it is of few
clients, and chance decides which. So the mean error is least at the number of groups there are, and at one where there
are none. Clients that differ without groups, by their labels say, are cut into as many as foretell best.

The number of centers changes only where the new one foretells better by more than two standard errors over clients, and
clients move between them only where that foretells better. Then several centers must pay: every client compares, on
either half of its examples, its group's mean of what was learned on the other halves with everybody's mean of it.

    several from one:    where more examples are answered right by the groups' means
    one from several:    where fewer are, by more than two standard errors over clients
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ...parts.select import Select
from ...stacks import Cohort, Mixing, Stacks
from ...stacks.all_rows import inner_products
from ...stacks.draw import uniform
from ..base import Wires
from .anchor import Anchored, OneModel, relabelled
from .assignment import ByDistance, in_use
from .seeding import lloyd, seeded
from .splitting import cosines

FEWEST = 4  # clients; the halves of fewer say nothing of groups
PATIENCE = 4  # numbers of groups beyond the best that are tried
CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class HowMany(Anchored):
    """Up to K centers, as many as the clients' updates tell apart; all begin at the first.

    Clients send what they learn from the mean of the centers in use on each half of their examples, as `half0` and
    `half1`. The groups found are `proposed`: where they are several, `IfItPays` decides. A center keeps the mean of its
    clients' halves, and `anchor`, the model they began from: by these newcomers find their place (`ByWays`).
    """

    def remembers(self, n_clients: int) -> Stacks:
        """Also the groups that were found, and in which round."""
        none = torch.zeros(n_clients, dtype=torch.int64)
        return super().remembers(n_clients) | {"proposed": none, "proposed_in": none - 1}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The mean of the centers in use, for everybody."""
        used = in_use(memory, self.k).double()
        return everybodys(used / used.sum(), cohort)

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The mean of every group that was found."""
        return Mixing.scatter(memory["proposed"].cpu()[cohort.index], self.k, self.weights(cohort))

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The present number of groups, or another one where it is clearly better; one group is settled at once."""
        here = memory["assignment"].cpu()[cohort.index]
        if len(cohort) < FEWEST:
            return {"proposed": here}
        start = _anchor(memory, centers, self.k)
        halves = inner_products(torch.cat([sent["half0"], sent["half1"]]), self.spans, origin=start)
        halves = (cosines(halves) if self.by == "cosine" else halves).nan_to_num(nan=0.0)
        found = relabelled(self.regrouped(halves, here, cohort), here, self.k)
        note = {"proposed": found, "proposed_in": torch.full_like(found, cohort.round)}
        return note | (self.placed(memory, cohort, found) if groups_in(found) == 1 else {})

    def regrouped(self, halves: Tensor, here: Tensor, cohort: Cohort) -> Tensor:
        """The groups to have now, (clients,), from the inner products of both halves, (2 clients, 2 clients)."""
        both, n = middle(halves), len(here)
        present, names = cast(tuple[Tensor, Tensor], torch.unique(here, return_inverse=True))
        tried: dict[int, tuple[Tensor, Tensor]] = {}  # by number of groups: the groups, and every client's error
        best = 1
        for k in range(1, min(self.k, n // 2) + 1):
            draws = [uniform(*cohort.key, "how many", k, j, torch.arange(k)) for j in range(self.restarts)]
            starts = [seeded(both, each, "kmeans++") for each in draws] + [names] * (k == len(present))
            place = min((lloyd(both, start, k, self.iterations) for start in starts), key=lambda run: run[0])[1]
            tried[k] = place, foretold(halves, place, k)
            best = k if tried[k][1].mean() < tried[best][1].mean() else best
            if k >= max(best, len(present)) + PATIENCE:
                break
        least = next(k for k in tried if beyond(tried[k][1] - tried[best][1]) <= 1)  # the fewest that do as well
        now = foretold(halves, names, len(present))
        same, error = tried.get(len(present), (names, now))
        if beyond(now - tried[least][1]) > CLEAR and beyond(error - tried[least][1]) > CLEAR:
            return tried[least][0]
        return same if float(error.mean()) < float(now.mean()) else names

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """The model that all began from is kept."""
        anchor = _anchor(memory, centers, self.k).to(centers["model"])
        return memory, centers | {"anchor": anchor.expand_as(centers["model"]).clone()}

    def words(self, n_clients: int) -> str:
        """Who is grouped by what."""
        return f"up to {self.k} centers: as many as updates on halves of the clients' examples tell apart"


@dataclass(frozen=True)
class Proposed(Select):
    """Everybody for whom one of several groups was found in this round."""

    def __call__(self, memory: Stacks, everyone: Cohort) -> Cohort:
        """Nobody, where there is one group or none was looked for."""
        there = everyone[memory["proposed_in"].cpu()[everyone.index] == everyone.round]
        return there if groups_in(memory["proposed"].cpu()[there.index]) > 1 else there[:0]


@dataclass(frozen=True)
class IfItPays(ByDistance):
    """Several centers where they serve clients better than one; nothing is mixed.

    The mean of a client's group comes down as `own0` and `own1`, everybody's as `one0` and `one1`; clients tell their
    `gain0` and `gain1`. A center that comes into use begins as the mean of those its clients had.
    """

    whole = True

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def remembers(self, n_clients: int) -> Stacks:
        """Also where clients were before."""
        return super().remembers(n_clients) | {"before": torch.zeros(n_clients, dtype=torch.int64)}

    @property
    def wires(self) -> Wires:
        """One model for each name."""
        return OneModel()

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Of what was learned on a half: the mean of one's own group, or of all."""
        place, of = memory["proposed"].cpu(), f"half{name[-1]}"
        if name.startswith("own"):
            return Mixing.gather(place[cohort.index], self.k, of=of)
        there = memory["proposed_in"].cpu() == cohort.round
        sizes = torch.bincount(place[there], minlength=self.k).double()
        return everybodys(sizes / sizes.sum(), cohort, of)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The groups that were found; or one center, the present one or the largest."""
        here, found = (memory[name].cpu()[cohort.index] for name in ("assignment", "proposed"))
        gain = (sent["gain0"] + sent["gain1"])[:, 0].double().cpu() / cohort.sizes
        one = groups_in(here) == 1
        pays = float(gain.mean()) > 0 if one else beyond(gain) > -CLEAR
        return {"before": here} | self.placed(memory, cohort, found if pays else here.mode().values.expand_as(here))

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Centers that come into use begin where their clients were."""
        after = memory["assignment"].cpu()
        before = after.clone()
        before[arrived.index] = memory["before"].cpu()[arrived.index]
        model = centers["model"].clone()
        for new in sorted(set(after[arrived.index].tolist()) - set(before.tolist())):
            came = before[arrived.index][after[arrived.index] == new].to(model.device)
            model[new] = centers["model"][came].mean(0)
        return memory, centers | {"model": model}

    def words(self, n_clients: int) -> str:
        """On what it depends."""
        return "several centers where their clients are served better by them than by one"


@dataclass(frozen=True)
class ByWays(ByDistance):
    """Newcomers train from the model that all were grouped from, and go to the center whose clients went their way.

    r_i = argmax_k <w_i - a, m_k - a> / |m_k - a|,     m_k the mean of what center k's clients learned from a
    """

    greets = True

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """The model that clients were grouped from."""
        return Mixing.gather(torch.zeros(len(cohort), dtype=torch.int64), self.k, of="anchor")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """The center in use whose way is most like theirs; nobody moves before there is any."""
        used = in_use(memory, self.k).nonzero()[:, 0].to(sent["model"].device)
        ways = (centers["half0"][used] + centers["half1"][used]) / 2
        alike = cosines(
            inner_products(torch.cat([ways, sent["model"]]), self.spans, origin=centers["anchor"][0].double())
        )
        place = used.cpu()[alike[len(used) :, : len(used)].argmax(1)]
        return {"assignment": place, "placed": torch.ones(len(place), dtype=torch.bool)}

    def words(self, n_clients: int) -> str:
        """Newcomers only."""
        return "newcomers go to the center whose clients learned most alike from a common model"


def foretold(halves: Tensor, place: Tensor, k: int) -> Tensor:
    """e_i: how badly one half of a client, put among the others, foretells its other half; both ways, (clients,)."""
    n = len(place)
    own = halves.diag().view(2, n)
    each = (halves[:, :n] + halves[:, n:]).view(2, n, n) / 2  # <half h of i, c_j>
    belongs = torch.nn.functional.one_hot(place, k).double()
    others = (belongs.sum(0) - belongs).clamp(min=1)  # (clients, groups): how many beside client i
    both = each.mean(0)
    whole = both @ belongs  # <c_i, sum of c_j over j in g>
    square = (belongs * whole).sum(0) - belongs * (2 * whole - both.diag()[:, None])  # |sum of c_j, j != i|^2
    dot = each @ belongs - belongs * each.diagonal(dim1=1, dim2=2)[:, :, None]
    far = own[:, :, None] - 2 * dot / others + square / others**2  # (halves, clients, groups)
    far = far.masked_fill(belongs.sum(0) - belongs == 0, torch.inf)
    chosen = far.argmin(2, keepdim=True)
    return (far.flip(0).gather(2, chosen)[..., 0]).mean(0)


def groups_in(place: Tensor) -> int:
    """How many different labels there are."""
    return len(set(place.tolist()))


def beyond(gain: Tensor) -> float:
    """A mean over clients in its standard errors; 0 where nobody gains."""
    error = float(gain.std()) / len(gain) ** 0.5
    return float(gain.mean()) / error if error > 0 else 0.0


def middle(halves: Tensor) -> Tensor:
    """<c_i, c_j> from the inner products of both halves."""
    n = len(halves) // 2
    return (halves[:n, :n] + halves[n:, n:] + halves[:n, n:] + halves[n:, :n]) / 4


def everybodys(share: Tensor, cohort: Cohort, of: str | None = None) -> Mixing:
    """The same mean of centers, with shares (k,), for every client."""
    center, n = share.nonzero()[:, 0], len(cohort)
    client, weight = torch.arange(n).repeat_interleave(len(center)), share[center].repeat(n)
    return Mixing.sparse(client, center.repeat(n), weight, (n, len(share)), of=of)


def _anchor(memory: Stacks, centers: Stacks, k: int) -> Tensor:
    """The mean of the centers in use, (width,) float64."""
    used = in_use(memory, k).double()
    return (used / used.sum()).to(centers["model"].device) @ centers["model"].double()
