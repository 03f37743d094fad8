"""Many centers: every client at one of them, found by distances between models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...stacks.cohort import Cohort
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from .clustered import ByDistance
from .distances import squared_distances


@dataclass(frozen=True)
class Clusters(ByDistance):
    """K centers, every client at one of them: one-hot rows down, one-hot columns up (FeSEM, TKM).

    The E-step is `place`: a client goes to the center nearest to what it sent (FeSEM eq. 7), the lowest
    number winning ties. The M-step is `up`: the mean of a center's clients (eq. 8), which by the paper counts
    clients (`weighted=False`). A center without clients keeps its model. `frozen`: nobody moves any more. `reseed`: a
    center that has lost all its clients begins again at the row that is farthest from its own center. `features` and
    `absent` are those of `ByDistance`.
    """

    weighted: bool = False
    frozen: bool = False
    reseed: bool = False

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """Whether a center is empty is known only when all have come."""
        return self.reseed

    def n_centers(self, n_clients: int) -> int:
        """K."""
        return self.k

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """One-hot rows: the client's own center."""
        return Mixing.gather(memory["assignment"].cpu()[cohort.index], self.k)

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """E-step, FeSEM eq. 7."""
        if self.frozen:
            return {} if self.absent == "out" else self.noted(cohort, sent)
        distance, nearest = squared_distances(sent["model"], centers["model"], self.spans).cpu().min(1)
        note = {"assignment": nearest, "distance": distance}
        if self.reseed:
            note |= self.refilled(memory, cohort, nearest, distance)
        return note | self.noted(cohort, sent)

    def refilled(self, memory: Stacks, cohort: Cohort, nearest: Tensor, distance: Tensor) -> Stacks:
        """Every center without clients takes the client farthest from its own, of a center that can spare one."""
        everyone, there = memory["assignment"].cpu().clone(), memory["placed"].cpu().clone()
        everyone[cohort.index], there[cohort.index] = nearest, True
        k, nearest, taken = self.k, nearest.clone(), torch.zeros(len(cohort)).long()
        count = torch.bincount(everyone[there], minlength=k)
        for empty in (count == 0).nonzero()[:, 0].tolist():
            far = torch.where((count[nearest] > 1) & (taken == 0), distance, 0.0)
            if len(far) and float(far.max()) > 0:
                who = int(far.argmax())
                count[nearest[who]] -= 1
                count[empty], nearest[who], taken[who] = 1, empty, 1
        return {"assignment": nearest, "reseeded": memory["reseeded"].cpu()[cohort.index] + taken}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """With absent="last", the M-step over the last known row of everybody."""
        if self.absent == "out":
            return memory, centers
        known = (memory["last_round"].cpu() >= 0).nonzero()[:, 0]
        place = memory["assignment"].cpu()[known]
        up = Mixing.scatter(place, len(centers["model"]), memory["last_weight"].cpu()[known])
        heard = up.total > 0
        new = centers["model"].clone()
        means = up.product(memory["last"], known)[heard] / up.total[heard, None]
        new[heard.to(new.device)] = means.to(new)
        return memory, centers | {"model": new}

    def words(self, n_clients: int) -> str:
        """Means of their clients."""
        where = (
            "they stay where the clustering put them" if self.frozen else "each is at the nearest, found in every round"
        )
        return f"{min(self.k, n_clients)} centers, the means of their clients; {where}"
