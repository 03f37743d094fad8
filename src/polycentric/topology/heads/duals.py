"""Every task a dual sum at the center, mixed by how tasks are related."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...errors import within
from ...stacks.cohort import Cohort, View
from ...stacks.mixing import Mixing
from ...stacks.stack import Stacks
from ..base import Topology, Wires
from .covariance import Sets, cov_and_prec
from .related import AddsUp


@dataclass(frozen=True)
class Duals(Topology):
    """The center holds every task's dual sum; a client's model mixes them by how tasks are related (MOCHA).

        down   w_t = 1/lambda sum_t' Sigma_tt' b_t'          up   the identity: b_t = 1/n_t X_t^T alpha_t
        meet   every so many rounds  Sigma <- (W W^T)^(1/2) / tr(.)

    So W = W(alpha) always, also right after Sigma has changed. `stiffness` = sum_t' |Sigma_tt'| / lambda is the
    curvature that bounds all tasks' moves at once: the paper's sigma'_t Sigma_tt / lambda, with a sigma' of its own for
    each task instead of their maximum. `relation`: "learned", "none" (Sigma = I/m, every task alone) or "same"
    (Sigma = 1 1^T/m, one model for all).
    """

    strength: float = 1e-2
    relation: Literal["learned", "none", "same"] = "learned"
    every: int = 10
    eps: float = 1e-3
    reads_updates = True

    def __post_init__(self) -> None:
        within(self, strength="(0, inf)", relation=("learned", "none", "same"), every=">= 1", eps="(0, 0.5]")

    def n_centers(self, n_clients: int) -> int:
        """A dual sum for each task."""
        return n_clients

    def remembers(self, n_clients: int) -> Stacks:
        """Sigma (zero where a task has not come), and what every task told of its share of the two objectives."""
        told = {name: torch.zeros(n_clients, dtype=torch.float64) for name in ("examples", "primal", "dual")}
        sigma = torch.zeros(n_clients, n_clients, dtype=torch.float64)
        return told | {"covariance": sigma, "condition": torch.ones(1, dtype=torch.float64)}

    def down(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Rows of Sigma / lambda; for `stiffness` their sums."""
        rows = memory["covariance"].cpu()[cohort.index] / self.strength
        if name != "stiffness":
            return Mixing.dense(rows, "none")
        sums = rows.abs().sum(1)
        sums = torch.where(sums > 0, sums, 1 / self.strength)  # a task before its first exchange: Sigma = [1]
        every = torch.arange(len(cohort))
        return Mixing.sparse(every, cohort.index, sums, (len(cohort), cohort.n_clients), "none")

    def up(self, memory: Stacks, cohort: Cohort, name: str) -> Mixing:
        """Columns of the identity."""
        return Mixing.scatter(cohort.index, cohort.n_clients, rest="keep")

    def place(self, memory: Stacks, cohort: Cohort, centers: Stacks, sent: Stacks) -> Stacks:
        """Who came, and what they told."""
        told = {name: sent[name][:, 0].double().cpu() for name in ("primal", "dual")}
        return told | {"examples": cohort.sizes.double()}

    def meet(self, memory: Stacks, arrived: Cohort, centers: Stacks) -> tuple[Stacks, Stacks]:
        """Tasks that are new get a variance; then, when it is time, Sigma is found anew."""
        seen, sigma = memory["examples"].cpu() > 0, memory["covariance"].cpu()
        m, known = int(seen.sum()), int((sigma.diagonal() > 0).sum())
        if m > known:
            sigma = self.widened(sigma, seen, known, m)
        if self.relation == "learned" and len(arrived) and (arrived.round + 1) % self.every == 0:
            sets = Sets.everyone(m)
            duals = centers["model"].cpu().double()[seen]
            inner = sets.gram(duals).view(m, m)  # B^T B: W W^T = Sigma B B^T Sigma / lambda^2
            part = sigma[seen][:, seen]
            found = cov_and_prec(part @ inner @ part / self.strength**2, self.eps)
            sigma = torch.zeros_like(sigma)
            sigma[seen.nonzero(), seen.nonzero()[:, 0]] = found.cov
            memory = memory | {"condition": torch.full((1,), found.condition, dtype=torch.float64)}
        return memory | {"covariance": sigma}, centers

    def widened(self, sigma: Tensor, seen: Tensor, known: int, m: int) -> Tensor:
        """Sigma with a variance of 1/m for every task that is new, and trace one."""
        if self.relation == "same":
            return torch.outer(seen.double(), seen.double()) / m
        new = seen & (sigma.diagonal() == 0)
        return sigma * (known / m) + torch.diag(new.double() / m)

    @property
    def wires(self) -> Wires:
        """The center adds up before it sends: one row for each client."""
        return AddsUp()

    def words(self, n_clients: int) -> str:
        """Tasks of their own, related."""
        how = {"none": "not at all", "same": "as one model"}
        related = how.get(self.relation, "by a covariance learned during the run")
        return f"one center holds every client's task; they are related {related}"

    def shows(self, view: View) -> dict[str, float]:
        """The two objectives at the models of the round before, and how far they are apart."""
        memory = view.memory
        if not bool(memory["examples"].any()):
            return {}
        primal, dual = (float(memory[name].sum()) for name in ("primal", "dual"))
        return {"primal": primal, "dual": dual, "gap": primal - dual, "condition": float(memory["condition"])}
